"""People's own workspaces at the gateway: let in while they run, closed when they do not.

Level-triggered: every look compares the rows with who is let in, so a server that was started anew
does what the one before it would have done. What such a workspace spends is booked under names
derived from its id, so that it is known and can be limited like an attempt's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from forkyard.coordinator.usage import UsageCopier
from forkyard.errors import ForkyardError
from forkyard.gateway.interface import Gateway
from forkyard.model.budget import Grant
from forkyard.model.ids import AttemptId, RunId, WorkspaceId
from forkyard.model.workspace import NetworkPolicy, Workspace, WorkspaceState
from forkyard.store.journal import Journal

LOOK_SECONDS = 0.5
"""Who asks before it is let in only waits."""
REVOKE_SECONDS = 60.0
_UP = frozenset({WorkspaceState.STARTING, WorkspaceState.RUNNING})
_log = logging.getLogger(__name__)


def own_grant(row: Workspace) -> Grant:
    """Say what a person's workspace may ask of the gateway."""
    digits = row.id.partition("_")[2]
    return Grant(
        workspace=row.id,
        run=RunId(f"run_{digits}"),
        attempt=AttemptId(f"att_{digits}"),
        agent=row.display_name or row.id,
        attempt_budget=row.budget,
    )


@dataclass(slots=True, kw_only=True)
class OwnAccess:
    """See the module."""

    journal: Journal
    gateway: Gateway
    usage: UsageCopier | None
    is_a_persons: Callable[[Workspace], bool]
    _let_in: set[WorkspaceId] = field(default_factory=set)
    _refused: set[WorkspaceId] = field(default_factory=set)
    """Said once in the log, and tried again."""

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Let in who runs and close who does not; what fails is tried at the next look."""
        rows = self.journal.state.workspaces
        up = {
            row.id
            for row in rows.values()
            if row.network is NetworkPolicy.GATEWAY and row.state in _UP and self.is_a_persons(row)
        }
        for workspace in up - self._let_in:
            try:
                await self.gateway.grant(own_grant(rows[workspace]))
            except ForkyardError as error:
                if workspace not in self._refused:
                    self._refused.add(workspace)
                    _log.warning("Cannot let %s in: %s", workspace, error.message)
            else:
                self._let_in.add(workspace)
                self._refused.discard(workspace)
        for workspace in self._let_in - up:
            await self._close(workspace)

    async def _close(self, workspace: WorkspaceId) -> None:
        self._let_in.discard(workspace)
        try:
            async with asyncio.timeout(REVOKE_SECONDS):
                entries = await self.gateway.revoke(workspace)
                if self.usage is not None:
                    await self.usage.copy(known=entries)
        except (ForkyardError, TimeoutError) as error:
            # its ledger has it all the same, and is copied with whatever is spent next
            _log.warning("Cannot copy what %s spent: %s", workspace, error)
