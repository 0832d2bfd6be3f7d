"""What an earlier server left running: adopted where its row says so, ended where none does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forkyard.config import Layout
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import Workspace, WorkspaceState
from forkyard.workspace.execs import Execs
from forkyard.workspace.layers import Layers
from forkyard.workspace.sandboxes import SANDBOX_GONE, UP, Sandboxes


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The steps that `Workspaces.recover` takes at a start, each harmless when taken again."""

    sandboxes: Sandboxes
    execs: Execs
    layers: Layers
    layout: Layout

    async def end_ownerless(self) -> dict[WorkspaceId, int]:
        """End sandboxes that no row names; give the epoch of each that was found."""
        rows, fleet = self.sandboxes.journal.state.workspaces, self.sandboxes.fleet
        found = {one.workspace: one.epoch for one in await fleet.running()}
        for workspace, epoch in found.items():
            row = rows.get(workspace)
            if row is None or row.epoch != epoch or row.state not in UP:
                await fleet.stop(workspace, epoch=epoch)
        return found

    async def adopt(self, row: Workspace, *, is_alive: bool) -> None:
        """Use a row's sandbox, or say that it was gone."""
        if self.sandboxes.is_live(row):
            return
        if not is_alive:
            async with self.sandboxes.lock(row.id):
                await self.sandboxes.take_down(row, trouble=SANDBOX_GONE)
            await self.execs.settle(row.id)
            return
        self.sandboxes.adopt(row)
        if row.state is WorkspaceState.STARTING:
            running = replace(row, state=WorkspaceState.RUNNING)
            await self.sandboxes.journal.append(running, "adopted", expect=row)
        await self.execs.settle_recorded(row.id)

    async def remove_ownerless_folders(self) -> None:
        """Remove the folders of workspaces that do not exist."""
        rows = self.sandboxes.journal.state.workspaces.values()
        live = {row.id for row in rows if row.state is not WorkspaceState.DELETED}
        for path in self.layout.workspaces.iterdir():
            if path.name not in live:
                self.layers.discard(path)
        await self.layers.empty_trash()
