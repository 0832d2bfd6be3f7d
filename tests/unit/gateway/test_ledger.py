"""The ledger's file: what it refuses by itself, and what it keeps over a crash."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.ledger_scene import MODEL, RUN, grant_of
from forkyard.errors import InternalError, StoreError
from forkyard.gateway.interface import Copied, Finish, Outcome
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.ledger_schema import FIRST_SCHEMA
from forkyard.gateway.rows import NewReservation, Settlement
from forkyard.model.budget import Budget, Grant, TokenCounts

GRANT = grant_of(1, run=Budget(tokens=1_000, micro_usd=10_000))


def row(
    id_: str, grant: Grant = GRANT, *, output: int = 500, micro_usd: int | None = 4_000
) -> NewReservation:
    """Make a reservation."""
    return NewReservation(
        id=id_,
        grant=grant,
        provider="anthropic",
        model=MODEL,
        input_tokens=100,
        output_tokens=output,
        micro_usd=micro_usd,
        price_version="settings",
    )


def run(path: Path, scene: Callable[[Ledger], Awaitable[object]]) -> None:
    """Run a scene on a ledger that is closed at its end."""

    async def opened() -> None:
        async with asyncio.timeout(60):
            ledger = await Ledger.open(path / "ledger.db", allow_volatile=True)
            try:
                await scene(ledger)
            finally:
                await ledger.close()

    asyncio.run(opened())


@pytest.mark.parametrize("second", [row("b"), row("b", output=0, micro_usd=6_001)])
def test_file_refuses_what_passes_a_limit_whoever_asks(
    tmp_path: Path, second: NewReservation
) -> None:
    """The CHECK holds in tokens and in money, and takes nothing of the refused one."""

    async def scene(ledger: Ledger) -> None:
        await ledger.set_budgets(GRANT)
        await ledger.reserve(row("a"))
        with pytest.raises(InternalError, match="CHECK"):
            await ledger.reserve(second)
        totals = await ledger.attempt_totals(GRANT.attempt)
        assert (totals.reserved_tokens, totals.reserved_micro_usd, totals.requests) == (
            600,
            4000,
            1,
        )
        await ledger.release("a")
        await ledger.reserve(second)

    run(tmp_path, scene)


def test_one_bad_step_takes_only_itself_back_when_many_are_committed_together(
    tmp_path: Path,
) -> None:
    """Steps that were asked for at once share a commit and nothing else."""

    async def scene(ledger: Ledger) -> None:
        await ledger.set_budgets(GRANT)
        used = Settlement(outcome=Outcome.COMPLETE, tokens=TokenCounts(output=7), micro_usd=9)
        results = await asyncio.gather(
            ledger.reserve(row("a")),
            ledger.reserve(row("b")),
            ledger.settle("nobody", used),
            ledger.settle("a", used),
            return_exceptions=True,
        )
        assert [isinstance(result, InternalError) for result in results] == [
            *(False, True, True, False)
        ]
        totals = await ledger.run_totals(RUN)
        assert (totals.spent_tokens, totals.spent_micro_usd, totals.reserved_tokens) == (7, 9, 0)

    run(tmp_path, scene)


def test_open_reservations_are_settled_at_their_bound_at_the_next_start(tmp_path: Path) -> None:
    """They may have been sent; what was settled stays, and numbers go on rising."""

    async def before(ledger: Ledger) -> None:
        await ledger.set_budgets(GRANT)
        await ledger.reserve(row("a"))
        await ledger.settle(
            "a", Settlement(outcome=Outcome.COMPLETE, tokens=TokenCounts(input=1), micro_usd=1)
        )
        await ledger.reserve(row("b"))

    async def after(ledger: Ledger) -> None:
        first, second = await ledger.entries_after(0)
        assert (first.sequence, second.sequence) == (1, 2)
        assert (second.outcome, second.is_estimated) == (Outcome.UNKNOWN, True)
        assert (second.tokens.total, second.micro_usd) == (600, 4_000)
        totals = await ledger.run_totals(RUN)
        assert (totals.spent_tokens, totals.reserved_tokens) == (601, 0)
        assert await ledger.entries_after(1, limit=5) == (second,)
        assert await ledger.entries_after(2) == ()

    run(tmp_path, before)
    run(tmp_path, after)
    run(tmp_path, after)


def test_unpriced_request_is_unknown_and_not_free(tmp_path: Path) -> None:
    """Its entry has no cost; the totals in money do not move."""

    async def scene(ledger: Ledger) -> None:
        free = grant_of(2)
        await ledger.set_budgets(free)
        await ledger.reserve(row("a", free, micro_usd=None))
        entry = await ledger.settle(
            "a",
            Settlement(outcome=Outcome.COMPLETE, tokens=TokenCounts(output=7), micro_usd=None),
        )
        assert entry.micro_usd is None
        assert (await ledger.run_totals(RUN)).spent_micro_usd == 0

    run(tmp_path, scene)


def test_limit_below_what_is_spent_becomes_what_is_spent(tmp_path: Path) -> None:
    """A lowered budget stops what comes, and does not make the past impossible."""

    async def scene(ledger: Ledger) -> None:
        await ledger.set_budgets(GRANT)
        await ledger.reserve(row("a"))
        await ledger.set_budgets(replace(GRANT, run_budget=Budget(tokens=10)))
        with pytest.raises(InternalError):
            await ledger.reserve(row("b", output=0, micro_usd=0))
        await ledger.settle("a", Settlement(outcome=Outcome.COMPLETE, tokens=TokenCounts(input=5)))
        await ledger.set_budgets(replace(GRANT, run_budget=Budget()))
        await ledger.reserve(row("c", output=10**9))

    run(tmp_path, scene)


def test_refusal_is_entered_and_spends_nothing(tmp_path: Path) -> None:
    """What was never reserved for cannot be entered as spent."""

    async def scene(ledger: Ledger) -> None:
        refusal = Settlement(outcome=Outcome.REFUSED_BUDGET, status=400, detail="used up")
        entry = await ledger.record(GRANT, provider="p", model="m", settlement=refusal)
        assert (entry.sequence, entry.tokens.total, entry.micro_usd) == (1, 0, 0)
        assert (await ledger.set_budgets(GRANT)).budget_refusal == "used up"
        with pytest.raises(InternalError):
            await ledger.record(
                GRANT, provider="p", model="m", settlement=replace(refusal, micro_usd=1)
            )

    run(tmp_path, scene)


def test_entries_are_append_only(tmp_path: Path) -> None:
    """The file itself refuses to change or forget what is settled."""

    async def scene(ledger: Ledger) -> None:
        refusal = Settlement(outcome=Outcome.REFUSED_BUDGET)
        await ledger.record(GRANT, provider="p", model="m", settlement=refusal)

    run(tmp_path, scene)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        for statement in ("DELETE FROM entries", "UPDATE entries SET micro_usd = 0"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    connection.close()


def test_second_process_is_refused_while_one_has_the_file(tmp_path: Path) -> None:
    """Two gateways on one ledger would settle each other's requests."""

    async def scene(ledger: Ledger) -> None:
        with pytest.raises(StoreError, match="another gateway"):
            await Ledger.open(tmp_path / "ledger.db", allow_volatile=True)
        await ledger.set_budgets(GRANT)

    run(tmp_path, scene)


@pytest.mark.parametrize("content", [b"not a database, but long enough to look at", b""])
def test_damaged_or_foreign_file_is_refused_and_an_empty_one_is_new(
    tmp_path: Path, content: bytes
) -> None:
    """Nothing is guessed from a file that is no ledger."""
    (tmp_path / "ledger.db").write_bytes(content)

    async def scene(ledger: Ledger) -> None:
        assert len(ledger.id) == 32

    if content:
        with pytest.raises(StoreError, match="cannot open the ledger"):
            run(tmp_path, scene)
    else:
        run(tmp_path, scene)


def test_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """Its meaning is not ours to guess."""

    async def scene(ledger: Ledger) -> None:
        assert ledger.id

    run(tmp_path, scene)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    connection.close()
    with pytest.raises(StoreError, match="schema 99"):
        run(tmp_path, scene)


def test_closed_ledger_says_so(tmp_path: Path) -> None:
    """Nobody waits for a thread that has ended."""

    async def scene(ledger: Ledger) -> None:
        await ledger.close()
        await ledger.close()
        with pytest.raises(StoreError, match="closed"):
            await ledger.set_budgets(GRANT)

    run(tmp_path, scene)


def test_newest_entries_and_a_budgets_refusal_are_told_when_a_workspace_asked_a_lot(
    tmp_path: Path,
) -> None:
    """The answer stays small, and still says whether a budget refused it."""

    async def scene(ledger: Ledger) -> None:
        await ledger.set_budgets(GRANT)
        outcomes = [Outcome.BAD_REQUEST, Outcome.REFUSED_BUDGET, *[Outcome.BAD_REQUEST] * 5]
        for outcome in outcomes:
            settlement = Settlement(outcome=outcome, status=400)
            await ledger.record(GRANT, provider="anthropic", model=MODEL, settlement=settlement)
        told = await ledger.entries_of(GRANT.workspace, limit=3)
        assert [one.sequence for one in told] == [2, 5, 6, 7]
        whole = await ledger.entries_of(GRANT.workspace)
        assert [one.outcome for one in whole] == outcomes

    run(tmp_path, scene)


def test_clamp_and_finish_are_kept_when_an_answer_was_cut_short(tmp_path: Path) -> None:
    """Both are in the file: whose limit it was is asked for after the agent's end."""

    async def first(ledger: Ledger) -> None:
        await ledger.set_budgets(GRANT)
        await ledger.reserve(replace(row("a"), is_clamped=True))
        cut = Settlement(outcome=Outcome.COMPLETE, finish=Finish.LENGTH)
        assert (await ledger.settle("a", cut)).is_cut_short
        await ledger.reserve(replace(row("b"), is_clamped=True))

    async def second(ledger: Ledger) -> None:
        cut, lost = await ledger.entries_after(0)
        assert cut.is_cut_short
        assert (lost.outcome, lost.is_clamped, lost.is_cut_short) == (Outcome.UNKNOWN, True, False)

    run(tmp_path, first)
    run(tmp_path, second)


def test_ledger_of_the_first_schema_is_brought_up_when_it_is_opened(tmp_path: Path) -> None:
    """Its entries stay, told of nothing that was not known then."""
    connection = sqlite3.connect(tmp_path / "ledger.db")
    for statement in FIRST_SCHEMA:
        connection.execute(statement)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", [("schema", "1"), ("ledger", "old")])
    connection.execute(
        "INSERT INTO entries VALUES (7, 'ws_1', 'run_1', 'att_1', 'a', 'p', 'm', '2026', 1, 0, 0,"
        " 0, 2, 0, 3, 'v', 0, 'complete', 200, 4, '')"
    )
    connection.commit()
    connection.close()

    async def scene(ledger: Ledger) -> None:
        (entry,) = await ledger.entries_after(0)
        assert (ledger.id, entry.sequence, entry.micro_usd) == ("old", 7, 3)
        assert (entry.is_clamped, entry.finish) == (False, Finish.UNKNOWN)
        await ledger.set_budgets(GRANT)
        await ledger.reserve(row("a"))

    run(tmp_path, scene)
    run(tmp_path, lambda ledger: ledger.entries_after(0))


def test_only_what_is_copied_old_and_asked_for_by_nobody_goes_when_it_is_pruned(
    tmp_path: Path,
) -> None:
    """Numbers go on, budgets stay as they are, and another ledger's numbers mean nothing here."""
    other = grant_of(2)

    async def scene(ledger: Ledger) -> None:
        await ledger.set_budgets(GRANT)
        await ledger.set_budgets(other)
        for name, grant in (("a", GRANT), ("b", other), ("c", GRANT)):
            await ledger.reserve(row(name, grant, output=10, micro_usd=20))
            used = Settlement(outcome=Outcome.COMPLETE, tokens=TokenCounts(output=7), micro_usd=9)
            await ledger.settle(name, used)
        copied = Copied(ledger=ledger.id, through=2, before="9", live=(other.workspace,))
        assert await ledger.prune(replace(copied, ledger="another")) == 0
        assert await ledger.prune(replace(copied, before="2000")) == 0
        assert await ledger.prune(replace(copied, is_dry=True)) == 1
        assert await ledger.prune(copied) == 1
        assert await ledger.prune(copied) == 0
        assert [one.sequence for one in await ledger.entries_after(0)] == [2, 3]
        assert (await ledger.run_totals(RUN)).spent_micro_usd == 27
        assert (await ledger.attempt_totals(GRANT.attempt)).requests == 2
        everything = Copied(ledger=ledger.id, through=3, before="9")
        assert await ledger.prune(everything) == 2
        await ledger.reserve(row("d", output=10, micro_usd=20))
        settled = await ledger.settle("d", Settlement(outcome=Outcome.COMPLETE))
        assert settled.sequence == 4

    run(tmp_path, scene)
    connection = sqlite3.connect(tmp_path / "ledger.db")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute("DELETE FROM entries WHERE sequence = 4")
    connection.close()
