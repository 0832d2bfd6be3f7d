"""Knowing when a server that was started on demand has nothing left to do."""

from __future__ import annotations

from collections.abc import Callable

from forkyard.base.clock import Clock


class IdleWatch:
    """Remembers since when nothing has been going on. Asked from one event loop."""

    def __init__(self, clock: Clock, is_busy: Callable[[], bool], idle_seconds: float) -> None:
        """Start counting now.

        Args:
            clock: For intervals.
            is_busy: Whether a client is connected or work is in progress.
            idle_seconds: How long nothing must happen before it is time to exit.
        """
        self._clock = clock
        self._is_busy = is_busy
        self._idle_seconds = idle_seconds
        self._since = clock.monotonic()

    def is_time_to_exit(self) -> bool:
        """Look once; call it about every second."""
        now = self._clock.monotonic()
        if self._is_busy():
            self._since = now
            return False
        return now - self._since >= self._idle_seconds
