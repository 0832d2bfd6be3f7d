"""Attempts at the gateway: let in before they start, watched while they run, closed when over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forkyard.base.clock import Clock
from forkyard.coordinator.access import grant_of, is_let_in
from forkyard.coordinator.rows import names_of
from forkyard.coordinator.usage import UsageCopier
from forkyard.errors import ForkyardError, GatewayError, StoreError
from forkyard.gateway.interface import Gateway, LedgerEntry, RunStatus
from forkyard.model.ids import RunId, WorkspaceId
from forkyard.model.run import AgentSpec, Attempt, Run

_log = logging.getLogger(__name__)

REVOKE_SECONDS = 60.0
"""What a gateway that is being started again needs at most; then its ledger is copied later."""
COPY_SECONDS = 1.0
"""Between two copies of the ledger while something is spent."""
_AGAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the gateway has to say of an attempt that is over."""

    entries: tuple[LedgerEntry, ...] = ()
    """The newest, and the newest refusal of a budget: an agent can ask without end."""
    trouble: str | None = None
    """Why it could not be asked."""


@dataclass(slots=True, kw_only=True)
class Metering:
    """See the module. Without a gateway nobody is let in."""

    gateway: Gateway | None
    usage: UsageCopier | None
    clock: Clock
    on_change: Callable[[], None] = lambda: None
    """Called when what `exhausted` or `spent` says has changed."""
    _exhausted: dict[WorkspaceId, str] = field(default_factory=dict)
    _spent_runs: dict[RunId, RunStatus] = field(default_factory=dict)
    _spent: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def exhausted(self) -> Mapping[WorkspaceId, str]:
        """Say whom a budget refused, and why."""
        return self._exhausted

    @property
    def spent(self) -> Mapping[RunId, RunStatus]:
        """Give the runs whose budget is worth no further beginning."""
        return self._spent_runs

    def forget(self, run: RunId) -> None:
        """Know nothing of a run that is over: it may begin again."""
        self._spent_runs.pop(run, None)

    async def let_in(self, attempt: Attempt, run: Run, agent: AgentSpec) -> None:
        """Give a prepared attempt its grant; again is fine, and needed after our own start.

        Raises:
            ForkyardError: It could not be given, or a model has no known price.
        """
        if not is_let_in(agent, run.limits):
            return
        if self.gateway is None:
            raise GatewayError(f"cannot let {attempt.id} in: there is no gateway")
        await self.gateway.grant(grant_of(attempt, agent, run.limits))

    async def close(self, attempt: Attempt, run: Run, agent: AgentSpec) -> Account:
        """End an attempt's grant and copy all it spent; again gives the same.

        Raises:
            StoreError: The journal could not be written.

        Durability:
            What it spent is in the journal when this returns without trouble.
        """
        if self.gateway is None or self.usage is None or not is_let_in(agent, run.limits):
            return Account()
        _, workspace = names_of(attempt)
        entries: tuple[LedgerEntry, ...] = ()
        try:
            async with asyncio.timeout(REVOKE_SECONDS):
                entries = await self.gateway.revoke(workspace)
                await self.usage.copy(known=entries)
        except StoreError:
            raise
        except TimeoutError:
            trouble = f"the gateway did not answer within {REVOKE_SECONDS:g} s"
            return Account(entries=entries, trouble=trouble)
        except ForkyardError as error:
            return Account(entries=entries, trouble=error.message)
        self._exhausted.pop(workspace, None)
        return Account(entries=entries)

    async def follow(self) -> None:
        """Watch budgets and copy the ledger as it grows, until cancelled."""
        if self.gateway is None or self.usage is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy_by_and_by(self.usage), name="usage")
            while True:
                try:
                    async for status in self.gateway.changes():
                        self._take_in(status)
                except ForkyardError as error:
                    _log.warning("Cannot follow the gateway: %s", error)
                await asyncio.sleep(_AGAIN_SECONDS)

    def _take_in(self, status: RunStatus) -> None:
        self._spent.set()
        is_new = False
        for grant in status.grants:
            if grant.is_exhausted and grant.workspace not in self._exhausted:
                self._exhausted[grant.workspace] = grant.refusal or "a budget is used up"
                is_new = True
        known = self._spent_runs.get(status.run)
        if status.spent and (known is None or known.spent != status.spent):
            self._spent_runs[status.run] = status
            is_new = True
        if is_new:
            self.on_change()

    async def _copy_by_and_by(self, usage: UsageCopier) -> None:
        while True:
            await self._spent.wait()
            self._spent.clear()
            try:
                await usage.copy()
            except ForkyardError as error:
                _log.warning("Cannot copy the ledger: %s", error)
            await asyncio.sleep(COPY_SECONDS)
