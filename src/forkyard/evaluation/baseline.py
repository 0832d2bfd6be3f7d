"""What the checks' runs on the base itself are worth. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forkyard.model.verdict import Baseline, Check, CheckRun, CheckState, ReportFormat, TestOutcome


def settle(checks: Sequence[Check], runs: Sequence[CheckRun]) -> Baseline:
    """Turn the runs on the base into a baseline.

    A check that cannot be run on the base, runs into its time limit there, or leaves no report,
    says nothing about any candidate: that is trouble of ours, and all are told so at once.
    """
    found = (
        next(filter(None, (_trouble(check, run) for run in runs if run.name == check.name)), None)
        for check in checks
    )
    troubles = [trouble for trouble in found if trouble is not None]
    baseline = Baseline(checks=tuple(runs))
    return replace(baseline, trouble="; ".join(troubles)) if troubles else baseline


def _trouble(check: Check, run: CheckRun) -> str | None:
    match run.state:
        case CheckState.COULD_NOT_RUN:
            return f"check {check.name} could not be run on the base: {run.detail}"
        case CheckState.TIMED_OUT:
            limit = f"{check.timeout_seconds:g} s"
            return f"check {check.name} was still running on the base after {limit}"
        case CheckState.NO_REPORT:
            exit_code = f"exit status {run.exit_code}"
            return f"check {check.name} left no report on the base ({exit_code}): {run.detail}"
        case CheckState.PASSED | CheckState.FAILED:
            if check.report is not ReportFormat.EXIT and not run.outcomes:
                return f"check {check.name} reports no test on the base"
            for test in check.must_fail:
                outcome = run.outcomes.get(test, TestOutcome.MISSING)
                if outcome is not TestOutcome.FAILED:
                    return (
                        f"test {test} of check {check.name} must fail; it is {outcome} on the base"
                    )
            return None
