"""When a workspace is idle, and when its time has come."""

from __future__ import annotations

from forkyard.model.ids import WorkspaceId
from forkyard.server.lifetimes import expiry
from forkyard.server.presence import Presence


class Noon:
    """A clock that stands."""

    def now(self) -> str:
        """Give noon."""
        return "2026-01-01T12:00:00.000+00:00"

    def monotonic(self) -> float:
        """Give nothing."""
        return 0.0


def test_an_expiry_is_that_long_from_now() -> None:
    """In UTC, as everything in the journal."""
    assert expiry(Noon(), 3600.5) == "2026-01-01T13:00:00.500+00:00"
    assert expiry(Noon(), None) is None


def test_who_left_twice_left_once() -> None:
    """Counting out is idempotent, so that a clean-up may repeat."""
    presence, mine = Presence(), WorkspaceId("ws_000001")
    first, second = presence.hold(mine), presence.hold(mine)

    first()
    first()
    assert presence.is_anybody_in(mine)
    second()
    assert not presence.is_anybody_in(mine)
