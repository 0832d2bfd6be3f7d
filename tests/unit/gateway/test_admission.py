"""Admission over a real ledger file: who waits, who is refused, and that nothing leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakes.ledger_scene import MODEL, PRICE, RUN, ask_for, grant_of
from forkyard.errors import InternalError, NotFoundError, StoreError
from forkyard.gateway.admission import Admission
from forkyard.gateway.budget import Ask
from forkyard.gateway.interface import GrantStatus, Outcome, RunStatus
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.line import Reservation
from forkyard.gateway.serving import RefusedError
from forkyard.model.budget import Budget, Grant, TokenCounts

USED = TokenCounts(input=100, output=200)
COST = 4_400


@asynccontextmanager
async def opened(path: Path, *grants: Grant) -> AsyncIterator[tuple[Admission, Ledger]]:
    """Open a ledger and let workspaces in; at the end nothing may be reserved or waiting."""
    ledger = await Ledger.open(path / "ledger.db", allow_volatile=True)
    try:
        admission = Admission(ledger)
        for grant in grants:
            await admission.grant(grant)
        yield admission, ledger
        if (status := admission.status(RUN)) is not None:
            assert (status.reserved_tokens, status.reserved_micro_usd) == (0, 0)
            assert all(one.waiting == one.in_flight == 0 for one in status.grants)
        totals = await ledger.run_totals(RUN)
        assert (totals.reserved_tokens, totals.reserved_micro_usd) == (0, 0)
    finally:
        await ledger.close()


async def admit(admission: Admission, grant: Grant, ask: Ask) -> Reservation:
    """Ask for the one model there is."""
    return await admission.admit(
        grant.workspace, ask, provider="anthropic", model=MODEL, price=PRICE
    )


async def complete(admission: Admission, reservation: Reservation) -> None:
    """Settle with what the provider told."""
    await admission.settle(reservation, outcome=Outcome.COMPLETE, tokens=USED, status=200)


async def settle_down(admission: Admission, until: Callable[[RunStatus], bool]) -> None:
    """Let tasks run until the status is as a test wants it."""
    async with asyncio.timeout(20):
        while (status := admission.status(RUN)) is None or not until(status):
            await asyncio.sleep(0.001)


def run(scene: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine with an end."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene()

    asyncio.run(bounded())


def only(admission: Admission) -> GrantStatus:
    """Give the status of the one grant there is."""
    status = admission.status(RUN)
    assert status is not None
    return status.grants[0]


def test_request_is_booked_as_the_provider_tells_it(tmp_path: Path) -> None:
    """Entry, totals and status all say the same."""
    grant = grant_of(1, run=Budget(tokens=100_000, micro_usd=1_000_000))

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, ledger):
            reservation = await admit(admission, grant, ask_for(1_000, 2_000))
            assert not reservation.is_clamped
            assert only(admission).reserved_micro_usd == 45_000
            await complete(admission, reservation)
            (entry,) = await ledger.entries_after(0)
            assert (entry.sequence, entry.ledger, entry.tokens) == (1, ledger.id, USED)
            assert (entry.micro_usd, entry.price_version) == (COST, "settings")
            assert not entry.is_estimated
            totals = await ledger.attempt_totals(grant.attempt)
            assert (totals.spent_tokens, totals.spent_micro_usd, totals.requests) == (300, COST, 1)
            assert only(admission).spent_micro_usd == COST
            with pytest.raises(InternalError):
                await complete(admission, reservation)

    run(scene)


def test_request_is_booked_at_its_bound_when_nobody_knows(tmp_path: Path) -> None:
    """Unknown, negative and absurd reports all become the upper bound, marked."""
    grant = grant_of(1, run=Budget(tokens=1_000_000, micro_usd=9_000_000))
    reports = [None, TokenCounts(input=-1), TokenCounts(output=10**30)]

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, ledger):
            for tokens in reports:
                reservation = await admit(admission, grant, ask_for(1_000, 2_000))
                await admission.settle(
                    reservation, outcome=Outcome.CLIENT_GONE, tokens=tokens, status=None
                )
            entries = await ledger.entries_of(grant.workspace)
            assert [entry.micro_usd for entry in entries] == [45_000] * 3
            assert all(entry.is_estimated and entry.tokens.total == 3_000 for entry in entries)

    run(scene)


def test_breach_of_the_bound_is_kept_apart_when_it_passes_the_budget(tmp_path: Path) -> None:
    """The entry tells the truth; what is counted as spent never passes the limit."""
    grant = grant_of(1, run=Budget(tokens=3_500))

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, ledger):
            reservation = await admit(admission, grant, ask_for(1_000, 2_000))
            await admission.settle(
                reservation, outcome=Outcome.COMPLETE, tokens=TokenCounts(output=5_000), status=200
            )
            totals = await ledger.run_totals(RUN)
            assert (totals.spent_tokens, totals.overrun_tokens) == (3_500, 1_500)
            assert only(admission).spent_tokens == 5_000
            with pytest.raises(RefusedError):
                await admit(admission, grant, ask_for(1, 1))

    run(scene)


def test_waiting_request_goes_on_when_another_settles(tmp_path: Path) -> None:
    """Who does not fit waits for what is in flight, visibly, and then gets it."""
    budget = Budget(tokens=30_000)
    first, second = grant_of(1, run=budget), grant_of(2, run=budget)

    async def scene() -> None:
        async with opened(tmp_path, first, second) as (admission, _):
            held = await admit(admission, first, ask_for(1_000, 128_000))
            assert held.output_tokens == 16_384
            task = asyncio.create_task(admit(admission, second, ask_for(1_000, 128_000)))
            await settle_down(admission, lambda status: status.grants[1].waiting == 1)
            status = admission.status(RUN)
            assert status is not None
            assert status.grants[1].queue_position == 1
            await complete(admission, held)
            await complete(admission, await task)

    run(scene)


def test_sibling_that_fits_goes_on_when_one_is_refused(tmp_path: Path) -> None:
    """A refusal is one request's: it ends its own attempt and no other."""
    budget = Budget(tokens=10_000)
    big, small = grant_of(1, run=budget), grant_of(2, run=budget)

    async def scene() -> None:
        async with opened(tmp_path, big, small) as (admission, ledger):
            with pytest.raises(RefusedError) as told:
                await admit(admission, big, ask_for(20_000, 128_000))
            assert told.value.outcome is Outcome.REFUSED_BUDGET
            await complete(admission, await admit(admission, small, ask_for(1_000, 128_000)))
            status = admission.status(RUN)
            assert status is not None
            assert [one.is_exhausted for one in status.grants] == [True, False]
            assert status.grants[0].refusal == told.value.reason
            outcomes = [entry.outcome for entry in await ledger.entries_after(0)]
            assert outcomes == [Outcome.REFUSED_BUDGET, Outcome.COMPLETE]

    run(scene)


def test_run_is_spent_when_what_is_left_buys_no_answer(tmp_path: Path) -> None:
    """Only then, and for that agent only, since another's model may be cheaper."""
    grant = grant_of(1, run=Budget(micro_usd=500_000))
    other = grant_of(2, run=Budget(micro_usd=500_000))

    async def scene() -> None:
        async with opened(tmp_path, grant, other) as (admission, _):
            await complete(admission, await admit(admission, grant, ask_for(1_000, 2_000)))
            with pytest.raises(RefusedError):
                await admit(admission, grant, ask_for(200_000, 2_000))
            status = admission.status(RUN)
            assert status is not None
            assert status.spent == {}
            with pytest.raises(RefusedError):
                # the first that it asks
                await admit(admission, other, ask_for(200_000, 2_000))
            status = admission.status(RUN)
            assert status is not None
            assert list(status.spent) == ["mine"]
            assert "0.495600 USD of 0.500000 USD are left" in status.spent["mine"]

    run(scene)


def test_exhaustion_is_known_again_after_a_restart(tmp_path: Path) -> None:
    """A gateway that was killed still says that this attempt is to end."""
    grant = grant_of(1, run=Budget(tokens=10))

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, _):
            with pytest.raises(RefusedError):
                await admit(admission, grant, ask_for(1_000, 128_000))
        async with opened(tmp_path, grant) as (admission, _):
            assert only(admission).is_exhausted
            assert only(admission).refusal is not None

    run(scene)


def test_requests_are_limited_when_the_grant_says_so(tmp_path: Path) -> None:
    """The count survives a restart; released requests do not count."""
    grant = grant_of(1, most_requests=2)

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, _):
            await admission.release(await admit(admission, grant, ask_for(1, 1)))
            await complete(admission, await admit(admission, grant, ask_for(1, 1)))
        async with opened(tmp_path, grant) as (admission, _):
            await complete(admission, await admit(admission, grant, ask_for(1, 1)))
            with pytest.raises(RefusedError) as told:
                await admit(admission, grant, ask_for(1, 1))
            assert told.value.outcome is Outcome.REFUSED_LIMIT

    run(scene)


def test_concurrency_is_limited_when_the_grant_says_so(tmp_path: Path) -> None:
    """One at a time means that the second waits, and siblings pass it."""
    one, other = grant_of(1, most_concurrent=1), grant_of(2)

    async def scene() -> None:
        async with opened(tmp_path, one, other) as (admission, _):
            held = await admit(admission, one, ask_for(1, 1))
            task = asyncio.create_task(admit(admission, one, ask_for(1, 1)))
            await settle_down(admission, lambda status: status.grants[0].waiting == 1)
            await complete(admission, await admit(admission, other, ask_for(1, 1)))
            assert not task.done()
            await complete(admission, held)
            await complete(admission, await task)

    run(scene)


def test_line_goes_round_between_attempts(tmp_path: Path) -> None:
    """Ten requests of one attempt do not keep one of another waiting."""
    budget = Budget(tokens=20_000)
    greedy, modest = grant_of(1, run=budget, most_concurrent=100), grant_of(2, run=budget)

    async def scene() -> None:
        served: list[str] = []

        async def one(grant: Grant) -> None:
            reservation = await admit(admission, grant, ask_for(1_000, 18_000))
            served.append(grant.attempt)
            await asyncio.sleep(0)
            await admission.settle(
                reservation, outcome=Outcome.COMPLETE, tokens=TokenCounts(output=1)
            )

        async with opened(tmp_path, greedy, modest) as (admission, _):
            tasks = [asyncio.create_task(one(greedy)) for _ in range(10)]
            await settle_down(admission, lambda status: status.grants[0].waiting > 0)
            tasks.append(asyncio.create_task(one(modest)))
            await asyncio.gather(*tasks)
        assert served.index(modest.attempt) <= 2

    run(scene)


@pytest.mark.parametrize("turns", range(12))
def test_nothing_stays_reserved_when_a_client_goes_away(tmp_path: Path, turns: int) -> None:
    """Whenever the cancellation comes: in line, while its row is written, or after."""
    budget = Budget(tokens=30_000)
    holder, leaver = grant_of(1, run=budget), grant_of(2, run=budget)

    async def scene() -> None:
        async with opened(tmp_path, holder, leaver) as (admission, ledger):
            held = await admit(admission, holder, ask_for(1_000, 128_000))
            task = asyncio.create_task(admit(admission, leaver, ask_for(1_000, 128_000)))
            await settle_down(admission, lambda status: status.grants[1].waiting == 1)
            settling = asyncio.create_task(complete(admission, held))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await settling
            try:
                reservation = await task
            except asyncio.CancelledError:
                await settle_down(admission, lambda status: status.reserved_tokens == 0)
            else:
                await admission.release(reservation)
            assert (await ledger.attempt_totals(leaver.attempt)).requests == 0

    run(scene)


def test_settlement_goes_on_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    """What was spent is booked whoever went away."""
    grant = grant_of(1)

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, ledger):
            reservation = await admit(admission, grant, ask_for(1, 1))
            task = asyncio.create_task(complete(admission, reservation))
            await asyncio.sleep(0)
            task.cancel()
            await settle_down(admission, lambda status: status.spent_tokens == USED.total)
            assert len(await ledger.entries_after(0)) == 1

    run(scene)


def test_revoked_workspace_waits_no_more_and_what_is_in_flight_is_booked(tmp_path: Path) -> None:
    """Its line is refused, its reservation still settles, and its numbers stay in the file."""
    budget = Budget(tokens=20_000)
    grant = grant_of(1, run=budget)

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, ledger):
            held = await admit(admission, grant, ask_for(1_000, 18_000))
            task = asyncio.create_task(admit(admission, grant, ask_for(1_000, 18_000)))
            await settle_down(admission, lambda status: status.grants[0].waiting == 1)
            admission.revoke(grant.workspace)
            admission.revoke(grant.workspace)
            with pytest.raises(RefusedError):
                await task
            with pytest.raises(NotFoundError):
                await admit(admission, grant, ask_for(1, 1))
            assert admission.status(RUN) is None
            await complete(admission, held)
            await admission.grant(grant)
            assert only(admission).spent_tokens == USED.total
            assert len(await ledger.entries_of(grant.workspace)) == 1

    run(scene)


def test_nothing_is_sent_and_nobody_hangs_when_the_file_cannot_be_written(
    tmp_path: Path,
) -> None:
    """Reservations fail, and a settlement that fails counts as all of its bound."""
    budget = Budget(tokens=30_000)
    grant = grant_of(1, run=budget)

    async def scene() -> None:
        ledger = await Ledger.open(tmp_path / "ledger.db", allow_volatile=True)
        admission = Admission(ledger)
        await admission.grant(grant)
        held = await admit(admission, grant, ask_for(1_000, 20_000))
        task = asyncio.create_task(admit(admission, grant, ask_for(1_000, 20_000)))
        await settle_down(admission, lambda status: status.grants[0].waiting == 1)
        ledger._file._connection.execute("PRAGMA query_only=ON")
        with pytest.raises(StoreError, match="cannot write the ledger"):
            await complete(admission, held)
        with pytest.raises(StoreError):
            await task
        await settle_down(admission, lambda status: status.reserved_tokens == 0)
        assert only(admission).spent_tokens == held.tokens, "what was never sent counts"
        ledger._file._connection.execute("PRAGMA query_only=OFF")
        totals = await ledger.run_totals(RUN)
        assert totals.reserved_tokens == held.tokens
        await ledger.close()
        async with opened(tmp_path, grant) as (again, reopened):
            (entry,) = await reopened.entries_after(0)
            assert (entry.outcome, entry.tokens.total) == (Outcome.UNKNOWN, held.tokens)
            assert only(again).spent_tokens == held.tokens

    run(scene)


def test_changes_tell_what_is_spent_and_refused_as_it_happens(tmp_path: Path) -> None:
    """A follower sees the run at once, and again after each change."""
    grant = grant_of(1, run=Budget(tokens=5_000))

    async def scene() -> None:
        async with opened(tmp_path, grant) as (admission, _):
            changes = admission.changes()
            assert (await anext(changes)).spent_tokens == 0
            await complete(admission, await admit(admission, grant, ask_for(1_000, 2_000)))
            while (await anext(changes)).spent_tokens != USED.total:
                pass
            await admission.refuse(
                grant.workspace,
                provider="anthropic",
                model="x" * 5_000,
                outcome=Outcome.REFUSED_LIMIT,
                status=403,
                detail="the model is not allowed",
            )
            while not (await anext(changes)).grants[0].refused:
                pass
            assert not only(admission).is_exhausted
            await changes.aclose()  # type: ignore[attr-defined]  # an async generator

    run(scene)
