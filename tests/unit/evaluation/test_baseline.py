"""What runs on the base are worth."""

from __future__ import annotations

import pytest

from forkyard.evaluation.baseline import settle
from forkyard.model.verdict import Check, CheckRun, CheckState, ReportFormat, TestOutcome

EXIT = Check(name="lint", run="x")
JUNIT = Check(name="tests", run="x", report=ReportFormat.JUNIT)


def run(check: Check, state: CheckState, **outcomes: TestOutcome) -> CheckRun:
    """Make one run of a check."""
    return CheckRun(
        name=check.name, state=state, exit_code=1, elapsed_seconds=1.0, outcomes=dict(outcomes)
    )


def test_base_has_no_trouble_when_checks_ran_whatever_they_say() -> None:
    """A failing base is what a task starts from."""
    runs = [
        run(EXIT, CheckState.FAILED, lint=TestOutcome.FAILED),
        run(JUNIT, CheckState.PASSED, a=TestOutcome.PASSED),
    ]
    baseline = settle([EXIT, JUNIT], runs)

    assert baseline.trouble is None
    assert list(baseline.checks) == runs


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (CheckState.COULD_NOT_RUN, "could not be run on the base"),
        (CheckState.TIMED_OUT, "still running on the base"),
        (CheckState.NO_REPORT, "left no report on the base"),
        (CheckState.PASSED, "reports no test on the base"),
    ],
)
def test_base_is_trouble_of_ours_when_a_check_says_nothing(state: CheckState, words: str) -> None:
    """Then no candidate can be judged, and all are told why, once."""
    baseline = settle([JUNIT], [run(JUNIT, state), run(JUNIT, state)])

    assert baseline.trouble is not None
    assert baseline.trouble.count(words) == 1
