"""The sandbox of each workspace: brought up, taken down, and found dead, with its row in step.

Whoever changes a workspace's row holds its lock. The row says `starting` before a sandbox exists
and `stopping` until nothing of it is left; an epoch is used for one sandbox only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from forkyard.base.durable import failpoint
from forkyard.errors import ConflictError, ForkyardError, NotFoundError, WorkspaceError
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import REPOSITORY, NetworkPolicy, Workspace, WorkspaceState
from forkyard.store.journal import Journal
from forkyard.workspace import hard_disk
from forkyard.workspace.egress import Egress, proxy_variables
from forkyard.workspace.flattening import shortened
from forkyard.workspace.interface import Fleet, SandboxSpec
from forkyard.workspace.layers import Layers
from forkyard.workspace.variables import exec_variables

UP = (WorkspaceState.STARTING, WorkspaceState.RUNNING)
Names = tuple[str, ...]
SANDBOX_GONE = "its sandbox was gone"


class Sandboxes:
    """Rows and sandboxes of all workspaces; knows which sandboxes this server may use."""

    def __init__(
        self,
        journal: Journal,
        fleet: Fleet,
        layers: Layers,
        providers: Callable[[], Names],
        egress: Egress,
    ) -> None:
        """Know of no live sandbox yet."""
        self._egress = egress
        self._providers = providers
        self.on_up: Callable[[Workspace], None] = lambda _: None
        """Told of each sandbox that is there, made or adopted; the caller holds the lock."""
        self.journal = journal
        self.fleet = fleet
        self._layers = layers
        self._locks: dict[WorkspaceId, asyncio.Lock] = {}
        self._live: dict[WorkspaceId, int] = {}
        self._coming: dict[WorkspaceId, int] = {}

    def get(self, workspace: WorkspaceId) -> Workspace:
        """Give the row of a workspace that exists.

        Raises:
            NotFoundError: There is none of that id, or it is deleted.
        """
        row = self.journal.state.workspaces.get(workspace)
        if row is None or row.state is WorkspaceState.DELETED:
            reason = "no such id" if row is None else "it is deleted"
            raise NotFoundError(
                f"cannot find workspace {workspace}: {reason}",
                hint="List them with `forkyard workspace list`.",
            )
        return row

    def lock(self, workspace: WorkspaceId) -> asyncio.Lock:
        """Give the lock under which a workspace's row changes."""
        return self._locks.setdefault(workspace, asyncio.Lock())

    def forget(self, workspace: WorkspaceId) -> None:
        """Drop what is kept of a deleted workspace."""
        self._live.pop(workspace, None)
        self._coming.pop(workspace, None)
        self._locks.pop(workspace, None)

    def is_live(self, row: Workspace) -> bool:
        """Say whether the row's sandbox was started or adopted by this server."""
        return row.state in UP and self._live.get(row.id) == row.epoch

    def announce(self, row: Workspace) -> None:
        """Keep in mind that a row says `starting` and nobody has begun; `usable` begins."""
        self._coming[row.id] = row.epoch

    def is_coming(self, row: Workspace) -> bool:
        """Say whether a row's sandbox was announced and is not there yet."""
        return row.state is WorkspaceState.STARTING and self._coming.get(row.id) == row.epoch

    def adopt(self, row: Workspace) -> None:
        """Use a sandbox that an earlier server started."""
        self._live[row.id] = row.epoch
        self._coming.pop(row.id, None)
        self.on_up(row)

    async def usable(self, workspace: WorkspaceId) -> Workspace:
        """Give a row that is stopped, or up with a sandbox of ours. The caller holds the lock.

        Raises:
            ConflictError: It is being deleted, or was not looked after since a restart.
            WorkspaceError: Its announced sandbox could not be made; the row is stopped.
        """
        row = self.get(workspace)
        if row.state is WorkspaceState.DELETING:
            raise ConflictError(f"cannot use workspace {workspace}: it is being deleted")
        if row.state is WorkspaceState.STOPPING:
            return await self.take_down(row)
        if self.is_coming(row):
            await self.bring_up(row)
        if row.state in UP and not self.is_live(row):
            raise ConflictError(
                f"cannot use workspace {workspace}: it is {row.state} since an earlier server, and"
                " not looked after yet",
                hint="Retry in a moment.",
            )
        return row

    def next_epoch(self, row: Workspace) -> Workspace:
        """Give the row that must be in the journal before `bring_up`."""
        return replace(
            row,
            state=WorkspaceState.STARTING,
            epoch=row.epoch + 1,
            trouble=None,
            layers=shortened(row.layers, self.journal.state),
        )

    async def bring_up(self, starting: Workspace) -> None:
        """Make the sandbox of a row that says `starting`. The caller holds the lock.

        Raises:
            WorkspaceError: It could not be made; the row is stopped again and says why.
        """
        try:
            await hard_disk.settle(self._layers, starting.id)
            self._layers.make_disk(starting.id)
            await hard_disk.make(self._layers.layout, starting)
            if starting.network is NetworkPolicy.ALLOWLIST:
                await self._egress.ready()
            await self.fleet.start(self.spec(starting))
        except (ForkyardError, OSError) as error:
            self._coming.pop(starting.id, None)
            with contextlib.suppress(ForkyardError):
                await self.take_down(starting, trouble=str(error))
            if isinstance(error, OSError):
                msg = f"cannot start workspace {starting.id}: {error.strerror or error}"
                raise WorkspaceError(msg, hint="Look at the state directory's disk.") from error
            raise
        self.adopt(starting)
        failpoint("W07")

    def variables(
        self, row: Workspace, more: Mapping[str, str] | None = None, *, as_root: bool = False
    ) -> dict[str, str]:
        """Give the variables of a command: ours, the template's and its own, the last one wins."""
        # The providers' names stand in a file, which is read only for those who need them.
        is_behind = row.network is NetworkPolicy.ALLOWLIST
        proxy = proxy_variables(self._providers()) if is_behind else {}
        return {**proxy, **exec_variables(row, more, as_root=as_root)}

    def spec(self, row: Workspace) -> SandboxSpec:
        """Give what a row's sandbox is made from.

        Raises:
            WorkspaceError: Something of the host that it shows is no longer there.
        """
        environment = row.environment
        for mount in environment.mounts:
            if not Path(mount.source).is_dir():
                raise WorkspaceError(
                    f"cannot start workspace {row.id}: {mount.source}, which {mount.reason} asks"
                    " for, is no longer there",
                    hint="Install it again, or build the template again.",
                )
        if environment.repository_source is not None and not self._layers.is_folder(
            row.id, row.layers, REPOSITORY
        ):
            # An agent may have removed it, or put a link there that would be followed on the host.
            environment = replace(environment, repository_source=None)
        return SandboxSpec(
            workspace=row.id,
            epoch=row.epoch,
            layers=row.layers,
            slot=row.slot,
            environment=environment,
            limits=row.limits,
            network=row.network,
            providers=self._providers() if _reaches_models(row) else (),
            allow=row.allow,
        )

    async def take_down(self, row: Workspace, *, trouble: str | None = None) -> Workspace:
        """Stop a sandbox, dead or alive, and journal it. The caller holds the lock."""
        stopping = replace(row, state=WorkspaceState.STOPPING)
        if row != stopping:
            await self.journal.append(stopping, "stop")
        await self.fleet.stop(row.id, epoch=row.epoch)
        await hard_disk.settle(self._layers, row.id)
        self._live.pop(row.id, None)
        stopped = replace(stopping, state=WorkspaceState.STOPPED, trouble=trouble)
        await self.journal.append(stopped, trouble or "stopped", expect=stopping)
        return stopped

    async def mark_gone(self, workspace: WorkspaceId, epoch: int) -> bool:
        """Stop a row whose sandbox is no longer there; False while it is there."""
        sandboxes = await self.fleet.running()
        if any(s.workspace == workspace and s.epoch == epoch for s in sandboxes):
            return False
        async with self.lock(workspace):
            row = self.journal.state.workspaces[workspace]
            if row.state in UP and row.epoch == epoch:
                await self.take_down(row, trouble=SANDBOX_GONE)
        return True


def _reaches_models(row: Workspace) -> bool:
    return row.network is NetworkPolicy.GATEWAY or (
        row.network is NetworkPolicy.ALLOWLIST and row.reaches_models
    )
