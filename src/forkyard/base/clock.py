"""Time as a collaborator, so that decisions about time can be tested without waiting."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the program asks of time."""

    def now(self) -> str:
        """Wall time as ISO 8601 in UTC: for people and records, never for order."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for time limits."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> str:
        """Give the wall time."""
        return datetime.now(tz=UTC).isoformat(timespec="milliseconds")

    def monotonic(self) -> float:
        """Give seconds since some start."""
        return time.monotonic()
