"""A part of `Workspaces`: for those who live in one. Being attached, ports, how long it is kept."""

from __future__ import annotations

import socket
from dataclasses import replace

from forkyard.errors import ConflictError
from forkyard.model.execution import Exec
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.model.workspace import Lifetime, Workspace, WorkspaceState
from forkyard.store.journal import Journal
from forkyard.workspace.execs import Execs
from forkyard.workspace.interface import Fleet, Line
from forkyard.workspace.sandboxes import UP, Sandboxes


class Living:
    """See the module; what it works on is that of `Workspaces`."""

    journal: Journal
    fleet: Fleet
    _sandboxes: Sandboxes
    _execs: Execs

    def get(self, workspace: WorkspaceId) -> Workspace:
        """Give the row of a workspace that exists.

        Raises:
            NotFoundError: There is none of that id, or it is deleted.
        """
        return self._sandboxes.get(workspace)

    async def change_lifetime(self, workspace: WorkspaceId, lifetime: Lifetime) -> Workspace:
        """Say anew when a workspace is stopped or deleted by itself.

        Raises:
            NotFoundError: No such workspace.
            ConflictError: It is being deleted.

        Durability:
            The row is on disk when this returns.
        """
        self.get(workspace)
        async with self._sandboxes.lock(workspace):
            row = self.get(workspace)
            if row.state is WorkspaceState.DELETING:
                raise ConflictError(f"cannot keep workspace {workspace}: it is being deleted")
            kept = replace(
                row,
                idle_stop_seconds=lifetime.idle_stop_seconds,
                expires_at=lifetime.expires_at,
            )
            if kept != row:
                await self.journal.append(kept, "lifetime", expect=row)
            return kept

    def running_execs(self, workspace: WorkspaceId) -> tuple[Exec, ...]:
        """List the execs of a workspace that are not over."""
        return self._execs.running(workspace)

    def last_used(self, workspace: WorkspaceId) -> float | None:
        """Say when a command last began or ended in it, in monotonic seconds of this server."""
        return self._execs.touched.get(workspace)

    async def attach_exec(self, exec_id: ExecId) -> Line | None:
        """Attach to an exec that runs, or is about to: give it input, get its output.

        Returns:
            None where it is over.

        Raises:
            NotFoundError: Nobody asked for one of that id.

        Cancellation:
            Safe; the exec goes on.
        """
        return await self._execs.attach(exec_id)

    async def connect(self, workspace: WorkspaceId, port: int) -> socket.socket:
        """Connect to a port of a running workspace's own loopback.

        Raises:
            NotFoundError: No such workspace.
            ConflictError: It does not run.
            WorkspaceError: Nobody listens there.

        Cancellation:
            Safe; the connection is closed.
        """
        row = self.get(workspace)
        if row.state not in UP:
            raise ConflictError(
                f"cannot connect to port {port} in {workspace}: it is {row.state}",
                hint=f"Start it with `forkyard workspace start {workspace}`.",
            )
        return await self.fleet.connect(workspace, port, epoch=row.epoch)
