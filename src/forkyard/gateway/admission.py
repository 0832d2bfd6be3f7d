"""Who may send a request now: budgets, the ledger and a fair queue put together.

Use, by the HTTP side, for one request of one workspace:

    reservation = await admission.admit(workspace, ask, provider=..., price=...)    # may wait
    ...send with reservation.output_tokens as the limit...
    await admission.settle(reservation, outcome=..., tokens=..., status=...)

Exactly one of `settle` and `release` follows each `admit` that returned. Between attempts the
queue goes round; within one attempt it is first come, first served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from forkyard.gateway.budget import Ask
from forkyard.gateway.interface import LedgerEntry, Outcome, RunStatus
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.prices import ModelPrice
from forkyard.model.budget import Grant, TokenCounts
from forkyard.model.ids import RunId, WorkspaceId


class RefusedError(Exception):
    """A request that gets no reservation; the refusal is in the ledger already."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        """Keep which kind of refusal it is and why, in words that may reach the agent."""
        super().__init__(reason)
        self.outcome = outcome
        """REFUSED_BUDGET or REFUSED_LIMIT."""
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The right to send one request."""

    id: str
    grant: Grant
    provider: str
    model: str
    price: ModelPrice | None
    input_tokens: int
    output_tokens: int
    """The limit to send: less than what was asked for when it was clamped."""
    micro_usd: int | None
    """Upper bound of its cost; None: unpriced."""
    is_clamped: bool


class Admission:
    """All grants, their balances, and who waits."""

    def __init__(self, ledger: Ledger) -> None:
        """Take an open ledger, which stays the caller's to close."""
        self._ledger = ledger

    async def grant(self, grant: Grant) -> None:
        """Let a workspace in, or change its grant; again with the same is fine."""
        raise NotImplementedError

    def revoke(self, workspace: WorkspaceId) -> None:
        """Refuse what a workspace waits for and whatever it asks later; in flight stays open."""
        raise NotImplementedError

    def grant_of(self, workspace: WorkspaceId) -> Grant | None:
        """Give a workspace's grant; None: not let in yet, or no more."""
        raise NotImplementedError

    async def admit(
        self,
        workspace: WorkspaceId,
        ask: Ask,
        *,
        provider: str,
        model: str,
        price: ModelPrice | None,
    ) -> Reservation:
        """Wait for a request's turn and reserve for it.

        Raises:
            RefusedError: By a budget, the grant's request limit, or revoked.
            StoreError: The ledger cannot be written: nothing may be sent.

        Cancellation:
            At any point nothing of it stays reserved or queued.

        Durability:
            The reservation is on disk before this returns.
        """
        raise NotImplementedError

    async def settle(
        self,
        reservation: Reservation,
        *,
        outcome: Outcome,
        tokens: TokenCounts | None,
        is_estimated: bool = False,
        status: int | None = None,
        first_byte_milliseconds: int | None = None,
        detail: str = "",
    ) -> LedgerEntry:
        """Book what a request used, and let the next in line try.

        Args:
            reservation: From `admit`; settling it twice is an InternalError.
            outcome: How it ended.
            tokens: What the provider told, or a bound made of what it told (`is_estimated`);
                TokenCounts() where it certainly used nothing; None: nobody knows, so it is
                booked at its upper bound and marked as estimated.
            is_estimated: Whether `tokens` holds anything that the provider did not tell.
            status: What the agent was answered; None where it was gone.
            first_byte_milliseconds: From sending to the first byte of the answer's body.
            detail: A clause for a person.

        Cancellation:
            The settlement goes on.
        """
        raise NotImplementedError

    async def release(self, reservation: Reservation) -> None:
        """Give a reservation back: the request was never sent. Leaves no entry."""
        raise NotImplementedError

    async def refuse(
        self,
        workspace: WorkspaceId,
        *,
        provider: str,
        model: str,
        outcome: Outcome,
        status: int,
        detail: str,
    ) -> None:
        """Enter a request that was refused before it asked for a reservation."""
        raise NotImplementedError

    def status(self, run: RunId) -> RunStatus | None:
        """Say what a run and its workspaces spend, hold and wait for; None: none is let in."""
        raise NotImplementedError

    def changes(self) -> AsyncIterator[RunStatus]:
        """Follow every run, each change of one merged with those that follow at once."""
        raise NotImplementedError
