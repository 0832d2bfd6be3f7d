"""Copying the gateway's settled ledger into the journal, each entry once, in the ledger's order.

How far it was copied is in the rows that it was copied into, written in the same transaction; so
a crash at any line repeats nothing and leaves nothing out.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from forkyard.coordinator.view import CLEANUP_DONE, is_terminal
from forkyard.gateway.interface import Copied, Gateway, LedgerEntry, Outcome
from forkyard.model.budget import UsageRow
from forkyard.store.journal import Change, Journal

ENTRIES_AT_ONCE = 1000
KEPT_SECONDS = 30 * 86400.0
"""How long the gateway keeps an entry that is copied: for whoever asks what a bill was made of."""
_REFUSED = frozenset({Outcome.REFUSED_BUDGET, Outcome.REFUSED_LIMIT})


@dataclass(slots=True, kw_only=True)
class UsageCopier:
    """See the module. One at a time writes rows of usage."""

    journal: Journal
    gateway: Gateway
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _ledger: str | None = None
    """The ledger that is being copied; None: not heard of yet."""

    async def copy(self, *, known: Sequence[LedgerEntry] = ()) -> None:
        """Copy everything that is settled by now.

        Args:
            known: Entries seen otherwise: they tell of a ledger that took another one's place.

        Raises:
            ForkyardError: The gateway or the journal could not be used; ask again.

        Cancellation:
            What one transaction holds is copied or not.

        Durability:
            In the journal when this returns.
        """
        async with self._lock:
            if known and known[-1].ledger != self._ledger:
                self._ledger = known[-1].ledger
            while await self._copy_batch():
                pass

    async def prune(
        self, now: str, *, kept_seconds: float = KEPT_SECONDS, is_dry: bool = False
    ) -> int:
        """Have the gateway forget what was copied long ago; give how many entries went.

        What an attempt that is not over is to be judged by stays, however old it is.

        Raises:
            ForkyardError: The gateway or the journal could not be used; ask again.
        """
        state = self.journal.state
        before = (datetime.fromisoformat(now) - timedelta(seconds=kept_seconds)).isoformat(
            timespec="milliseconds"
        )
        if not any(row.day <= before[:10] for row in state.usage.values()):
            return 0
        await self.copy()
        live = tuple(
            one.workspace
            for one in state.attempts.values()
            if one.workspace is not None and not (is_terminal(one) and one.cleanup == CLEANUP_DONE)
        )
        gone = 0
        for ledger in {row.ledger for row in state.usage.values()}:
            through = self._copied(ledger)
            copied = Copied(ledger=ledger, through=through, before=before, live=live, is_dry=is_dry)
            gone += await self.gateway.prune(copied)
        return gone

    async def _copy_batch(self) -> bool:
        rows = self.journal.state.usage
        if self._ledger is None and rows:
            self._ledger = next(reversed(rows.values())).ledger
        after = 0 if self._ledger is None else self._copied(self._ledger)
        entries = await self.gateway.entries_after(after, limit=ENTRIES_AT_ONCE)
        if not entries:
            return False
        if entries[0].ledger != self._ledger:
            # another ledger than the one whose end was asked for: from its own beginning
            self._ledger = entries[0].ledger
            if self._copied(self._ledger) != after:
                return True
        await self._take_in(entries)
        return True

    async def _take_in(self, entries: Sequence[LedgerEntry]) -> None:
        rows = self.journal.state.usage
        changed = booked(rows, entries)
        await self.journal.append_all(
            [Change(entity=row, note="spent", expect=rows.get(row.id)) for row in changed.values()]
        )

    def _copied(self, ledger: str) -> int:
        return max(
            (
                row.ledger_sequence
                for row in self.journal.state.usage.values()
                if row.ledger == ledger
            ),
            default=0,
        )


def booked(rows: Mapping[str, UsageRow], entries: Sequence[LedgerEntry]) -> dict[str, UsageRow]:
    """Add entries to the rows they belong to; pure.

    Args:
        rows: As they are.
        entries: None of them is in `rows` yet.

    Returns:
        The rows that change.
    """
    changed: dict[str, UsageRow] = {}
    for entry in entries:
        row = _row_of(entry)
        row = changed.get(row.id) or rows.get(row.id) or row
        is_sent = entry.outcome not in _REFUSED
        is_unpriced = entry.micro_usd is None and entry.tokens.total > 0
        changed[row.id] = replace(
            row,
            tokens=row.tokens + entry.tokens,
            micro_usd=row.micro_usd + (entry.micro_usd or 0),
            requests=row.requests + is_sent,
            unpriced_requests=row.unpriced_requests + is_unpriced,
            estimated_requests=row.estimated_requests + entry.is_estimated,
            first_byte_milliseconds=row.first_byte_milliseconds
            + (entry.first_byte_milliseconds or 0),
            price_version=entry.price_version or row.price_version,
            ledger_sequence=entry.sequence,
        )
    return changed


def _row_of(entry: LedgerEntry) -> UsageRow:
    day = entry.at[:10]
    group = (
        entry.ledger, entry.run, entry.attempt, entry.agent, entry.provider, entry.model, day,
    )  # fmt: skip
    digest = hashlib.sha256("\0".join(group).encode("utf-8", "surrogateescape")).hexdigest()
    return UsageRow(
        id=f"use_{digest[:24]}",
        run=entry.run,
        attempt=entry.attempt,
        agent=entry.agent,
        provider=entry.provider,
        model=entry.model,
        day=day,
        ledger=entry.ledger,
    )
