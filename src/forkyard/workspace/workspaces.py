"""Workspaces: made from snapshots, started and stopped, and commands run in them.

Every change is journalled before it happens, so a crash at any line leaves a row that says what
may exist. What is waited for belongs to this object, not to the caller: a caller that is cancelled
stops waiting, and the change still reaches its end and its row.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from forkyard.base.clock import Clock
from forkyard.config import Layout
from forkyard.errors import ConflictError
from forkyard.model.connection import Connections
from forkyard.model.execution import Exec, ExecSpec
from forkyard.model.ids import (
    ExecId,
    WorkspaceId,
    new_exec_id,
)
from forkyard.model.workspace import (
    WORKSPACE_ROOT,
    NetworkPolicy,
    Workspace,
    WorkspaceState,
)
from forkyard.store.journal import Journal
from forkyard.workspace.background import Background
from forkyard.workspace.egress import Egress, NoEgress
from forkyard.workspace.execs import Execs
from forkyard.workspace.forking import Forking, Origin
from forkyard.workspace.interface import Fleet
from forkyard.workspace.layers import Layers
from forkyard.workspace.life_tasks import LifeTasks
from forkyard.workspace.recovery import Recovery
from forkyard.workspace.sandboxes import UP, Names, Sandboxes
from forkyard.workspace.slots import Slots
from forkyard.workspace.spares import Spares
from forkyard.workspace.variables import BUILT_IN_VARIABLES

__all__ = ("BUILT_IN_VARIABLES", "Origin", "Workspaces")


class Workspaces(Forking):
    """The workspaces of one state directory; the only one to change their rows."""

    def __init__(
        self,
        journal: Journal,
        fleet: Fleet,
        layout: Layout,
        clock: Clock,
        *,
        providers: Callable[[], Names] = tuple,
        egress: Egress | None = None,
    ) -> None:
        """Take the rows as the journal has them; nothing is started or looked for yet.

        Args:
            journal: Open; nobody else changes rows of workspaces and execs in it.
            fleet: Runs the sandboxes.
            layout: Where everything lies.
            clock: For the rows.
            providers: Names under which the gateway is reached where a network has it.
            egress: The proxy for workspaces with an allowlist.
        """
        self.journal = journal
        self.fleet = fleet
        self.layout = layout
        self.layers = Layers(layout)
        self._clock = clock
        self.background = Background()
        """Shared with snapshots and templates, so that `close` waits for their work as well."""
        self.egress = egress or NoEgress()
        self._sandboxes = Sandboxes(journal, fleet, self.layers, providers, self.egress)
        self._execs = Execs(self._sandboxes, self.background, clock)
        self._tasks = LifeTasks(self._sandboxes, self._execs, self.background)
        self._slots = Slots(
            [
                *(
                    row.slot
                    for row in journal.state.workspaces.values()
                    if row.state is not WorkspaceState.DELETED
                ),
                *(spare.slot for spare in journal.state.spares.values()),
            ]
        )
        self._recovery = Recovery(
            sandboxes=self._sandboxes, execs=self._execs, layers=self.layers, layout=layout
        )
        self._spares = Spares(journal, fleet, self.layers, layout, self._slots, clock)
        self.layers.prepare()

    def get(self, workspace: WorkspaceId) -> Workspace:
        """Give the row of a workspace that exists.

        Raises:
            NotFoundError: There is none of that id, or it is deleted.
        """
        return self._sandboxes.get(workspace)

    async def start(self, workspace: WorkspaceId) -> Workspace:
        """Start a workspace's sandbox. Idempotent.

        Raises:
            NotFoundError: No such workspace.
            WorkspaceError: The sandbox could not be made; the workspace is stopped again.

        Cancellation:
            The start goes on.
        """
        self.get(workspace)
        return await self.background.finish(self._start(workspace))

    async def _start(self, workspace: WorkspaceId) -> Workspace:
        async with self._sandboxes.lock(workspace):
            row = await self._sandboxes.usable(workspace)
            if row.state not in UP:
                starting = self._sandboxes.next_epoch(row)
                await self.journal.append(starting, "start", expect=row)
                await self._sandboxes.bring_up(starting)
                row = replace(starting, state=WorkspaceState.RUNNING)
                await self.journal.append(row, "started", expect=starting)
        waiting = self._tasks.ready(row)
        if waiting is not None:
            await waiting
        return row

    async def stop(
        self, workspace: WorkspaceId, *, only_if: Callable[[], bool] | None = None
    ) -> Workspace:
        """Run the PRE_STOP tasks, then end a workspace's sandbox and all in it. Idempotent.

        Args:
            workspace: Which.
            only_if: Looked at first. With it, a command that begins meanwhile keeps it up, too.

        Returns:
            The stopped row; its files no longer change.

        Cancellation:
            The stop goes on.
        """
        self.get(workspace)
        return await self.background.finish(self._stop(workspace, only_if))

    async def _stop(
        self, workspace: WorkspaceId, only_if: Callable[[], bool] | None = None
    ) -> Workspace:
        row = self.get(workspace)
        if only_if is not None and not only_if():
            return row
        known = {one.id for one in self._execs.running(workspace)}
        await self._tasks.before_stop(row)
        async with self._sandboxes.lock(workspace):
            row = self.get(workspace)
            if only_if is not None and not known.issuperset(
                one.id for one in self._execs.running(workspace)
            ):
                return row  # somebody began something while the tasks ran
            if row.state is WorkspaceState.DELETING:
                raise ConflictError(f"cannot stop workspace {workspace}: it is being deleted")
            if row.state is not WorkspaceState.STOPPED:
                row = await self._sandboxes.take_down(row)
        await self._execs.settle(workspace)
        return row

    async def connections(self, workspace: WorkspaceId) -> Connections | None:
        """Give what a workspace with an allowlist connected to; None for another one."""
        row = self.get(workspace)
        if row.network is not NetworkPolicy.ALLOWLIST:
            return None
        return await self.egress.connections(workspace, is_over=row.state not in UP)

    async def exec(
        self,
        workspace: WorkspaceId,
        argv: Sequence[str],
        *,
        working_directory: str = WORKSPACE_ROOT,
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        exec_id: ExecId | None = None,
        keep_background: bool = True,
        output_bytes: int | None = None,
        grace_seconds: float = 5.0,
        as_root: bool = False,
        has_input: bool = False,
        attended: bool = False,
        terminal: tuple[int, int] | None = None,
        copy: tuple[str, str] | None = None,
        task: str = "",
        secrets: Mapping[str, str] | None = None,
    ) -> Exec:
        """Run one command to its end, in a sandbox that is started when none runs.

        Args:
            workspace: Where.
            argv: Program and arguments; a shell command is given as ``/bin/sh -c``.
            working_directory: Inside.
            variables: On top of the built-in and the template's.
            timeout_seconds: After this the command and all it started are killed.
            exec_id: Attaches to the exec of that id where there is one.
            keep_background: Whether what it leaves running may go on.
            output_bytes: Limit per stream; the workspace's own by default.
            grace_seconds: Between TERM and KILL.
            as_root: As root of the workspace; only where its image is its own.
            has_input: Whether who attaches may write to its standard input.
            attended: Whether somebody attaches who wants its output from the first byte on.
            terminal: Rows and columns of a terminal of its own.
            copy: `out` or `in`, and a path: files are copied instead of a command executed.
            task: The template's task that it is.
            secrets: Variables that no journal holds.

        Returns:
            The ended exec. A command that failed, or could not be found, is a result.

        Raises:
            NotFoundError: No such workspace.
            ConflictError: As root of a workspace whose programs are this machine's own.
            WorkspaceError: It did not run, for a reason that is not the command's.

        Cancellation:
            The command goes on; ask again with the same id, or end it with `kill_exec`.

        Durability:
            The exec is journalled before it starts, and its end before this returns.
        """
        identity = exec_id or new_exec_id()
        if self._execs.known(identity):
            return await self._execs.wait(identity)
        row = self.get(workspace)
        has_root = row.environment.image is not None or row.environment.is_builder
        if as_root and not has_root:
            raise ConflictError(
                f"cannot run a command as root of {workspace}: its image is `host`, whose programs"
                " are this machine's own",
                hint="Give its template an image of its own.",
            )
        return await self._execs.run(
            ExecSpec(
                id=identity,
                workspace=workspace,
                argv=tuple(argv),
                working_directory=working_directory,
                variables=self._sandboxes.variables(row, variables, as_root=as_root),
                timeout_seconds=timeout_seconds,
                grace_seconds=grace_seconds,
                output_bytes=row.limits.output_bytes if output_bytes is None else output_bytes,
                keep_background=keep_background,
                as_root=as_root,
                has_input=has_input,
                attended=attended,
                terminal=terminal,
                copy=copy,
                task=task,
            ),
            secrets=secrets,
        )

    async def wait_exec(self, exec_id: ExecId) -> Exec:
        """Wait for the end of an exec that was asked for before, also by an earlier server.

        Raises:
            NotFoundError: There is none of that id.
            WorkspaceError: Its sandbox is gone.
        """
        return await self._execs.wait(exec_id)

    async def kill_exec(self, workspace: WorkspaceId, exec_id: ExecId) -> None:
        """End one exec and everything it left behind; one that is over stays as it is."""
        await self._execs.kill(workspace, exec_id)

    @contextlib.asynccontextmanager
    async def held(
        self, workspace: WorkspaceId, *, usable: bool = False
    ) -> AsyncIterator[Workspace]:
        """Keep others from starting, stopping or deleting it; `usable`: stopped, or up and ours."""
        self.get(workspace)
        async with self._sandboxes.lock(workspace):
            yield await self._sandboxes.usable(workspace) if usable else self.get(workspace)

    async def recover(self) -> None:
        """Make rows and machine agree after a start; a second time changes nothing."""
        await self._spares.recover()
        found = await self._recovery.end_ownerless()
        for row in list(self.journal.state.workspaces.values()):
            match row.state:
                case WorkspaceState.STARTING | WorkspaceState.RUNNING:
                    await self._recovery.adopt(row, is_alive=found.get(row.id) == row.epoch)
                case WorkspaceState.STOPPING:
                    await self._stop(row.id)
                case WorkspaceState.DELETING:
                    await self._delete(row.id)
                case WorkspaceState.STOPPED | WorkspaceState.DELETED:
                    await self._execs.settle(row.id)
        await self._recovery.remove_ownerless_folders()

    async def close(self, patience_seconds: float = 10.0) -> None:
        """Let changes finish; commands go on without us, and the next server finds them."""
        self._execs.detach()
        await self._spares.close()
        await self.background.close(patience_seconds)
