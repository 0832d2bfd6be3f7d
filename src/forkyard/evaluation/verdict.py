"""What base and candidate together say: states per test, one verdict, reasons in words. Pure.

Rules, in the order in which they are asked:

- a check that could not be run because of us decides nothing: `not-evaluated`;
- a report that does not name a test as failed which must fail is not believed: `failed`;
- *required* are the tests that failed in every run on the base; *kept* those that passed in all;
- a kept test that now fails, is skipped or is absent is broken; absent and skipped never pass;
- broken something: `regressed`, unless something was required and nothing of it was fixed;
- nothing required: `no-regression-shown`, because nothing could have been shown;
- the candidate is the base itself: `failed` instead of anything better;
- all required fixed and no new test fails: `solved`; some fixed: `partial`; none: `failed`.

The exit status of a check with a report is a test of its own, named ``<check>``: it fails when
the check exits non-zero though its report shows no failure (or there is no report). Broken it
counts; failing before and now it does not, since the report speaks for the tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from forkyard.evaluation.words import Tally, reasons, status_id
from forkyard.model.verdict import (
    Assurance,
    Baseline,
    Check,
    CheckResult,
    CheckRun,
    CheckState,
    ReportFormat,
    TestOutcome,
    TestState,
    VerdictKind,
)

NOT_FOUND_EXITS = frozenset({126, 127})
"""What a shell gives when the command is not there or may not be run."""
MOST_NEW = 1000
"""Tests that only the candidate has and that are listed: it decides how many there are."""
_GOOD_ENOUGH = frozenset({VerdictKind.SOLVED, VerdictKind.NO_REGRESSION_SHOWN, VerdictKind.PARTIAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome of comparing one candidate with the base."""

    kind: VerdictKind
    checks: tuple[CheckResult, ...] = ()
    reasons: tuple[str, ...] = ()
    trouble: str | None = None
    assurance: Assurance = Assurance.NONE


def compare(checks: Sequence[Check], baseline: Baseline, runs: Sequence[CheckRun]) -> Judgement:
    """Judge a candidate.

    Args:
        checks: The task's.
        baseline: What they said of the base, every repeat.
        runs: What they say of the candidate, one run for each check.
    """
    if not checks:
        return Judgement(
            kind=VerdictKind.NOT_EVALUATED, reasons=("not judged: the task has no checks",)
        )
    if baseline.trouble is not None:
        return _not_judged(baseline.trouble)
    before: dict[str, list[CheckRun]] = defaultdict(list)
    for run in baseline.checks:
        before[run.name].append(run)
    now = {run.name: run for run in runs}
    results: list[CheckResult] = []
    for check in checks:
        trouble = _trouble(check, before[check.name], now.get(check.name))
        if trouble is not None:
            return _not_judged(trouble, results)
        results.append(_result(check, before[check.name], now[check.name]))
    forged = [reason for check in checks for reason in _unbelievable(check, now[check.name])]
    if forged:
        return Judgement(
            kind=VerdictKind.FAILED,
            checks=tuple(results),
            reasons=tuple(forged),
            assurance=Assurance.IN_PROCESS,
        )
    tally = tally_of(results, before)
    kind = _kind(tally)
    return Judgement(
        kind=kind,
        checks=tuple(results),
        reasons=tuple(reasons(kind, tally, results)),
        assurance=Assurance.IN_PROCESS,
    )


def of_nothing(judgement: Judgement) -> Judgement:
    """Judge a candidate that is the base itself: whatever passes on it, the agent did nothing.

    A test that seems to be fixed then is one that does not agree with itself.
    """
    if judgement.kind not in _GOOD_ENOUGH:
        return judgement
    return replace(
        judgement,
        kind=VerdictKind.FAILED,
        reasons=("leaves the files of the base as they are", *judgement.reasons[1:]),
    )


def tally_of(
    results: Sequence[CheckResult], before: Mapping[str, Sequence[CheckRun]] | None = None
) -> Tally:
    """Sort all tests of all checks by what became of them.

    A missing test was broken where it passed on the base, and is otherwise not fixed; without
    the base's runs it is taken for broken.
    """
    many = len(results) > 1
    groups: dict[str, list[str]] = defaultdict(list)
    for result in results:
        for test, state in result.tests.items():
            shown = f"{result.name}: {test}" if many and test != result.name else test
            group = _GROUPS.get(state)
            if test == status_id(result.name) and group in {"kept", "unfixed"}:
                group = None
            if state is TestState.MISSING and before is not None:
                base = base_outcome(test, before.get(result.name, ()))
                group = "unfixed" if base is TestOutcome.FAILED else "broken"
            if group is not None:
                groups[group].append(shown)
    return Tally(**{name: tuple(tests) for name, tests in groups.items()})


_GROUPS = {
    TestState.FAIL_TO_PASS: "fixed",
    TestState.PASS_TO_PASS: "kept",
    TestState.STILL_FAILING: "unfixed",
    TestState.REGRESSED: "broken",
    TestState.MISSING: "broken",
    TestState.NEW_FAILED: "new_failed",
    TestState.NEW_PASSED: "new_passed",
    TestState.FLAKY: "flaky",
}


def base_outcome(test: str, runs: Sequence[CheckRun]) -> TestOutcome | None:
    """Give what all runs on the base agree on for one test; None where they disagree."""
    seen = {run.outcomes.get(test, TestOutcome.MISSING) for run in runs}
    return seen.pop() if len(seen) == 1 else None


def _trouble(check: Check, before: Sequence[CheckRun], now: CheckRun | None) -> str | None:
    if not before:
        return f"check {check.name} was never run on the base"
    if now is None:
        return f"check {check.name} was not run"
    if now.state is CheckState.COULD_NOT_RUN:
        return f"check {check.name} could not be run: {now.detail or 'no reason is known'}"
    exits = {run.exit_code for run in (*before, now)}
    if len(exits) == 1 and exits <= NOT_FOUND_EXITS:
        return (
            f"check {check.name} exits {now.exit_code} on the base too: "
            "its command is not found or not executable in the workspace"
        )
    return None


def _unbelievable(check: Check, now: CheckRun) -> Iterable[str]:
    if now.state in {CheckState.NO_REPORT, CheckState.TIMED_OUT}:
        return  # there is no report that could be believed or not
    for test in check.must_fail:
        outcome = now.outcomes.get(test, TestOutcome.MISSING)
        if outcome is not TestOutcome.FAILED:
            yield (
                f"no result of check {check.name} is believed: test {test} must fail, and its"
                f" report says that it is {outcome}; read the patch"
            )


def _without(check: Check, run: CheckRun) -> CheckRun:
    left = {test: one for test, one in run.outcomes.items() if test not in check.must_fail}
    return replace(run, outcomes=left)


def _result(check: Check, before: Sequence[CheckRun], now: CheckRun) -> CheckResult:
    is_excused = TestOutcome.FAILED in {now.outcomes.get(test) for test in check.must_fail}
    status = {} if is_excused else _status_state(check, before, now)
    before, now = [_without(check, run) for run in before], _without(check, now)
    tests: dict[str, TestState] = {}
    outcomes = _collected(before, now)
    ids = dict.fromkeys(test for run in before for test in run.outcomes) | dict.fromkeys(outcomes)
    for test in ids:
        base = base_outcome(test, before)
        outcome = outcomes.get(test, TestOutcome.MISSING)
        tests[test] = TestState.FLAKY if base is None else _STATES[base, outcome]
    if check.report is not ReportFormat.EXIT and not _are_missing(now, tests):
        tests |= status
    detail = now.detail
    dropped = _drop_new(tests)
    if dropped:
        told = f"{dropped} more tests that the base does not run are not listed"
        detail = f"{detail}; {told}" if detail else told
    state = now.state
    if state is CheckState.PASSED and any(one in _BAD for one in tests.values()):
        state = CheckState.FAILED
    return CheckResult(
        name=now.name,
        state=state,
        exit_code=now.exit_code,
        elapsed_seconds=now.elapsed_seconds,
        tests=tests,
        detail=detail,
        log=now.log,
    )


def _drop_new(tests: dict[str, TestState]) -> int:
    """Keep a bounded number of tests that only the candidate has, failing ones first."""
    new = [test for test, state in tests.items() if state is TestState.NEW_FAILED]
    new += [test for test, state in tests.items() if state is TestState.NEW_PASSED]
    for test in new[MOST_NEW:]:
        del tests[test]
    return len(new[MOST_NEW:])


def _collected(before: Sequence[CheckRun], now: CheckRun) -> dict[str, TestOutcome]:
    """Give the candidate's outcomes, with a say for files that the base could not even load.

    Runners report such a file as one failing test named like the file. Once it loads, that name
    is gone and the file's own tests are there instead: they answer for it together.
    """
    outcomes = dict(now.outcomes)
    known = {test for run in before for test in run.outcomes}
    for test in known - outcomes.keys():
        group, _, name = test.rpartition("::")
        if group not in _LOAD_FAILURES or base_outcome(test, before) is not TestOutcome.FAILED:
            continue
        own = {
            outcome
            for other, outcome in now.outcomes.items()
            if other not in known and _is_in(name, other)
        }
        if TestOutcome.FAILED in own:
            outcomes[test] = TestOutcome.FAILED
        elif TestOutcome.PASSED in own:
            outcomes[test] = TestOutcome.PASSED
    return outcomes


_LOAD_FAILURES = frozenset({"", "unittest.loader._FailedTest"})
"""Classes under which pytest and unittest report a file that cannot be loaded."""


def _is_in(module: str, test: str) -> bool:
    group = test.rpartition("::")[0]
    return group == module or group.startswith(f"{module}.")


def _are_missing(now: CheckRun, tests: Mapping[str, TestState]) -> bool:
    # Then each test tells already what the exit status would tell once more.
    no_report = now.state in {CheckState.NO_REPORT, CheckState.TIMED_OUT}
    return no_report and TestState.MISSING in tests.values()


_BAD = frozenset(
    {TestState.REGRESSED, TestState.MISSING, TestState.STILL_FAILING, TestState.NEW_FAILED}
)
_STATES = {
    (TestOutcome.FAILED, TestOutcome.PASSED): TestState.FAIL_TO_PASS,
    (TestOutcome.FAILED, TestOutcome.FAILED): TestState.STILL_FAILING,
    (TestOutcome.FAILED, TestOutcome.SKIPPED): TestState.STILL_FAILING,
    (TestOutcome.FAILED, TestOutcome.MISSING): TestState.MISSING,
    (TestOutcome.PASSED, TestOutcome.PASSED): TestState.PASS_TO_PASS,
    (TestOutcome.PASSED, TestOutcome.FAILED): TestState.REGRESSED,
    (TestOutcome.PASSED, TestOutcome.SKIPPED): TestState.REGRESSED,
    (TestOutcome.PASSED, TestOutcome.MISSING): TestState.MISSING,
    (TestOutcome.SKIPPED, TestOutcome.PASSED): TestState.NEW_PASSED,
    (TestOutcome.SKIPPED, TestOutcome.FAILED): TestState.NEW_FAILED,
    (TestOutcome.SKIPPED, TestOutcome.SKIPPED): TestState.SKIPPED,
    (TestOutcome.SKIPPED, TestOutcome.MISSING): TestState.SKIPPED,
    (TestOutcome.MISSING, TestOutcome.PASSED): TestState.NEW_PASSED,
    (TestOutcome.MISSING, TestOutcome.FAILED): TestState.NEW_FAILED,
    (TestOutcome.MISSING, TestOutcome.SKIPPED): TestState.SKIPPED,
    (TestOutcome.MISSING, TestOutcome.MISSING): TestState.SKIPPED,
}
"""Base, candidate -> state. A skipped test did not pass, so skipping one is no way out."""


def _status_state(check: Check, before: Sequence[CheckRun], now: CheckRun) -> dict[str, TestState]:
    was, is_bad = {_is_status_bad(run) for run in before}, _is_status_bad(now)
    if was == {False} and not is_bad:
        return {}
    if len(was) > 1:
        state = TestState.FLAKY
    elif was == {True}:
        state = TestState.STILL_FAILING if is_bad else TestState.FAIL_TO_PASS
    else:
        state = TestState.REGRESSED
    return {status_id(check.name): state}


def _is_status_bad(run: CheckRun) -> bool:
    if run.state in {CheckState.NO_REPORT, CheckState.TIMED_OUT}:
        return True
    return run.exit_code != 0 and TestOutcome.FAILED not in run.outcomes.values()


def _kind(tally: Tally) -> VerdictKind:
    if tally.broken:
        hopeless = tally.unfixed and not tally.fixed
        return VerdictKind.FAILED if hopeless else VerdictKind.REGRESSED
    if not tally.fixed and not tally.unfixed:
        return VerdictKind.REGRESSED if tally.new_failed else VerdictKind.NO_REGRESSION_SHOWN
    if not tally.fixed:
        return VerdictKind.FAILED
    if tally.unfixed or tally.new_failed:
        return VerdictKind.PARTIAL
    return VerdictKind.SOLVED


def _not_judged(trouble: str, results: Iterable[CheckResult] = ()) -> Judgement:
    return Judgement(
        kind=VerdictKind.NOT_EVALUATED,
        checks=tuple(results),
        reasons=(f"not judged, through no fault of the candidate: {trouble}",),
        trouble=trouble,
    )
