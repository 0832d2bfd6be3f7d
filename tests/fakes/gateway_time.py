"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


class StandingClock:
    """Wall and monotonic time, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> str:
        """Give the wall time."""
        return (START + timedelta(seconds=self.seconds - 1000.0)).isoformat()

    def monotonic(self) -> float:
        """Give the seconds so far."""
        return self.seconds
