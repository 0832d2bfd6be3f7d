"""What the rest of the program asks of the gateway, and the facts that it gives back.

The gateway is a process of its own with a user id of its own. The server tells it over a unix
socket which providers, keys and grants there are; shims hand it the listening sockets that they
made inside sandboxes, each under its workspace's name: whoever connects to one of them *is* that
workspace. A socket whose grant is not known yet is kept and not answered: agents wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from forkyard.model.budget import Budget, Grant, TokenCounts
from forkyard.model.ids import AttemptId, RunId, WorkspaceId
from forkyard.model.provider import Api, GatewaySettings, Price, Provider

__all__ = [
    "Api",
    "Copied",
    "Finish",
    "Gateway",
    "GatewaySettings",
    "GrantStatus",
    "LedgerEntry",
    "Outcome",
    "Price",
    "Provider",
    "RunStatus",
]


class Outcome(StrEnum):
    """How one request ended."""

    COMPLETE = "complete"
    CLIENT_GONE = "client-gone"
    """The agent went away; the provider's answer was read on, or settled at the upper bound."""
    PROVIDER_ERROR = "provider-error"
    """An error status, a cut, stalled or malformed stream, no answer in time, unreachable."""
    BAD_REQUEST = "bad-request"
    """The provider, or we, found the agent's request wrong (400, 404 of a path, 413, 422)."""
    REFUSED_BUDGET = "refused-budget"
    REFUSED_LIMIT = "refused-limit"
    """More requests than the grant has, or a model or path that is not allowed."""
    UNKNOWN = "unknown"
    """The gateway died while it was under way; settled at the upper bound."""


class Finish(StrEnum):
    """Why a model stopped writing, as its provider told it."""

    UNKNOWN = ""
    DONE = "done"
    """It had said what it wanted, or called a tool."""
    LENGTH = "length"
    """It came to the most output that it was allowed."""
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One settled request."""

    sequence: int
    ledger: str
    workspace: WorkspaceId
    run: RunId
    attempt: AttemptId
    agent: str
    provider: str
    model: str
    at: str
    """ISO time, UTC, of its settlement."""
    tokens: TokenCounts
    micro_usd: int | None
    """None: the model has no known price."""
    price_version: str
    is_estimated: bool
    outcome: Outcome
    status: int | None
    """What the agent was answered; None where it was gone."""
    first_byte_milliseconds: int | None
    detail: str = ""
    """A clause for a person: which fault it was. Never a byte of a body or a key."""
    is_clamped: bool = False
    """A budget let it write less than its agent had asked for."""
    finish: Finish = Finish.UNKNOWN

    @property
    def is_cut_short(self) -> bool:
        """Say whether its answer ended where a budget of ours had put its limit."""
        return self.is_clamped and self.finish is Finish.LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What of a ledger is in the journal as well, and what of that nobody asks for any more."""

    ledger: str
    through: int
    """Sequence number of the newest entry that the journal has."""
    before: str
    """ISO time, UTC: what was settled later stays."""
    live: tuple[WorkspaceId, ...] = ()
    """How these end is still to be told from their entries."""
    is_dry: bool = False
    """Only count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantStatus:
    """What one grant is doing now."""

    workspace: WorkspaceId
    run: RunId
    attempt: AttemptId
    spent_tokens: int
    spent_micro_usd: int
    reserved_tokens: int
    reserved_micro_usd: int
    requests: int
    in_flight: int
    waiting: int
    """Requests that wait for budget or for the provider's rate."""
    queue_position: int | None
    """1 is next; None where nothing waits."""
    refused: int
    refusal: str | None = None
    """Why the last one was refused, in words; once it is a budget the attempt is to end."""
    is_exhausted: bool = False
    """A budget refused this grant: the orchestrator ends its agent."""
    last_fault: Outcome | None = None
    """How its newest request ended, where that was no success; None after a success."""
    last_fault_detail: str = ""


EVERY_AGENT = "*"
"""Stands for all agents of a run; no agent has such a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What one run's budget is doing now."""

    run: RunId
    budget: Budget
    spent_tokens: int
    spent_micro_usd: int
    reserved_tokens: int
    reserved_micro_usd: int
    grants: tuple[GrantStatus, ...] = field(default=())
    spent: dict[str, str] = field(default_factory=dict)
    """Agent, or EVERY_AGENT -> why what is left is worth no further attempt's beginning."""

    def spent_for(self, agent: str) -> str | None:
        """Say why no further attempt of an agent is to begin; None: it may."""
        return self.spent.get(EVERY_AGENT) or self.spent.get(agent)


class Gateway(Protocol):
    """The server's side of the gateway (gateway/supervisor.py); each call is idempotent."""

    async def grant(self, grant: Grant) -> None:
        """Let a workspace in; said again to every gateway that starts later.

        Raises:
            ConfigError: With a money budget, one of its models has no known price.
        """
        ...

    async def revoke(self, workspace: WorkspaceId) -> tuple[LedgerEntry, ...]:
        """Close a workspace's sockets, cut its streams, settle what was open.

        Returns:
            The newest 1,000 entries of the workspace, in order, and before them the newest
            refusal of a budget where that is older. `entries_after` has them all.
        """
        ...

    def status(self, run: RunId) -> RunStatus | None:
        """Give what was last heard of a run; None: nothing of it is granted."""
        ...

    def changes(self) -> AsyncIterator[RunStatus]:
        """Follow what runs spend, wait for and are refused, as it happens."""
        ...

    async def entries_after(self, sequence: int, *, limit: int = 1000) -> tuple[LedgerEntry, ...]:
        """Read the settled ledger in its order."""
        ...

    async def prune(self, copied: Copied) -> int:
        """Forget settled entries that the journal has; budgets and sequence numbers stay.

        Returns:
            How many went; 0 also where another ledger is meant.
        """
        ...

    async def settings_changed(self) -> None:
        """Read providers and secrets anew and tell the gateway."""
        ...
