"""Removing what no live owner holds: sandboxes, control groups, directories, half-done deletions.

Whatever exists on the host was journalled before it was made. So what the journal does not name,
or names as gone, has no owner; and what another installation on this machine made is never ours,
because its names are not in our journal.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.base.removal import empty_trash, move_to_trash
from forkyard.config import Layout
from forkyard.coordinator.attempts import AttemptSteps
from forkyard.coordinator.commands import CommandKind, for_attempt
from forkyard.coordinator.interface import FleetPort, WorkspacesPort
from forkyard.coordinator.view import (
    ACTIVE_RUN_STATES,
    CLEANUP_DONE,
    CLEANUP_PENDING,
    is_terminal,
)
from forkyard.errors import ForkyardError
from forkyard.model.ids import AttemptId, WorkspaceId
from forkyard.model.workspace import Workspace, WorkspaceState
from forkyard.shim import cgroups
from forkyard.shim.hierarchies import detect
from forkyard.store.journal import Journal
from forkyard.workspace.layers import Layers

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0
_PASSING_OWNERS = ("eval_", "run_")
"""Evaluations and baselines live within one server; after a start, what is theirs is a leftover."""

_MAY_RUN = frozenset({WorkspaceState.STARTING, WorkspaceState.RUNNING, WorkspaceState.STOPPING})


@dataclass(slots=True, kw_only=True)
class Reaper:
    """See the module."""

    journal: Journal
    workspaces: WorkspacesPort
    fleet: FleetPort
    steps: AttemptSteps
    layout: Layout
    _suspects: set[tuple[WorkspaceId, int]] = field(default_factory=set)
    """Ownerless sandboxes seen in the pass before: a start or stop may cross one pass, not two."""

    async def at_start(self) -> tuple[str, ...]:
        """Remove what an earlier server left, before anything new is begun.

        Returns:
            What was removed or could not be, in words; empty when there was nothing.
        """
        told = [await self._delete(workspace) for workspace in self._orphans()]
        layers = Layers(self.layout)
        layers.prepare()
        for path in layers.leftovers(self.journal.state):
            told.extend(await self._discard(path))
        incoming = self.layout.blobs / "incoming"
        if incoming.is_dir():
            for path in sorted(incoming.iterdir()):
                told.extend(await self._discard(path))
        told.extend(await self.sweep())
        return tuple(told)

    async def run(self) -> None:
        """Sweep every minute until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                for line in await self.sweep():
                    _log.info("Reaped %s", line)
            except (ForkyardError, OSError) as error:
                _log.warning("Cannot sweep: %s", error)

    async def sweep(self) -> tuple[str, ...]:
        """Remove what has no owner now; what is there and owned is not touched.

        Returns:
            What was removed or could not be, in words.
        """
        told: list[str] = []
        told.extend(await self._end_ownerless_sandboxes())
        told.extend(await self._finish_clean_ups())
        told.extend(await self._remove_directories())
        told.extend(await asyncio.to_thread(self._remove_groups))
        told.extend(await asyncio.to_thread(empty_trash, self.layout.trash))
        return tuple(told)

    def _orphans(self) -> list[Workspace]:
        return [
            workspace
            for workspace in self.journal.state.workspaces.values()
            if workspace.state is not WorkspaceState.DELETED
            and workspace.ephemeral
            and workspace.owner is not None
            and self._is_orphan(workspace.owner)
        ]

    def _is_orphan(self, owner: str) -> bool:
        if owner.startswith(_PASSING_OWNERS):
            return True
        attempt = self.journal.state.attempts.get(AttemptId(owner))
        return attempt is not None and is_terminal(attempt) and attempt.cleanup == CLEANUP_DONE

    async def _delete(self, workspace: Workspace) -> str:
        try:
            await self.workspaces.delete(workspace.id)
        except ForkyardError as error:
            return f"workspace {workspace.id}: {error.message}"
        return f"workspace {workspace.id} of {workspace.owner}"

    async def _end_ownerless_sandboxes(self) -> list[str]:
        told: list[str] = []
        found = {(sandbox.workspace, sandbox.epoch) for sandbox in await self.fleet.running()}
        ownerless = {one for one in found if not self._has_owner(*one)}
        for workspace, epoch in ownerless & self._suspects:
            await self.fleet.stop(workspace, epoch=epoch)
            told.append(f"sandbox of {workspace}, epoch {epoch}")
        self._suspects = ownerless
        return told

    def _has_owner(self, workspace: WorkspaceId, epoch: int) -> bool:
        row = self.journal.state.workspaces.get(workspace)
        if row is None or row.state in (WorkspaceState.STOPPED, WorkspaceState.DELETED):
            return False
        return row.epoch == epoch

    async def _finish_clean_ups(self) -> list[str]:
        """Try again what a run did not wait for any longer."""
        told: list[str] = []
        for attempt in list(self.journal.state.attempts.values()):
            run = self.journal.state.runs[attempt.run]
            if run.state in ACTIVE_RUN_STATES or attempt.cleanup != CLEANUP_PENDING:
                continue
            try:
                await self.steps.clean_up(for_attempt(CommandKind.CLEAN_UP, attempt))
            except ForkyardError as error:
                told.append(f"leftovers of {attempt.id}: {error.message}")
            else:
                told.append(f"leftovers of {attempt.id}")
        return told

    async def _remove_directories(self) -> list[str]:
        told: list[str] = []
        if not self.layout.workspaces.is_dir():
            return told
        for path in sorted(self.layout.workspaces.iterdir()):
            workspace = WorkspaceId(path.name)
            row = self.journal.state.workspaces.get(workspace)
            if workspace in self.journal.state.spares:
                continue
            if row is None or row.state is WorkspaceState.DELETED:
                told.extend(await self._discard(path))
        return told

    async def _discard(self, path: Path) -> list[str]:
        try:
            moved = await asyncio.to_thread(move_to_trash, path, self.layout.trash)
        except ForkyardError as error:
            return [error.message]
        return [] if moved is None else [str(path.relative_to(self.layout.home))]

    def _remove_groups(self) -> list[str]:
        told: list[str] = []
        hierarchies = detect()
        if hierarchies is None:
            return told
        for name in cgroups.existing(hierarchies):
            workspace, _, epoch = name.rpartition("-")
            row = self.journal.state.workspaces.get(WorkspaceId(workspace))
            if row is None or not epoch.isdecimal() or self._may_use(row, int(epoch)):
                continue
            try:
                cgroups.sweep(hierarchies, name)
            except OSError as error:
                told.append(f"control group {name}: {error.strerror or error}")
            else:
                told.append(f"control group {name}")
        return told

    @staticmethod
    def _may_use(row: Workspace, epoch: int) -> bool:
        # an epoch is used for one sandbox only: an older one, or that of a stopped row, is over
        if row.state is WorkspaceState.DELETING:
            return True
        return epoch > row.epoch or (epoch == row.epoch and row.state in _MAY_RUN)
