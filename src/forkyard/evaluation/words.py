"""What became of a candidate's tests, in words for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forkyard.model.verdict import CheckResult, CheckState, TestState, VerdictKind

_NAMED = 3
"""Tests named in one reason; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Tests of all checks, by what became of them; names carry the check where there are many."""

    fixed: tuple[str, ...] = ()
    unfixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    new_failed: tuple[str, ...] = ()
    new_passed: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()


def status_id(check: str) -> str:
    """Name the pseudo-test that stands for the exit status of a check with a report."""
    return f"<{check}>"


def reasons(kind: VerdictKind, tally: Tally, results: Sequence[CheckResult]) -> Iterable[str]:
    """Say why a verdict is what it is, the most important first."""
    yield _headline(kind, tally)
    if tally.fixed and tally.unfixed:
        yield f"{_tests(tally.unfixed)} still {_verb(tally.unfixed, 'fails', 'fail')}: " + names(
            tally.unfixed
        )
    if tally.broken and kind is VerdictKind.FAILED:
        yield f"breaks {_tests(tally.broken)} that passed: {names(tally.broken)}"
    if tally.new_failed:
        verb = _verb(tally.new_failed, "fails", "fail")
        yield f"{_tests(tally.new_failed)} that the base does not run {verb}: " + names(
            tally.new_failed
        )
    for result in results:
        yield from _check_reason(result)
    if tally.flaky:
        flaky = f"{_tests(tally.flaky)} gave different results on the base itself"
        yield f"{flaky} and decided nothing: {names(tally.flaky)}"


def _headline(kind: VerdictKind, tally: Tally) -> str:
    fixed = f"{_failing(tally.fixed)} now {_verb(tally.fixed, 'passes', 'pass')}"
    kept = f", {len(tally.kept)} still {_verb(tally.kept, 'passes', 'pass')}" if tally.kept else ""
    match kind:
        case VerdictKind.SOLVED:
            return f"solves the task: {fixed}{kept}"
        case VerdictKind.NO_REGRESSION_SHOWN:
            shown = f"{_tests(tally.kept)} still {_verb(tally.kept, 'passes', 'pass')}"
            return f"breaks nothing that was checked ({shown}); no test failed on the base"
        case VerdictKind.PARTIAL:
            return f"solves a part: {fixed}{kept}"
        case VerdictKind.REGRESSED if tally.broken:
            also = f", though {fixed}" if tally.fixed else ""
            return f"breaks {_tests(tally.broken)} that passed: {names(tally.broken)}{also}"
        case VerdictKind.REGRESSED:
            return "breaks a suite that was green"
        case _:
            verb = _verb(tally.unfixed, "fails", "fail")
            return f"does not solve the task: {_tests(tally.unfixed)} still {verb}: " + names(
                tally.unfixed
            )


def _check_reason(result: CheckResult) -> Iterable[str]:
    if result.state is CheckState.TIMED_OUT:
        yield f"check {result.name} was stopped at its time limit"
    elif result.state is CheckState.NO_REPORT:
        yield f"check {result.name} left no report that can be read: {result.detail}"
    elif result.tests.get(status_id(result.name)) is TestState.REGRESSED:
        yield (
            f"check {result.name} exits {result.exit_code} though its report shows no failure, "
            "which it did not do on the base"
        )


def names(tests: Sequence[str]) -> str:
    """Name the first few tests and count the rest."""
    shown = ", ".join(tests[:_NAMED])
    more = len(tests) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _tests(tests: Sequence[str]) -> str:
    return f"{len(tests)} {_verb(tests, 'test', 'tests')}"


def _failing(tests: Sequence[str]) -> str:
    return f"{len(tests)} failing {_verb(tests, 'test', 'tests')}"


def _verb(tests: Sequence[str], one: str, many: str) -> str:
    return one if len(tests) == 1 else many
