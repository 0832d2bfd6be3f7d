"""When to try a delivery again: later and later, up to a longest wait."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_WAIT_SECONDS = 300.0
MOST_TRIES = 8


def wait_seconds(tries: int) -> float:
    """Give the wait after so many failed tries: 1, 2, 4 ... seconds, never above the longest."""
    return min(2.0 ** (tries - 1), LONGEST_WAIT_SECONDS)


class RetrySchedule:
    """The next try of one delivery."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Take the clock that says what time it is, in seconds."""
        self._clock = clock

    def next_try(self, tries: int) -> float | None:
        """Give the time of the next try, or None once it was tried often enough."""
        if tries >= MOST_TRIES:
            return None
        return time.time() + wait_seconds(tries)
