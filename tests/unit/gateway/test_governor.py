"""The governor's waiting: turns, cancellation, and what agents are told when patience ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fakes.gateway_time import StandingClock
from forkyard.gateway.governor import Governor, PatienceError
from forkyard.gateway.interface import Api, Provider
from forkyard.model.ids import AttemptId

A, B = AttemptId("att_a"), AttemptId("att_b")
SLOT = Provider(name="p", api=Api.OPENAI, base_url="http://p", concurrent_requests=1)


async def settle_down() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def test_turn_is_given_back_when_its_holder_is_cancelled_or_waits() -> None:
    """Nothing stays held or in line, whoever is cancelled when."""

    async def scene() -> None:
        touched: list[AttemptId] = []
        governor = Governor(SLOT, clock=StandingClock(), on_change=touched.append)

        async def hold(attempt: AttemptId) -> None:
            async with governor.turn(attempt):
                await asyncio.Event().wait()

        holder = asyncio.create_task(hold(A))
        waiter = asyncio.create_task(hold(B))
        await settle_down()
        assert (governor.position(A), governor.position(B), governor.waiting(B)) == (None, 1, 1)
        waiter.cancel()
        await settle_down()
        assert governor.waiting(B) == 0
        next_one = asyncio.create_task(hold(B))
        await settle_down()
        holder.cancel()
        next_one.cancel()  # in the same moment as its turn comes
        await settle_down()
        async with governor.turn(A):
            assert governor.waiting(A) == 0
        assert {A, B} <= set(touched)

    run(scene)


def test_all_wait_for_one_back_off_and_go_on_after_it() -> None:
    """A 429 of one attempt holds the others, until the stated time is over."""

    async def scene() -> None:
        clock = StandingClock()
        governor = Governor(SLOT, clock=clock)
        started = governor.now()
        async with governor.turn(A):
            plan = governor.throttled(retry_after="2", since=started)
        assert plan.may_retry
        assert plan.retry_after_seconds == 2
        other = asyncio.create_task(_through(governor, B))
        await settle_down()
        assert not other.done()
        assert governor.back_off_seconds == 2
        clock.seconds += 2
        governor.answered()
        await other

    run(scene)


async def _through(governor: Governor, attempt: AttemptId) -> None:
    async with governor.turn(attempt):
        pass


def test_who_waits_is_told_when_patience_ends() -> None:
    """Once nothing but refusals came for long, everyone in line learns when to come back."""

    async def scene() -> None:
        clock = StandingClock()
        governor = Governor(SLOT, clock=clock)
        async with governor.turn(A):
            waiter = asyncio.create_task(_through(governor, B))
            await settle_down()
            plan = governor.throttled(retry_after="200", since=governor.now())
        assert not plan.may_retry
        assert plan.retry_after_seconds == 200
        with pytest.raises(PatienceError) as told:
            await waiter
        assert told.value.retry_after_seconds == 200
        with pytest.raises(PatienceError):
            await _through(governor, A)
        clock.seconds += 201
        await _through(governor, A)

    run(scene)


def test_one_request_is_not_tried_for_ever_when_others_get_answers() -> None:
    """A request that has been tried for long is passed on, though the provider is well."""

    async def scene() -> None:
        clock = StandingClock()
        governor = Governor(SLOT, clock=clock)
        started = governor.now()
        clock.seconds += 100
        governor.answered()

        assert not governor.throttled(retry_after="1", since=started).may_retry

    run(scene)


def test_new_limits_hold_for_who_waits_already() -> None:
    """More slots let the line move at once."""

    async def scene() -> None:
        governor = Governor(SLOT, clock=StandingClock())
        async with governor.turn(A):
            waiter = asyncio.create_task(_through(governor, B))
            await settle_down()
            assert not waiter.done()
            governor.change(Provider(name="p", api=Api.OPENAI, base_url="http://p"))
            await waiter

    run(scene)


def test_back_off_ends_by_itself_in_real_time() -> None:
    """The timer wakes the line without anybody asking."""

    async def scene() -> None:
        governor = Governor(SLOT)
        governor.throttled(retry_after="0.05", since=governor.now())
        await _through(governor, A)

    run(scene)
