"""The ranking: a total preorder with reasons, in which trouble of ours is no defeat."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forkyard.evaluation.ranking import NOT_JUDGED, change_size, rank
from forkyard.model.candidate import Candidate, CandidateStatus, ChangeKind, FileChange
from forkyard.model.ids import AttemptId, CandidateId, EvaluationId, RunId
from forkyard.model.run import Attempt, AttemptState
from forkyard.model.verdict import (
    Assurance,
    CheckResult,
    CheckState,
    Evaluation,
    TestState,
    VerdictKind,
)

Row = tuple[Candidate, Evaluation, Attempt]


def change(
    path: str, *, lines: int | None = 1, kind: ChangeKind = ChangeKind.MODIFIED
) -> FileChange:
    """Make a changed file."""
    return FileChange(
        path=path, kind=kind, old_mode=None, new_mode="100644", old_blob=None, new_blob="b",
        size_bytes=80, added_lines=lines, deleted_lines=None if lines is None else 0,
    )  # fmt: skip


def row(
    name: str,
    verdict: VerdictKind,
    *,
    tests: dict[str, TestState] | None = None,
    lines: int | None = 1,
    seconds: float | None = 10.0,
    outside: tuple[str, ...] = (),
    protected: tuple[str, ...] = (),
    added: tuple[str, ...] = (),
) -> Row:
    """Make one candidate with its evaluation and attempt."""
    attempt = AttemptId(f"att_{name}")
    new = [change(path, lines=0, kind=ChangeKind.ADDED) for path in added]
    candidate = Candidate(
        id=CandidateId(f"cand_{name}"), attempt=attempt, status=CandidateStatus.COMPLETE,
        base_tree="0", result_tree=name, patch_sha256="", patch_bytes=0, manifest_sha256="",
        created_at="", outside_scope=outside, protected=(*protected, *added),
        files=(change("a.py", lines=lines), *new),
    )  # fmt: skip
    result = CheckResult(
        name="tests", state=CheckState.PASSED, exit_code=0, elapsed_seconds=1.0,
        tests=tests or {"t": TestState.FAIL_TO_PASS},
    )  # fmt: skip
    evaluation = Evaluation(
        id=EvaluationId(f"eval_{name}"), candidate=candidate.id, result_tree=name, verdict=verdict,
        assurance=Assurance.IN_PROCESS, created_at="", checks=(result,), reasons=(f"is {name}",),
        trouble="the sandbox died" if verdict is VerdictKind.NOT_EVALUATED else None,
    )  # fmt: skip
    return candidate, evaluation, _attempt(name, seconds=seconds)


def _attempt(name: str, *, seconds: float | None = None, trouble: str | None = None) -> Attempt:
    return Attempt(
        id=AttemptId(f"att_{name}"), run=RunId("run_1"), task=0, agent=name, number=1, epoch=1,
        state=AttemptState.FINISHED, created_at="", elapsed_seconds=seconds, trouble=trouble,
    )  # fmt: skip


def order(*rows: Row) -> list[tuple[int, str]]:
    """Give rank and name of each place."""
    ranking = rank([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    return [(place.rank, place.candidate.removeprefix("cand_")) for place in ranking.places]


SOLVED, REGRESSED = VerdictKind.SOLVED, VerdictKind.REGRESSED


def test_verdict_comes_before_everything_else() -> None:
    """A larger, slower solution beats a small failure."""
    assert order(
        row("failed", VerdictKind.FAILED, lines=0, seconds=0),
        row("partial", VerdictKind.PARTIAL),
        row("solved", SOLVED, lines=900, seconds=900, outside=("x",)),
        row("invalid", VerdictKind.INVALID),
        row("regressed", REGRESSED),
    ) == [(1, "solved"), (2, "partial"), (3, "regressed"), (4, "failed"), (5, "invalid")]


def test_reasons_of_the_order_are_asked_one_after_the_other() -> None:
    """Broken, fixed, scope, protected files, size, time."""
    broken = {"t": TestState.REGRESSED}
    two = dict.fromkeys("tu", TestState.FAIL_TO_PASS)
    assert order(
        row("g-slow", SOLVED, seconds=12.0),
        row("f-large", SOLVED, lines=2, seconds=1),
        row("e-tampered", SOLVED, protected=("conftest.py",), lines=0),
        row("d-outside", SOLVED, outside=("x",)),
        row("a-best", SOLVED),
        row("0-two", SOLVED, tests=two, lines=99),
        row("z-broken", SOLVED, tests=broken),
    ) == [
        (1, "0-two"), (2, "a-best"), (3, "g-slow"), (4, "f-large"), (5, "e-tampered"),
        (6, "d-outside"), (7, "z-broken"),
    ]  # fmt: skip


def test_equal_candidates_share_a_rank_and_nobody_wins() -> None:
    """A tie is a result; parts of a second are no reason."""
    rows = [
        row("a", SOLVED, seconds=10.1),
        row("b", SOLVED, seconds=10.9),
        row("c", VerdictKind.FAILED),
    ]
    ranking = rank([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])

    assert [place.rank for place in ranking.places] == [1, 1, 3]
    assert ranking.winner is None
    assert ranking.summary == "2 candidates solve the task and nothing tells them apart"
    assert "tied with 1 other" in ranking.places[0].reasons


def test_winner_is_the_one_that_solves_alone_in_front() -> None:
    """The summary says who and why."""
    rows = [row("a", SOLVED), row("b", SOLVED, lines=9), row("c", VerdictKind.FAILED)]
    ranking = rank([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])

    assert ranking.winner == "cand_a"
    assert ranking.summary == "a #1 is the best of 3: is a; 2 candidates solve the task"
    assert "behind the one before it because the change is larger" in ranking.places[1].reasons


def test_nobody_wins_when_none_solves_the_task() -> None:
    """None good enough, and a base without failures, are results with words of their own."""
    partial = row("a", VerdictKind.PARTIAL)
    shown = row("b", VerdictKind.NO_REGRESSION_SHOWN)
    bad = rank([partial[0]], [partial[1]], [partial[2]])
    green = rank([shown[0]], [shown[1]], [shown[2]])

    assert (bad.winner, green.winner) == (None, None)
    assert bad.summary.startswith("none of 1 is good enough; the best: a #1")
    assert "no test failed on the base" in green.summary


def test_trouble_of_ours_is_listed_apart() -> None:
    """Not judged is no place, and attempts that we spoilt are counted in the summary."""
    lost = row("x", VerdictKind.NOT_EVALUATED)
    bad = row("y", VerdictKind.FAILED)
    unjudged = row("z", SOLVED)[0]
    spoilt = _attempt("w", trouble="the disk was full")
    ranking = rank([lost[0], bad[0], unjudged], [lost[1], bad[1]], [lost[2], bad[2], spoilt])

    assert [(p.rank, p.candidate) for p in ranking.places] == [
        (1, "cand_y"), (NOT_JUDGED, "cand_x"), (NOT_JUDGED, "cand_z"),
    ]  # fmt: skip
    assert "2 could not be judged, through no fault of the agent" in ranking.summary
    assert "1 of 3 attempts ended through trouble of ours" in ranking.summary


def test_no_candidate_is_a_result_too() -> None:
    """An empty task has a summary."""
    assert rank([], [], []).summary == "no candidate could be ranked"


def test_honest_new_tests_are_no_tampering_but_runner_settings_are() -> None:
    """A new file in a protected folder is told; a new conftest.py is held against it."""
    honest = row("h", SOLVED, added=("tests/test_new.py",))
    sly = row("a", SOLVED, added=("tests/conftest.py",))
    plain = row("p", SOLVED, lines=2)
    rows = (honest, sly, plain)
    ranking = rank([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])

    assert [p.candidate for p in ranking.places] == ["cand_h", "cand_p", "cand_a"]
    assert any("added 1 protected file" in reason for reason in ranking.places[0].reasons)
    assert any("touched 1 protected file" in reason for reason in ranking.places[2].reasons)


def test_size_counts_binary_files_by_their_bytes() -> None:
    """A binary blob is not free."""
    assert change_size(row("a", SOLVED, lines=None)[0]) == 3


ROWS = st.lists(
    st.builds(
        row,
        st.integers(0, 10**6).map(str),
        st.sampled_from(VerdictKind),
        tests=st.dictionaries(st.sampled_from("abc"), st.sampled_from(TestState), min_size=1),
        lines=st.none() | st.integers(0, 3),
        seconds=st.none() | st.floats(0, 3),
        outside=st.sampled_from([(), ("x",)]),
        protected=st.sampled_from([(), ("conftest.py",)]),
    ),
    max_size=7,
    unique_by=lambda r: r[0].id,
)


@given(rows=ROWS, seed=st.integers())
def test_order_given_has_no_influence(rows: list[Row], seed: int) -> None:
    """Blind to order: any permutation gives the same ranking."""
    ranking = rank([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    mixed = list(rows)
    random.Random(seed).shuffle(mixed)  # noqa: S311 - not for secrets

    assert rank([r[0] for r in mixed], [r[1] for r in rows], [r[2] for r in mixed]) == ranking


@given(rows=ROWS)
def test_ranking_is_a_total_preorder_over_everyone(rows: list[Row]) -> None:
    """Everyone is there once; ranks grow; better verdicts come first; the winner solved alone."""
    ranking = rank([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    verdicts = {r[0].id: r[1].verdict for r in rows}
    judged = [place for place in ranking.places if place.rank != NOT_JUDGED]

    assert sorted(p.candidate for p in ranking.places) == sorted(verdicts)
    assert all(place.reasons for place in ranking.places)
    ranks = [place.rank for place in judged]
    assert ranks == [1 + sum(other < one for other in ranks) for one in ranks]
    kinds = [list(VerdictKind).index(verdicts[place.candidate]) for place in judged]
    assert kinds == sorted(kinds)
    assert {verdicts[p.candidate] for p in ranking.places if p.rank == NOT_JUDGED} <= {
        VerdictKind.NOT_EVALUATED
    }
    if ranking.winner is not None:
        assert verdicts[ranking.winner] is SOLVED
        assert [p.candidate for p in judged if p.rank == 1] == [ranking.winner]


@given(rows=ROWS, lost=st.integers(0, 6))
def test_others_keep_their_order_when_one_cannot_be_judged(rows: list[Row], lost: int) -> None:
    """Trouble of ours with one candidate changes nothing between the rest."""
    if lost >= len(rows):
        return
    candidate, evaluation, attempt = rows[lost]
    spoilt = (candidate, replace(evaluation, verdict=VerdictKind.NOT_EVALUATED), attempt)
    before = [name for rank_, name in order(*rows) if rank_ and name not in candidate.id]
    after = [
        name
        for rank_, name in order(*rows[:lost], spoilt, *rows[lost + 1 :])
        if rank_ and name not in candidate.id
    ]

    assert [n for n in before if n in after] == after
