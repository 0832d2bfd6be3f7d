"""One provider's pace for the whole fan-out: slots, requests a minute, and one shared back-off.

Use, by the HTTP side, after the reservation:

    started = governor.now()
    while True:
        async with governor.turn(attempt):      # waits: fair between attempts
            answer = await send()
            if answer.status in THROTTLED:      # so nothing went to the agent yet
                plan = governor.throttled(
                    retry_after=answer.headers.get("retry-after"), since=started
                )
                if plan.may_retry:
                    continue                    # gives the turn back; the next one comes in time
                ...pass it on with retry-after: plan.retry_after_seconds
            else:
                governor.answered()
            ...stream it, still holding the turn...
        break

So agents seldom see a 429 or 529: all of them wait, once and together. What decides is pure
(`pace.py`) and is handed the time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count

from forkyard.base.clock import Clock, SystemClock
from forkyard.gateway.interface import Provider
from forkyard.gateway.pace import REQUEST_PATIENCE_SECONDS, Pace, stated_seconds
from forkyard.model.ids import AttemptId

THROTTLED = frozenset({429, 503, 529})
"""Answers by which a provider asks for patience."""


class PatienceError(Exception):
    """A provider has asked for patience for longer than we hide it: tell the agent to come back."""

    def __init__(self, retry_after_seconds: int) -> None:
        """Keep when the shared back-off ends."""
        super().__init__(f"the provider asks for patience: {retry_after_seconds} s more")
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlan:
    """What to do about an answer that asked for patience."""

    may_retry: bool
    """False: the bounded time is over, pass it on."""
    retry_after_seconds: int
    """To pass on: when the shared back-off ends, rounded up, at least 1."""


class Governor:
    """The pace of one provider."""

    def __init__(
        self,
        provider: Provider,
        *,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        on_change: Callable[[AttemptId], None] = lambda _: None,
    ) -> None:
        """Take the provider's limits and who wants to know whose place in line changed.

        Args:
            provider: Its limits; there may be none.
            clock: Of the back-off and the minute.
            jitter: Numbers from 0 to 1.
            on_change: Called with the attempt that joined or left the line.
        """
        self._clock = clock or SystemClock()
        self._on_change = on_change
        self._pace = Pace(
            concurrent=provider.concurrent_requests,
            per_minute=provider.requests_per_minute,
            random=jitter,
        )
        self._keys = count(1)
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def change(self, provider: Provider) -> None:
        """Take new limits; who waits goes on waiting under them."""
        self._pace.concurrent = provider.concurrent_requests
        self._pace.per_minute = provider.requests_per_minute
        self._move()

    @asynccontextmanager
    async def turn(self, attempt: AttemptId) -> AsyncIterator[None]:
        """Hold one of the provider's slots for one try, until its answer has been read whole.

        Raises:
            PatienceError: On entering: the back-off lasts longer than it is hidden from agents.

        Cancellation:
            Leaves the line, or gives the slot back.
        """
        key = next(self._keys)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[key] = waiter
        self._pace.enqueue(key, attempt)
        self._on_change(attempt)
        self._move()
        try:
            await waiter
            self._on_change(attempt)
            yield
        finally:
            self._waiters.pop(key, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # a cancelled task never looked at it
            self._pace.drop(key, attempt)
            self._pace.finish(key)
            self._on_change(attempt)
            self._move()

    def now(self) -> float:
        """Give the time that `since` is measured in."""
        return self._clock.monotonic()

    def throttled(self, *, retry_after: str | None, since: float) -> RetryPlan:
        """Take note of a 429, 503 or 529: everyone backs off.

        Args:
            retry_after: The header: seconds or an HTTP date; what cannot be read counts as None.
            since: When this request first asked for a turn.
        """
        now = self._clock.monotonic()
        wall = datetime.fromisoformat(self._clock.now())
        self._pace.throttled(now, stated_seconds(retry_after, wall))
        has_waited = self._pace.back_off_until - since > REQUEST_PATIENCE_SECONDS
        is_over = has_waited or self._pace.is_patience_over(now)
        self._move()
        return RetryPlan(may_retry=not is_over, retry_after_seconds=self._pace.retry_after(now))

    def answered(self) -> None:
        """Take note that the provider answered otherwise: the next back-off starts short again."""
        self._pace.answered()
        self._move()

    def position(self, attempt: AttemptId) -> int | None:
        """Give the place in line of an attempt's next request, 1 is next; None: none waits."""
        return self._pace.positions().get(attempt)

    def waiting(self, attempt: AttemptId) -> int:
        """Count an attempt's requests in line."""
        return self._pace.waiting(attempt)

    @property
    def back_off_seconds(self) -> float:
        """Say how long the shared back-off still lasts; 0: it does not."""
        return max(0.0, self._pace.back_off_until - self._clock.monotonic())

    def _move(self) -> None:
        now = self._clock.monotonic()
        while (key := self._pace.start_next(now)) is not None:
            waiter = self._waiters.pop(key)
            if waiter.done():  # its task was cancelled at this very moment
                self._pace.finish(key)
            else:
                waiter.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pace.is_patience_over(now) and self._pace.back_off_until > now:
            for waiter in self._waiters.values():
                if not waiter.done():
                    waiter.set_exception(PatienceError(self._pace.retry_after(now)))
        elif (wait := self._pace.next_start(now)) is not None:
            # a timer may fire a little early: then it is set again for the rest
            self._timer = asyncio.get_running_loop().call_later(wait, self._move)
