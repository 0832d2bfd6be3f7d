"""Workspaces that are stopped when nothing happens in them, or deleted at their time.

Level-triggered, as sessions are: every look compares the rows with what is going on. Idle is a
running workspace in which no command runs, nobody is attached or connected to a port, and whose
processes compute next to nothing. A terminal that was left counts by what it computes only. A new
server begins to count anew. Of one whose time has come, everything goes that it holds, running or
not; where no server lived then, the next one does it first thing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from forkyard.base.clock import Clock
from forkyard.errors import ForkyardError
from forkyard.model.execution import Exec
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import Workspace, WorkspaceState
from forkyard.server.presence import Presence
from forkyard.server.services import WorkspaceService
from forkyard.server.sessions import is_a_persons
from forkyard.store.journal import Journal

LOOK_SECONDS = 1.0
BUSY_SHARE = 0.01
"""Of one core; an idle development server that watches its files stays below."""

_LOG = logging.getLogger(__name__)


def expiry(clock: Clock, ttl_seconds: float | None) -> str | None:
    """Give the moment that is so long from now."""
    if ttl_seconds is None:
        return None
    then = datetime.fromisoformat(clock.now()) + timedelta(seconds=ttl_seconds)
    return then.astimezone(UTC).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class _Watched:
    epoch: int
    active_at: float
    looked_at: float
    cpu: float | None


@dataclass(slots=True, kw_only=True)
class Lifetimes:
    """See the module."""

    journal: Journal
    workspaces: WorkspaceService
    presence: Presence
    clock: Clock
    cpu_seconds: Callable[[Workspace], float | None]
    """What a running workspace's processes have computed so far; None: nobody counts."""
    _watched: dict[WorkspaceId, _Watched] = field(default_factory=dict)

    def idle_seconds(self, workspace: Workspace) -> float | None:
        """Say how long nothing has happened in a running workspace; None where it is not known."""
        known = self._watched.get(workspace.id)
        if known is None or known.epoch != workspace.epoch:
            return None
        if workspace.state is not WorkspaceState.RUNNING:
            return None
        return max(0.0, self.clock.monotonic() - known.active_at)

    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            for row in self.expired():
                if self._is_expired(self.journal.state.workspaces[row.id]):
                    await self._do(self.workspaces.delete(row.id), "delete", row)
            for row in self.look():
                still = functools.partial(self._is_still_idle, row)
                await self._do(self.workspaces.stop(row.id, only_if=still), "stop", row)
            await asyncio.sleep(LOOK_SECONDS)

    async def _do(self, change: Awaitable[object], verb: str, row: Workspace) -> None:
        try:
            await change
        except ForkyardError as error:
            _LOG.warning("Cannot %s %s, as it is to be by itself: %s", verb, row.id, error)
        else:
            _LOG.info("Asked by nobody but its own settings: %s %s", verb, row.id)

    def expired(self) -> tuple[Workspace, ...]:
        """List the workspaces whose time has come."""
        return tuple(row for row in self.journal.state.workspaces.values() if self._is_expired(row))

    def _is_expired(self, row: Workspace) -> bool:
        if row.expires_at is None or row.state is WorkspaceState.DELETED:
            return False
        return datetime.fromisoformat(row.expires_at) <= datetime.fromisoformat(self.clock.now())

    def _is_still_idle(self, row: Workspace) -> bool:
        """Look once more when nobody can begin anything in it meanwhile."""
        known = self._watched.get(row.id)
        limit = self.journal.state.workspaces[row.id].idle_stop_seconds
        return (
            known is not None
            and limit is not None
            and self.clock.monotonic() - known.active_at >= limit
            and not self._is_active(row, known, None, known.looked_at)
        )

    def look(self) -> tuple[Workspace, ...]:
        """Note what happens, and list the workspaces that have been idle for their whole time."""
        now = self.clock.monotonic()
        found: list[Workspace] = []
        seen: dict[WorkspaceId, _Watched] = {}
        for row in self.journal.state.workspaces.values():
            if row.state is not WorkspaceState.RUNNING or not is_a_persons(row):
                continue
            known = self._watched.get(row.id)
            cpu = self.cpu_seconds(row)
            if known is None or known.epoch != row.epoch:
                known = _Watched(row.epoch, now, now, cpu)
            elif self._is_active(row, known, cpu, now):
                known.active_at = now
            known.looked_at, known.cpu = now, cpu
            seen[row.id] = known
            limit = row.idle_stop_seconds
            if limit is not None and now - known.active_at >= limit:
                found.append(row)
        self._watched = seen
        return tuple(found)

    def _is_active(self, row: Workspace, known: _Watched, cpu: float | None, now: float) -> bool:
        if self.presence.is_anybody_in(row.id):
            return True
        if any(not _waits_for_somebody(one) for one in self.workspaces.running_execs(row.id)):
            return True
        used = self.workspaces.last_used(row.id)
        if used is not None and used >= known.looked_at:
            return True
        if cpu is None or known.cpu is None:
            return False
        return cpu - known.cpu >= BUSY_SHARE * max(now - known.looked_at, LOOK_SECONDS)


def _waits_for_somebody(one: Exec) -> bool:
    """Say whether a command is there for whoever is attached, or is a template's own task.

    Without somebody such a one only waits: it counts by what it computes.
    """
    spec = one.spec
    return spec.has_input or spec.terminal is not None or bool(spec.task)
