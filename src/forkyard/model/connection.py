"""What a workspace with an allowlist connected to, or tried to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MOST_LISTED = 400
"""Connections of one workspace that are listed one by one; later ones are counted by host."""
MOST_HOSTS = 200
"""Hosts by which later ones are counted; then all others together."""


class ConnectionOutcome(StrEnum):
    """How a connection ended."""

    OPEN = "open"
    CLOSED = "closed"
    """As the two ends wanted it."""
    REFUSED = "refused"
    """By the allowlist or the rules beside it."""
    FAILED = "failed"
    """It was let in, and the host could not be found or reached."""
    CUT = "cut"
    """Ended by us: idle, its workspace stopped, or the proxy died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One connection, or an attempt at one."""

    at: str
    """ISO time, UTC, of its beginning."""
    host: str
    """As it was asked for, where that is a name; else in words."""
    port: int
    outcome: ConnectionOutcome
    reason: str = ""
    """Why it did not end as the two ends wanted, one clause."""
    address: str | None = None
    """Where the name led."""
    sent_bytes: int = 0
    """From the workspace."""
    received_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionCount:
    """Connections that are not listed one by one."""

    host: str
    """`*`: all hosts that are not counted by themselves."""
    port: int
    outcome: ConnectionOutcome
    count: int
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """All of one workspace: the first ones one by one, the others counted."""

    listed: tuple[Connection, ...] = ()
    counted: tuple[ConnectionCount, ...] = ()

    @property
    def total(self) -> int:
        """Count all of them."""
        return len(self.listed) + sum(one.count for one in self.counted)
