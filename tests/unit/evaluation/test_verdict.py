"""The verdict: every combination of base and candidate, and what may never happen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.evaluation.verdict import MOST_NEW, Judgement, compare, of_nothing
from forkyard.model.verdict import (
    Assurance,
    Baseline,
    Check,
    CheckRun,
    CheckState,
    ReportFormat,
    TestOutcome,
    TestState,
    VerdictKind,
)

P, F, S, M = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED, TestOutcome.MISSING
JUNIT = Check(name="tests", run="x", report=ReportFormat.JUNIT)
EXIT = Check(name="lint", run="x")
Outcomes = dict[str, TestOutcome]


def run(outcomes: Outcomes, *, exit_code: int | None = None, check: Check = JUNIT) -> CheckRun:
    """Make a run whose exit status fits its report, unless said otherwise."""
    failed = F in outcomes.values()
    code = int(failed) if exit_code is None else exit_code
    return CheckRun(
        name=check.name,
        state=CheckState.PASSED if code == 0 and not failed else CheckState.FAILED,
        exit_code=code,
        elapsed_seconds=1.0,
        outcomes=outcomes,
    )


def judge(base: Outcomes, now: Outcomes) -> Judgement:
    """Compare one run with one run."""
    return compare([JUNIT], Baseline(checks=(run(base),)), [run(now)])


@pytest.mark.parametrize(
    ("base", "now", "kind"),
    [
        ({"a": F, "b": P}, {"a": P, "b": P}, VerdictKind.SOLVED),
        ({"a": F}, {"a": P}, VerdictKind.SOLVED),
        ({"a": F, "b": F}, {"a": P, "b": F}, VerdictKind.PARTIAL),
        ({"a": F, "b": P}, {"a": F, "b": P}, VerdictKind.FAILED),
        ({"a": F, "b": P}, {"a": P, "b": F}, VerdictKind.REGRESSED),
        ({"a": F, "b": P}, {"a": P}, VerdictKind.REGRESSED),
        ({"a": F, "b": P}, {"a": P, "b": S}, VerdictKind.REGRESSED),
        ({"a": F, "b": P}, {"a": F, "b": F}, VerdictKind.FAILED),
        ({"a": F, "b": P}, {"a": S, "b": P}, VerdictKind.FAILED),
        ({"a": F, "b": P}, {"b": P}, VerdictKind.FAILED),
        ({"a": F, "b": P}, {"a": P, "b": P, "c": F}, VerdictKind.PARTIAL),
        ({"a": F, "b": P}, {"a": P, "b": P, "c": P}, VerdictKind.SOLVED),
        ({"b": P}, {"b": P}, VerdictKind.NO_REGRESSION_SHOWN),
        ({"b": P}, {"b": P, "c": P}, VerdictKind.NO_REGRESSION_SHOWN),
        ({"b": P}, {"b": P, "c": F}, VerdictKind.REGRESSED),
        ({"b": P}, {"b": F}, VerdictKind.REGRESSED),
        ({"b": P, "s": S}, {"b": P}, VerdictKind.NO_REGRESSION_SHOWN),
        ({"b": P, "s": S}, {"b": P, "s": F}, VerdictKind.REGRESSED),
    ],
)
def test_verdict_follows_the_design_when_base_and_candidate_are_known(
    base: Outcomes, now: Outcomes, kind: VerdictKind
) -> None:
    """Skipped and absent never count as passed."""
    judgement = judge(base, now)

    assert judgement.kind is kind
    assert judgement.assurance is Assurance.IN_PROCESS
    assert judgement.reasons


@pytest.mark.parametrize(
    ("base", "now", "state"),
    [
        (F, P, TestState.FAIL_TO_PASS),
        (F, F, TestState.STILL_FAILING),
        (F, S, TestState.STILL_FAILING),
        (F, M, TestState.MISSING),
        (P, P, TestState.PASS_TO_PASS),
        (P, F, TestState.REGRESSED),
        (P, S, TestState.REGRESSED),
        (P, M, TestState.MISSING),
        (S, P, TestState.NEW_PASSED),
        (S, F, TestState.NEW_FAILED),
        (S, S, TestState.SKIPPED),
        (S, M, TestState.SKIPPED),
        (M, P, TestState.NEW_PASSED),
        (M, F, TestState.NEW_FAILED),
        (M, S, TestState.SKIPPED),
    ],
)
def test_state_is_told_per_test(base: TestOutcome, now: TestOutcome, state: TestState) -> None:
    """The whole table of one test id."""
    before = {"k": P} | ({} if base is M else {"t": base})
    after = {"k": P} | ({} if now is M else {"t": now})

    assert judge(before, after).checks[0].tests["t"] is state


def test_test_decides_nothing_when_it_disagrees_with_itself_on_the_base() -> None:
    """Flaky is shown; the verdict comes from the rest, whatever the candidate's run gave."""
    base = Baseline(checks=(run({"a": F, "x": P}), run({"a": F, "x": F}), run({"a": F})))
    for now in (P, F, S):
        judgement = compare([JUNIT], base, [run({"a": P, "x": now})])
        assert judgement.kind is VerdictKind.SOLVED
        assert judgement.checks[0].tests["x"] is TestState.FLAKY
        assert "flaky" not in judgement.reasons[0]
        assert any("different results on the base" in reason for reason in judgement.reasons)


def test_missing_report_fails_every_test_when_the_base_had_one() -> None:
    """A process that dies before it reports has shown nothing (os._exit(0) at import)."""
    silent = replace(run({}, exit_code=0), state=CheckState.NO_REPORT, detail="nothing was written")
    judgement = compare([JUNIT], Baseline(checks=(run({"a": F, "b": P}),)), [silent])

    assert judgement.kind is VerdictKind.FAILED
    assert set(judgement.checks[0].tests.values()) == {TestState.MISSING}
    assert judgement.checks[0].state is CheckState.NO_REPORT


def test_timeout_fails_every_test_of_the_check() -> None:
    """A check that runs into its limit has shown nothing."""
    slow = replace(run({}, exit_code=137), state=CheckState.TIMED_OUT)
    judgement = compare([JUNIT], Baseline(checks=(run({"b": P}),)), [slow])

    assert judgement.kind is VerdictKind.REGRESSED
    assert "check tests was stopped at its time limit" in judgement.reasons


def test_exit_status_counts_when_it_contradicts_a_report_of_passes() -> None:
    """All passed and exit 3 is broken, unless the base behaved the same."""
    green, odd = run({"a": P}), run({"a": P}, exit_code=3)

    regressed = compare([JUNIT], Baseline(checks=(green,)), [odd])
    assert regressed.kind is VerdictKind.REGRESSED
    assert regressed.checks[0].tests["<tests>"] is TestState.REGRESSED
    same = compare([JUNIT], Baseline(checks=(odd,)), [odd])
    assert same.kind is VerdictKind.NO_REGRESSION_SHOWN
    mended = compare([JUNIT], Baseline(checks=(odd,)), [green])
    assert mended.checks[0].tests["<tests>"] is TestState.FAIL_TO_PASS


def test_check_fails_when_its_report_has_a_failure_and_its_exit_is_0() -> None:
    """An exit status of 0 hides nothing."""
    judgement = compare([JUNIT], Baseline(checks=(run({"a": P}),)), [run({"a": F}, exit_code=0)])

    assert judgement.kind is VerdictKind.REGRESSED
    assert judgement.checks[0].state is CheckState.FAILED


def test_file_that_could_not_load_is_solved_by_its_own_tests() -> None:
    """A test written for a function that did not exist yet is the usual failing test."""
    for group in ("", "unittest.loader._FailedTest::"):
        broken = {f"{group}tests.test_new": F, "tests.test_old::a": P}
        fixed = {"tests.test_new::b": P, "tests.test_new.Case::c": P, "tests.test_old::a": P}
        assert judge(broken, fixed).kind is VerdictKind.SOLVED
        assert judge(broken, {**fixed, "tests.test_new::b": F}).kind is VerdictKind.FAILED
        assert judge(broken, {"tests.test_old::a": P}).kind is VerdictKind.FAILED
        assert judge(broken, {"tests.other::b": P, "tests.test_old::a": P}).kind is (
            VerdictKind.FAILED
        )


def test_exit_checks_are_one_test_each() -> None:
    """Failing on the base and passing now solves; several checks are named in the reasons."""
    other = Check(name="build", run="y")
    base = Baseline(checks=(run({"lint": F}, check=EXIT), run({"build": P}, check=other)))
    good = [run({"lint": P}, check=EXIT), run({"build": P}, check=other)]

    assert compare([EXIT, other], base, good).kind is VerdictKind.SOLVED
    bad = [run({"lint": P}, check=EXIT), run({"build": F}, check=other)]
    judgement = compare([EXIT, other], base, bad)
    assert judgement.reasons[0] == (
        "breaks 1 test that passed: build, though 1 failing test now passes"
    )


def test_command_that_is_nowhere_is_trouble_of_ours() -> None:
    """Exit 127 on the base and on the candidate tells nothing of the candidate."""
    lost = run({"lint": F}, exit_code=127, check=EXIT)
    judgement = compare([EXIT], Baseline(checks=(lost,)), [lost])

    assert judgement.kind is VerdictKind.NOT_EVALUATED
    assert judgement.trouble is not None
    fixed = compare([EXIT], Baseline(checks=(lost,)), [run({"lint": P}, check=EXIT)])
    assert fixed.kind is VerdictKind.SOLVED


def test_candidate_is_not_evaluated_when_the_trouble_is_ours() -> None:
    """Base trouble, a check that could not run, a check never run, and no check at all."""
    base = Baseline(checks=(run({"a": F}),))
    lost = replace(run({}), state=CheckState.COULD_NOT_RUN, detail="the sandbox died")
    for judgement in (
        compare([JUNIT], replace(base, trouble="no sandbox"), [run({"a": P})]),
        compare([JUNIT], base, [lost]),
        compare([JUNIT], base, []),
        compare([JUNIT], Baseline(checks=()), [run({"a": P})]),
    ):
        assert judgement.kind is VerdictKind.NOT_EVALUATED
        assert judgement.trouble is not None
        assert judgement.assurance is Assurance.NONE
    assert compare([], base, []).kind is VerdictKind.NOT_EVALUATED


def test_list_of_new_tests_is_bounded_and_keeps_failures() -> None:
    """A candidate cannot fill the journal with tests of its own, nor hide a failure among them."""
    own = {f"n{number}": P for number in range(MOST_NEW + 500)} | {"last": F}
    (result,) = judge({"a": F}, {"a": P, **own}).checks

    assert len(result.tests) == MOST_NEW + 1
    assert result.tests["last"] is TestState.NEW_FAILED
    assert result.detail == "501 more tests that the base does not run are not listed"


def test_reasons_can_be_read_aloud() -> None:
    """One sentence says what became of the task."""
    many = {f"t{n}": P for n in range(11)}

    assert judge({"a": F, **many}, {"a": P, **many}).reasons == (
        "solves the task: 1 failing test now passes, 11 still pass",
    )
    assert judge({"b": P, "c": P, "d": P}, {"b": F, "c": F, "d": P}).reasons == (
        "breaks 2 tests that passed: b, c",
    )
    assert judge({"a": F, "b": F}, {"a": P, "b": F}).reasons == (
        "solves a part: 1 failing test now passes",
        "1 test still fails: b",
    )
    assert judge({"a": F, "b": P}, {"a": F, "b": P}).reasons == (
        "does not solve the task: 1 test still fails: a",
    )
    assert judge({"b": P}, {"b": P}).reasons == (
        "breaks nothing that was checked (1 test still passes); no test failed on the base",
    )


IDS = st.sampled_from(["a", "b", "c", "d"])
OUTCOMES = st.dictionaries(IDS, st.sampled_from([P, F, S]), max_size=4)


@given(
    bases=st.lists(OUTCOMES, min_size=1, max_size=3), now=OUTCOMES, code=st.sampled_from([0, 1, 3])
)
def test_solved_is_never_given_while_something_is_wrong(
    bases: list[Outcomes], now: Outcomes, code: int
) -> None:
    """Solved means: each stable failure passes, each stable pass passes, nothing else fails."""
    baseline = Baseline(checks=tuple(run(base) for base in bases))
    judgement = compare([JUNIT], baseline, [run(now, exit_code=code)])

    def stable(outcome: TestOutcome) -> set[str]:
        return {t for t in "abcd" if all(base.get(t) is outcome for base in bases)}

    if judgement.kind in {VerdictKind.SOLVED, VerdictKind.NO_REGRESSION_SHOWN}:
        assert all(now.get(test) is P for test in stable(F) | stable(P))
    if judgement.kind is VerdictKind.SOLVED:
        assert stable(F) or "<tests>" in judgement.checks[0].tests
    if stable(F) and all(now.get(test) is not P for test in stable(F)):
        assert judgement.kind in {VerdictKind.FAILED, VerdictKind.PARTIAL, VerdictKind.REGRESSED}


@given(base=OUTCOMES, now=OUTCOMES, test=IDS)
def test_passing_one_more_test_never_worsens_the_verdict(
    base: Outcomes, now: Outcomes, test: str
) -> None:
    """The verdict is monotonic in what passes."""
    order = list(VerdictKind)
    before, after = judge(base, now).kind, judge(base, {**now, test: P}).kind

    assert order.index(after) <= order.index(before)


@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        (VerdictKind.SOLVED, VerdictKind.FAILED),
        (VerdictKind.NO_REGRESSION_SHOWN, VerdictKind.FAILED),
        (VerdictKind.PARTIAL, VerdictKind.FAILED),
        (VerdictKind.REGRESSED, VerdictKind.REGRESSED),
        (VerdictKind.NOT_EVALUATED, VerdictKind.NOT_EVALUATED),
    ],
)
def test_candidate_that_is_the_base_is_never_good_enough(
    kind: VerdictKind, becomes: VerdictKind
) -> None:
    """Whatever passes on it, nobody did anything."""
    found = of_nothing(Judgement(kind=kind, reasons=("one", "two")))

    assert found.kind is becomes
    if becomes is not kind:
        assert found.reasons == ("leaves the files of the base as they are", "two")
