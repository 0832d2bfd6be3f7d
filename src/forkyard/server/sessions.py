"""Clients' sessions: an ephemeral workspace is deleted when the client that made it goes.

A session lasts as long as its client keeps a stream open; the client opens it again after a lost
connection or a restarted server. The workspace's row names its session, so the next server knows
it, too. Level-triggered: every look compares the rows with who is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from forkyard.base.clock import Clock
from forkyard.errors import ForkyardError
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import Workspace, WorkspaceState
from forkyard.server.services import WorkspaceService
from forkyard.store.journal import Journal

OWNER_PREFIX = "client_"
GRACE_SECONDS = 20.0
"""A client that lost its server finds or starts the next one well within this."""

LOOK_SECONDS = 1.0
BEAT_SECONDS = 15.0

_LOG = logging.getLogger(__name__)


def owner_of(session: str) -> str:
    """Name a session as the owner of a workspace."""
    return f"{OWNER_PREFIX}{session}"


def is_a_persons(workspace: Workspace) -> bool:
    """Say whether a workspace belongs to people and their programs, not to a run."""
    return workspace.owner is None or workspace.owner.startswith(OWNER_PREFIX)


@dataclass(slots=True, kw_only=True)
class Sessions:
    """See the module."""

    journal: Journal
    workspaces: WorkspaceService
    clock: Clock
    grace_seconds: float = GRACE_SECONDS
    _present: Counter[str] = field(default_factory=Counter)
    _absent_since: dict[str, float] = field(default_factory=dict)

    async def hold(self, session: str, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        """Be a client's stream: its being read is what says that the client is there."""
        owner = owner_of(session)
        self._present[owner] += 1
        self._absent_since.pop(owner, None)
        try:
            yield b": here\n\n"
            while not stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_SECONDS):
                        await stopping.wait()
                yield b": here\n\n"
        finally:
            self._present[owner] -= 1
            if not self._present[owner]:
                del self._present[owner]

    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            for workspace in self.abandoned():
                try:
                    await self.workspaces.delete(workspace)
                except ForkyardError as error:
                    _LOG.warning("Cannot delete %s, whose client is gone: %s", workspace, error)
                else:
                    _LOG.info("Deleted %s, whose client is gone", workspace)
            await asyncio.sleep(LOOK_SECONDS)

    def abandoned(self) -> tuple[WorkspaceId, ...]:
        """List the workspaces whose client has been away for the whole grace."""
        now = self.clock.monotonic()
        found: list[WorkspaceId] = []
        owners: set[str] = set()
        for row in self.journal.state.workspaces.values():
            if row.state is WorkspaceState.DELETED or not row.ephemeral:
                continue
            if row.owner is None or not row.owner.startswith(OWNER_PREFIX):
                continue
            owners.add(row.owner)
            if self._present[row.owner]:
                continue
            since = self._absent_since.setdefault(row.owner, now)
            if now - since >= self.grace_seconds:
                found.append(row.id)
        for owner in self._absent_since.keys() - owners:
            del self._absent_since[owner]
        return tuple(found)
