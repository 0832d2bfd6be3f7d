"""The gateway's ledger as the event loop sees it: durable reservations, settled for good.

Owns the thread that alone writes the file (`ledger_file.py` says what is in it). Whatever is
asked for while one commit is being synced goes into the next one together, so the cost of a
request does not grow with their number. Operations take effect in the order of the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forkyard.base.clock import Clock, SystemClock
from forkyard.gateway.interface import LedgerEntry, Outcome
from forkyard.model.budget import Budget, Grant, TokenCounts
from forkyard.model.ids import AttemptId, RunId, WorkspaceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What one attempt or run has spent and holds reserved, as the file tells it."""

    spent_tokens: int = 0
    spent_micro_usd: int = 0
    overrun_tokens: int = 0
    """Reported by a provider beyond the upper bound and beyond the budget: its breach, not ours."""
    overrun_micro_usd: int = 0
    reserved_tokens: int = 0
    reserved_micro_usd: int = 0
    requests: int = 0
    """Ever reserved for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReservation:
    """One request that is about to be sent."""

    id: str
    grant: Grant
    provider: str
    model: str
    input_tokens: int
    """Upper bound."""
    output_tokens: int
    """The limit that it is sent with."""
    micro_usd: int | None
    """Upper bound; None: unpriced."""
    price_version: str

    @property
    def tokens(self) -> int:
        """Give what a token budget counts at most."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How one request ended and what it used."""

    outcome: Outcome
    tokens: TokenCounts
    micro_usd: int | None
    is_estimated: bool = False
    status: int | None = None
    first_byte_milliseconds: int | None = None
    detail: str = ""


class Ledger:
    """An open ledger; one process has it at a time."""

    @classmethod
    async def open(
        cls, path: Path, *, clock: Clock | None = None, allow_volatile: bool = False
    ) -> Ledger:
        """Open or create the file and settle what the last process left in flight.

        Those are settled at their upper bound as Outcome.UNKNOWN: they may have been sent.

        Raises:
            StoreError: Held by another process, damaged, unfit file system, no permission.
        """
        raise NotImplementedError

    @property
    def id(self) -> str:
        """Name this file: sequence numbers of another one mean nothing here."""
        raise NotImplementedError

    async def set_budgets(self, grant: Grant) -> tuple[Totals, Totals]:
        """Write a grant's limits into the file, which then keeps them itself.

        A limit below what is spent and reserved already becomes just that.

        Returns:
            What its attempt and its run have spent so far.
        """
        raise NotImplementedError

    async def reserve(self, row: NewReservation) -> None:
        """Hold back what a request may cost.

        Raises:
            InternalError: It does not fit; whoever decided that it does was wrong.
            StoreError: The file cannot be written.

        Durability:
            On disk before this returns: only then may the request be sent.

        Cancellation:
            The row may be written all the same: `release` it.
        """
        raise NotImplementedError

    async def settle(self, id_: str, settlement: Settlement) -> LedgerEntry:
        """Turn a reservation into what was really spent.

        Durability:
            On disk before this returns.
        """
        raise NotImplementedError

    async def release(self, id_: str) -> None:
        """Give a reservation back: nothing was sent. One that does not exist is fine."""
        raise NotImplementedError

    async def record(
        self, grant: Grant, *, provider: str, model: str, settlement: Settlement
    ) -> LedgerEntry:
        """Enter a request that was never reserved for: refused, or wrong. It spends nothing."""
        raise NotImplementedError

    async def entries_after(self, sequence: int, *, limit: int = 1000) -> tuple[LedgerEntry, ...]:
        """Read settled entries in the order of their sequence numbers."""
        raise NotImplementedError

    async def entries_of(self, workspace: WorkspaceId) -> tuple[LedgerEntry, ...]:
        """Read everything that one workspace asked for."""
        raise NotImplementedError

    async def attempt_totals(self, attempt: AttemptId) -> Totals:
        """Read one attempt's totals."""
        raise NotImplementedError

    async def run_totals(self, run: RunId) -> Totals:
        """Read one run's totals."""
        raise NotImplementedError

    async def close(self) -> None:
        """Write what was asked for, then let go of the file."""
        raise NotImplementedError


__all__ = ["Budget", "Ledger", "NewReservation", "Settlement", "Totals"]
