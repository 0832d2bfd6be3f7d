"""A run's end as an exit code: the candidates' fault, the agent's, or ours."""

from __future__ import annotations

import pytest

from forkyard.cli.comparison import count_tests, exit_code_of
from forkyard.wire.results import (
    AttemptInfo,
    BaseSummary,
    CandidateSummary,
    CheckInfo,
    EvaluationInfo,
    RunInfo,
    TaskInfo,
)

BASE = BaseSummary(commit=None, tree=None, snapshot="snap_000000000000")
CANDIDATE = CandidateSummary(
    id="cand_000000000000",
    status="complete",
    base_tree="1",
    result_tree="2",
    patch_sha256="3",
    patch_bytes=4,
)


def attempt(
    state: str = "finished",
    verdict: str | None = None,
    trouble: str | None = None,
    failure: str | None = None,
) -> AttemptInfo:
    """Make an attempt as the server tells it."""
    evaluation = verdict and EvaluationInfo(
        id="eval_0", verdict=verdict, assurance="in-process", result_tree="2"
    )
    return AttemptInfo(
        id="att_0",
        agent="a",
        number=1,
        state=state,
        trouble=trouble,
        failure=failure,
        candidate=CANDIDATE if verdict else None,
        evaluation=evaluation or None,
    )


def run(*tasks: list[AttemptInfo], state: str = "finished", trouble: str | None = None) -> RunInfo:
    """Make a run of such attempts."""
    return RunInfo(
        id="run_0",
        name="r",
        state=state,
        created_at="",
        tasks=[
            TaskInfo(name=str(index), base=BASE, attempts=attempts, trouble=trouble)
            for index, attempts in enumerate(tasks)
        ],
    )


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (run([attempt(verdict="failed"), attempt(verdict="solved")]), 0),
        (run([attempt(verdict="solved")], [attempt(verdict="solved")]), 0),
        (run([attempt(verdict="solved")], [attempt(verdict="partial")]), 1),
        (run([attempt(verdict="failed")]), 1),
        (run([attempt("timed-out")]), 1),
        (run([attempt("could-not-run")]), 11),
        (run([attempt("could-not-run", trouble="no runtime")]), 10),
        (run([attempt("could-not-run", trouble="no gateway", failure="ours")] * 2), 12),
        (
            run(
                [
                    attempt("could-not-run", trouble="no gateway", failure="ours"),
                    attempt("could-not-run", trouble="no runtime"),
                ]
            ),
            10,
        ),
        (run([attempt("interrupted", trouble="shim died"), attempt("could-not-run")]), 10),
        (run([attempt(verdict="not-evaluated")]), 14),
        (run([attempt(verdict="not-evaluated"), attempt(verdict="failed")]), 1),
        (run([], trouble="the base could not be checked"), 14),
        (run([attempt("cancelled")], state="cancelled"), 1),
    ],
)
def test_the_exit_code_says_whose_trouble_it_was(told: RunInfo, code: int) -> None:
    """Ours only where no result hides it."""
    assert exit_code_of(told) == code


def test_tests_are_counted_over_all_checks() -> None:
    """What was fixed and broken is said; skipped and flaky ones do not count."""
    evaluation = EvaluationInfo(
        id="eval_0",
        verdict="regressed",
        assurance="in-process",
        result_tree="2",
        checks=[
            CheckInfo(name="a", state="failed", tests={"1": "fail-to-pass", "2": "regressed"}),
            CheckInfo(name="b", state="passed", tests={"3": "pass-to-pass", "4": "skipped"}),
        ],
    )

    assert count_tests(evaluation) == "2/3, 1 fixed, 1 broken"


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        (("provider", "provider"), 12),
        (("provider", "ours"), 12),
        (("budget", "budget"), 13),
        (("budget", "provider"), 13),
        (("budget", None), 1),
        (("agent", "provider"), 1),
    ],
)
def test_provider_or_budget_is_named_when_it_ended_every_attempt(
    failures: tuple[str | None, ...], code: int
) -> None:
    """One attempt that came to its end speaks for the task, and then it is not good enough."""
    attempts = [attempt(verdict="failed", failure=one) for one in failures]

    assert exit_code_of(run(attempts)) == code
    assert exit_code_of(run([*attempts, attempt(verdict="solved", failure="budget")])) == 0
