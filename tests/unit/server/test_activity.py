"""When a server that was started on demand may go."""

from __future__ import annotations

from forkyard.server.activity import IdleWatch


class FakeClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        """Start at zero."""
        self.seconds = 0.0

    def now(self) -> str:
        """Give no particular time."""
        return "2026-01-01T00:00:00.000+00:00"

    def monotonic(self) -> float:
        """Give the seconds that were set."""
        return self.seconds


def test_it_is_time_to_exit_only_when_nothing_happened_for_the_whole_while() -> None:
    """Every look that finds work starts the count again."""
    clock, busy = FakeClock(), True
    watch = IdleWatch(clock, lambda: busy, 10.0)

    clock.seconds = 100.0
    assert not watch.is_time_to_exit()
    busy = False
    clock.seconds = 109.9
    assert not watch.is_time_to_exit()
    busy = True
    assert not watch.is_time_to_exit()
    busy = False
    clock.seconds = 119.8
    assert not watch.is_time_to_exit()
    clock.seconds = 119.9
    assert watch.is_time_to_exit()
