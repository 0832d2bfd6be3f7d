"""One provider's pace for the whole fan-out: slots, requests a minute, and one shared back-off.

Use, by the HTTP side, after the reservation and before each try of sending:

    started = governor.now()
    while True:
        async with governor.turn(attempt):        # waits: fair between attempts
            answer = await send()
            if answer.status in THROTTLED and nothing went to the agent yet:
                plan = governor.throttled(retry_after=answer.headers.get("retry-after"), since=started)
                if plan.may_retry: continue       # leaves the turn; the next one waits long enough
                ...pass the answer on with plan.retry_after_seconds
            else: governor.answered()
            ...stream...
        break

So agents seldom see a 429 or 529: all of them wait once, together. What decides is pure
(`pace.py`) and is handed the time.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from forkyard.base.clock import Clock, SystemClock
from forkyard.gateway.interface import Provider
from forkyard.model.ids import AttemptId

THROTTLED = frozenset({429, 503, 529})
"""Answers by which a provider asks for patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlan:
    """What to do about an answer that asked for patience."""

    may_retry: bool
    """False: the bounded time is over, pass it on."""
    retry_after_seconds: int
    """To pass on: when the shared back-off ends, rounded up, at least 1."""


class Governor:
    """The pace of one provider."""

    def __init__(self, provider: Provider, *, clock: Clock | None = None) -> None:
        """Take the provider's limits; there may be none."""
        self._clock = clock or SystemClock()

    def now(self) -> float:
        """Give the time that `since` is measured in."""
        return self._clock.monotonic()

    def change(self, provider: Provider) -> None:
        """Take new limits; who waits goes on waiting under them."""
        raise NotImplementedError

    def turn(self, attempt: AttemptId) -> AbstractAsyncContextManager[None]:
        """Hold one of the provider's slots for one try, until its answer has been read whole.

        Raises:
            PatienceError: On entering: the back-off lasts longer than a request may wait.

        Cancellation:
            Leaves the queue, or gives the slot back.
        """
        raise NotImplementedError

    def throttled(self, *, retry_after: str | None, since: float) -> RetryPlan:
        """Take note of a 429, 503 or 529: everyone backs off.

        Args:
            retry_after: The header: seconds or an HTTP date; what cannot be read counts as None.
            since: When this request first asked for a turn.
        """
        raise NotImplementedError

    def answered(self) -> None:
        """Take note that the provider answered otherwise: the next back-off starts short again."""
        raise NotImplementedError

    def position(self, attempt: AttemptId) -> int | None:
        """Give the place in line of an attempt's next request, 1 is next; None: none waits."""
        raise NotImplementedError

    def waiting(self, attempt: AttemptId) -> int:
        """Count an attempt's requests in line."""
        raise NotImplementedError

    @property
    def back_off_seconds(self) -> float:
        """Say how long the shared back-off still lasts; 0: it does not."""
        raise NotImplementedError
