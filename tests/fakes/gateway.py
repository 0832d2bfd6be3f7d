"""A gateway in memory, and an installer with nothing to install: they keep the real ones' rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from forkyard.errors import GatewayError
from forkyard.gateway.interface import Copied, GrantStatus, LedgerEntry, Outcome, RunStatus
from forkyard.model.budget import Grant, TokenCounts
from forkyard.model.ids import RunId, WorkspaceId
from forkyard.model.workspace import ReadOnlyMount


@dataclass(slots=True)
class FakeGateway:
    """Grants and a ledger; a test spends and refuses by hand."""

    ledger: str = "led_1"
    grants: dict[WorkspaceId, Grant] = field(default_factory=dict)
    granted: list[Grant] = field(default_factory=list)
    """Every grant ever given, again counted again."""
    revoked: list[WorkspaceId] = field(default_factory=list)
    entries: list[LedgerEntry] = field(default_factory=list)
    exhausted: dict[WorkspaceId, str] = field(default_factory=dict)
    pruned: int = 0
    spent: dict[RunId, dict[str, str]] = field(default_factory=dict)
    trouble: str | None = None
    on_grant: list[tuple[Outcome, int | None]] = field(default_factory=list)
    """What each new grant asks for at once, as outcome and status."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _runs: list[RunId] = field(default_factory=list)

    async def grant(self, grant: Grant) -> None:
        """Let a workspace in."""
        is_new = grant.workspace not in self.grants
        self.grants[grant.workspace] = grant  # it stands for the next gateway
        self._refuse_if_asked()
        self.granted.append(grant)
        if is_new:
            for outcome, status in self.on_grant:
                self.settle(grant, outcome, status=status)

    async def revoke(self, workspace: WorkspaceId) -> tuple[LedgerEntry, ...]:
        """Close it; the same entries again when asked again."""
        self.grants.pop(workspace, None)
        self._refuse_if_asked()
        self.revoked.append(workspace)
        return tuple(one for one in self.entries if one.workspace == workspace)

    def status(self, run: RunId) -> RunStatus | None:
        """Give what is spent."""
        mine = [one for one in self.grants.values() if one.run == run]
        if not mine:
            return None
        return RunStatus(
            run=run,
            budget=mine[0].run_budget,
            spent_tokens=sum(one.tokens.total for one in self.entries if one.run == run),
            spent_micro_usd=sum(one.micro_usd or 0 for one in self.entries if one.run == run),
            reserved_tokens=0,
            reserved_micro_usd=0,
            grants=tuple(self._status_of(one) for one in mine),
            spent=dict(self.spent.get(run, {})),
        )

    async def changes(self) -> AsyncIterator[RunStatus]:
        """Give what changed until now, then as it changes."""
        seen = 0
        while True:
            while seen < len(self._runs):
                status = self.status(self._runs[seen])
                seen += 1
                if status is not None:
                    yield status
            changed = self._changed
            await changed.wait()

    async def entries_after(self, sequence: int, *, limit: int = 1000) -> tuple[LedgerEntry, ...]:
        """Read the ledger."""
        self._refuse_if_asked()
        mine = [
            one for one in self.entries if one.ledger == self.ledger and one.sequence > sequence
        ]
        return tuple(mine[:limit])

    async def prune(self, copied: Copied) -> int:
        """Forget what is old enough."""
        self._refuse_if_asked()
        if copied.ledger != self.ledger:
            return 0
        old = [
            one
            for one in self.entries
            if one.ledger == copied.ledger
            and one.sequence <= copied.through
            and one.at < copied.before
            and one.workspace not in copied.live
        ]
        if not copied.is_dry:
            self.pruned += len(old)
            self.entries = [one for one in self.entries if one not in old]
        return len(old)

    async def settings_changed(self) -> None:
        """Have no settings."""

    # -- by hand -------------------------------------------------------------------------------

    def settle(
        self,
        grant: Grant,
        outcome: Outcome = Outcome.COMPLETE,
        *,
        status: int | None = 200,
        tokens: TokenCounts | None = None,
        micro_usd: int | None = 1000,
        model: str = "model-1",
        at: str = "2026-01-02T03:04:05.000+00:00",
    ) -> LedgerEntry:
        """Settle one request."""
        is_refused = outcome in (Outcome.REFUSED_BUDGET, Outcome.REFUSED_LIMIT)
        entry = LedgerEntry(
            sequence=1 + self.pruned + sum(one.ledger == self.ledger for one in self.entries),
            ledger=self.ledger,
            workspace=grant.workspace,
            run=grant.run,
            attempt=grant.attempt,
            agent=grant.agent,
            provider="anthropic",
            model=model,
            at=at,
            tokens=TokenCounts() if is_refused else tokens or TokenCounts(input=10, output=5),
            micro_usd=0 if is_refused else micro_usd,
            price_version="test",
            is_estimated=False,
            outcome=outcome,
            status=status,
            first_byte_milliseconds=None if is_refused else 12,
            detail=f"it was {outcome}",
        )
        self.entries.append(entry)
        self._tell(grant.run)
        return entry

    def refuse(self, grant: Grant, why: str = "the run's budget is used up") -> None:
        """Refuse a request for its budget: the orchestrator is to end the agent."""
        entry = self.settle(grant, Outcome.REFUSED_BUDGET, status=402)
        self.entries[-1] = replace(entry, detail=why)
        self.exhausted[grant.workspace] = why
        self._tell(grant.run)

    def _tell(self, run: RunId) -> None:
        self._runs.append(run)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _refuse_if_asked(self) -> None:
        if self.trouble is not None:
            raise GatewayError(self.trouble)

    def _status_of(self, grant: Grant) -> GrantStatus:
        mine = [one for one in self.entries if one.workspace == grant.workspace]
        return GrantStatus(
            workspace=grant.workspace,
            run=grant.run,
            attempt=grant.attempt,
            spent_tokens=sum(one.tokens.total for one in mine),
            spent_micro_usd=sum(one.micro_usd or 0 for one in mine),
            reserved_tokens=0,
            reserved_micro_usd=0,
            requests=len(mine),
            in_flight=0,
            waiting=0,
            queue_position=None,
            refused=sum(one.outcome is Outcome.REFUSED_BUDGET for one in mine),
            refusal=self.exhausted.get(grant.workspace),
            is_exhausted=grant.workspace in self.exhausted,
        )


@dataclass(slots=True)
class FakeAgents:
    """Says that everything is installed, unless a test wants otherwise."""

    missing: set[str] = field(default_factory=set)
    trouble: str | None = None
    shown: tuple[ReadOnlyMount, ...] = ()

    def is_installed(self, driver: str) -> bool:
        """Say whether it is there."""
        return driver not in self.missing

    async def mounts(self, driver: str) -> tuple[ReadOnlyMount, ...]:
        """Install and show."""
        if self.trouble is not None:
            raise GatewayError(self.trouble)
        self.missing.discard(driver)
        return self.shown
