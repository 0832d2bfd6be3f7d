"""Commands in workspaces: journalled before they start, and once more when they are over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.errors import ConflictError, ForkyardError, NotFoundError, WorkspaceError
from forkyard.model.execution import Exec, ExecResult, ExecSpec, ExecState, StopReason
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.model.workspace import Workspace, WorkspaceState
from forkyard.store.journal import Change
from forkyard.workspace.background import Background
from forkyard.workspace.interface import Line
from forkyard.workspace.sandboxes import UP, Sandboxes

ANNOUNCE_SECONDS = 0.1
"""A command that runs longer makes `running` a journal entry of its own; a shorter one shares."""

KILL_AGAIN_SECONDS = 0.25
"""A command that was asked for and has not begun may have been killed too early."""

COMING_SECONDS = 0.005
"""Between two looks whether a command that somebody wants to attach to is there."""

ASKED_SECONDS = 10.0
"""How long its request may take to come: attaching is asked for at the same time."""

SETTLE_SECONDS = 5.0
"""How long a stop waits for those who wait for its execs, before it writes their ends itself."""


class Execs:
    """All execs of one server; the only one to change their rows."""

    def __init__(self, sandboxes: Sandboxes, background: Background, clock: Clock) -> None:
        """Take the open execs as the journal has them; nobody waits for them yet."""
        self._sandboxes = sandboxes
        self.ready: Callable[[Workspace], Awaitable[None] | None] = lambda _: None
        """What a command waits for once its sandbox is there; None: nothing."""
        self._secrets: dict[ExecId, Mapping[str, str]] = {}
        self._gated: dict[ExecId, asyncio.Event] = {}
        self._journal = sandboxes.journal
        self._fleet = sandboxes.fleet
        self._background = background
        self._clock = clock
        self._waiting: dict[ExecId, asyncio.Task[Exec]] = {}
        self._open: dict[WorkspaceId, set[ExecId]] = {}
        self.touched: dict[WorkspaceId, float] = {}
        """When a command last began or ended in a workspace, in monotonic seconds."""
        for row in self._journal.state.execs.values():
            if row.state is ExecState.RUNNING:
                self._open.setdefault(row.workspace, set()).add(row.id)

    def known(self, exec_id: ExecId) -> bool:
        """Say whether an exec of that id was ever asked for."""
        return exec_id in self._waiting or exec_id in self._journal.state.execs

    async def run(self, spec: ExecSpec, *, secrets: Mapping[str, str] | None = None) -> Exec:
        """Run a new command to its end.

        Args:
            spec: As it stands in the journal.
            secrets: Further variables, which no journal holds; a new server does not know them.
        """
        if secrets:
            self._secrets[spec.id] = secrets
        return await asyncio.shield(self._follow(spec.id, self._run(spec)))

    async def run_task(self, spec: ExecSpec, row: Workspace) -> Exec:
        """Run a template's task in the very sandbox of a row: none is started for it.

        Asked for again with the same id, also after a restart, it is waited for.
        """
        await self.begin_task(spec, row)
        return await self.wait(spec.id)

    async def begin_task(self, spec: ExecSpec, row: Workspace) -> None:
        """Begin a template's task as `run_task` does, and leave it running."""
        if self.known(spec.id):
            return
        mine = self._new(spec, row)
        await self._journal.append(mine, spec.task, expect=None)
        self._open.setdefault(spec.workspace, set()).add(spec.id)
        self._follow(spec.id, self._await_end(mine))

    async def wait(self, exec_id: ExecId) -> Exec:
        """Wait for the end of an exec that was asked for before, also by an earlier server.

        Raises:
            NotFoundError: There is none of that id.
            WorkspaceError: Its sandbox is gone.

        Cancellation:
            The command goes on.
        """
        task = self._waiting.get(exec_id)
        if task is None:
            row = self._journal.state.execs.get(exec_id)
            if row is None:
                raise NotFoundError(f"cannot find exec {exec_id}: no such id")
            if row.state is ExecState.ENDED:
                return row
            task = self._follow(exec_id, self._await_end(row))
        return await asyncio.shield(task)

    async def attach(self, exec_id: ExecId) -> Line | None:
        """Attach to an exec that runs, or is about to; None where it is over.

        Raises:
            NotFoundError: Nobody asks for one of that id.

        Cancellation:
            Safe; the exec goes on.
        """
        deadline = self._clock.monotonic() + ASKED_SECONDS
        while True:
            row = self._journal.state.execs.get(exec_id)
            if row is not None:
                if row.state is ExecState.ENDED:
                    return None
                line = await self._fleet.attach(row.workspace, exec_id, epoch=row.epoch)
                if line is not None:
                    return line
                if exec_id not in self._waiting:
                    return None  # nobody starts it any more: its sandbox is gone
            elif self._clock.monotonic() > deadline:
                raise NotFoundError(f"cannot attach to {exec_id}: no such id")
            await asyncio.sleep(COMING_SECONDS)

    async def kill(self, workspace: WorkspaceId, exec_id: ExecId) -> None:
        """End one exec and everything it left behind; one that is over stays as it is."""
        row = self._journal.state.execs.get(exec_id)
        if row is None or row.workspace != workspace:
            raise NotFoundError(f"cannot kill exec {exec_id}: {workspace} has none of that id")
        while row.state is ExecState.RUNNING:
            await self._fleet.kill_exec(workspace, exec_id, epoch=row.epoch)
            # Its sandbox may be on its way yet: then nobody knows the command, and it would begin.
            gated = self._gated.get(exec_id)
            if gated is not None:
                gated.set()
            coming = self._waiting.get(exec_id)
            if coming is None or (await asyncio.wait({coming}, timeout=KILL_AGAIN_SECONDS))[0]:
                return
            row = self._journal.state.execs[exec_id]

    async def settle(self, workspace: WorkspaceId) -> None:
        """Give every open exec of a stopped workspace its end."""
        ours = [
            self._waiting[exec_id]
            for exec_id in self._open.get(workspace, ())
            if exec_id in self._waiting
        ]
        if ours:
            await asyncio.wait(ours, timeout=SETTLE_SECONDS)
        for row in self._open_rows(workspace):
            recorded = self._fleet.recorded_result(workspace, row.id)
            await self._end(row, recorded or _lost(row, "its workspace was stopped"))

    async def settle_recorded(self, workspace: WorkspaceId) -> None:
        """Journal the ends that an adopted sandbox recorded while no server looked."""
        for row in self._open_rows(workspace):
            recorded = self._fleet.recorded_result(workspace, row.id)
            if recorded is not None:
                await self._end(row, recorded)

    def detach(self) -> None:
        """Stop waiting for every exec; they go on, and the next server finds them."""
        for task in tuple(self._waiting.values()):
            task.cancel()

    async def _run(self, spec: ExecSpec) -> Exec:
        workspace = spec.workspace
        known = self._journal.state.workspaces.get(workspace)
        if known is not None and self._sandboxes.is_coming(known):
            return await self._run_in_coming(spec, known)
        async with self._sandboxes.lock(workspace):
            row = await self._sandboxes.usable(workspace)
            fresh = row.state not in UP
            if fresh:
                row = self._sandboxes.next_epoch(row)
            mine = self._new(spec, row)
            changes = [Change(entity=mine, note="exec", expect=None)]
            if fresh:
                changes.insert(0, Change(entity=row, note="start"))
                await self._journal.append_all(changes)
            else:
                await self._write_down(mine, row)
            self._open.setdefault(workspace, set()).add(spec.id)
            self.touched[workspace] = self._clock.monotonic()
            if fresh:
                try:
                    await self._sandboxes.bring_up(row)
                except ForkyardError as error:
                    await self._end(mine, _lost(mine, str(error)))
                    raise
        if fresh:
            self._background.spawn(self.say_running(row))
        return await self._begin(mine, row)

    async def _write_down(self, mine: Exec, row: Workspace) -> None:
        """Journal a command, which its sandbox makes ready meanwhile."""
        held = self._with_secrets(mine.spec) if self.ready(row) is None else None
        if held is not None:
            self._fleet.hold(held, epoch=row.epoch)
        try:
            await self._journal.append(mine, "exec", expect=None)
        except BaseException:
            if held is not None:
                self._fleet.drop(held, epoch=row.epoch)
            raise

    def _with_secrets(self, spec: ExecSpec) -> ExecSpec:
        secrets = self._secrets.get(spec.id)
        return replace(spec, variables={**spec.variables, **secrets}) if secrets else spec

    async def _run_in_coming(self, spec: ExecSpec, coming: Workspace) -> Exec:
        """Run where the sandbox is on its way: the journal is written meanwhile."""
        mine = self._new(spec, coming)
        await self._journal.append(mine, "exec", expect=None)
        self._open.setdefault(spec.workspace, set()).add(spec.id)
        self.touched[spec.workspace] = self._clock.monotonic()
        try:
            async with self._sandboxes.lock(spec.workspace):
                row = await self._sandboxes.usable(spec.workspace)
        except ForkyardError as error:
            await self._end(mine, _lost(mine, str(error)))
            raise
        if row.state not in UP or row.epoch != mine.epoch:
            trouble = row.trouble or "its workspace was stopped"
            await self._end(mine, _lost(mine, trouble))
            raise WorkspaceError(
                f"cannot run a command in {spec.workspace}: {trouble}",
                hint="Run it again: a new sandbox starts, and the workspace's files are kept.",
            )
        self._background.spawn(self.say_running(row))
        return await self._begin(mine, row)

    def _new(self, spec: ExecSpec, row: Workspace) -> Exec:
        return Exec(
            id=spec.id,
            workspace=row.id,
            epoch=row.epoch,
            spec=spec,
            state=ExecState.RUNNING,
            created_at=self._clock.now(),
        )

    async def _begin(self, mine: Exec, row: Workspace) -> Exec:
        """Start a journalled command once the tasks of its sandbox's start are over."""
        waiting = self.ready(row)
        if waiting is None:
            return await self._await_end(mine)
        killed = self._gated[mine.id] = asyncio.Event()
        tasks = asyncio.ensure_future(waiting)
        ended = asyncio.ensure_future(killed.wait())
        try:
            await asyncio.wait({tasks, ended}, return_when=asyncio.FIRST_COMPLETED)
            if killed.is_set():
                return await self._end(mine, _unstarted(mine, StopReason.KILLED, None))
            await tasks
        except ForkyardError as error:
            await self._end(mine, _lost(mine, str(error)))
            raise
        finally:
            self._gated.pop(mine.id, None)
            for one in (tasks, ended):
                one.cancel()
        return await self._await_end(mine)

    async def say_running(self, starting: Workspace) -> None:
        """Say `running` where the first command takes long, so that nobody reads `starting`."""
        await asyncio.sleep(ANNOUNCE_SECONDS)
        if self._journal.state.workspaces.get(starting.id) == starting:
            with contextlib.suppress(ConflictError):
                running = replace(starting, state=WorkspaceState.RUNNING)
                await self._journal.append(running, "started", expect=starting)

    async def _await_end(self, row: Exec) -> Exec:
        spec = self._with_secrets(row.spec)
        self._secrets.pop(spec.id, None)
        try:
            result = await self._fleet.exec(spec, epoch=row.epoch)
        except ForkyardError as error:
            recorded = self._fleet.recorded_result(row.workspace, row.id)
            gone = await self._sandboxes.mark_gone(row.workspace, row.epoch)
            ended = await self._end(row, recorded or _lost(row, str(error)))
            if recorded is not None:
                return ended
            if gone:
                raise WorkspaceError(
                    f"cannot run a command in {row.workspace}: its sandbox is gone",
                    hint="Run it again: a new sandbox starts, and the workspace's files are kept.",
                ) from error
            raise
        failpoint("W11")
        if result.stop_reason is StopReason.INTERRUPTED:
            await self._sandboxes.mark_gone(row.workspace, row.epoch)
        return await self._end(row, result)

    async def _end(self, row: Exec, result: ExecResult) -> Exec:
        """Journal an end, together with `running` where that is not said yet."""
        ended = replace(row, state=ExecState.ENDED, result=result)
        change = Change(entity=ended, note=result.stop_reason.value)
        workspace = self._journal.state.workspaces.get(row.workspace)
        written = False
        if (
            workspace is not None
            and workspace.state is WorkspaceState.STARTING
            and workspace.epoch == row.epoch
            and self._sandboxes.is_live(workspace)
        ):
            running = replace(workspace, state=WorkspaceState.RUNNING)
            with contextlib.suppress(ConflictError):
                await self._journal.append_all(
                    [Change(entity=running, note="started", expect=workspace), change]
                )
                written = True
        if not written:
            await self._journal.append_all([change])
        if workspace is not None and workspace.state is not WorkspaceState.DELETED:
            self.touched[row.workspace] = self._clock.monotonic()
        rest = self._open.get(row.workspace, set())
        rest.discard(row.id)
        if not rest:
            self._open.pop(row.workspace, None)
        return ended

    def forget(self, workspace: WorkspaceId) -> None:
        """Drop what is kept of a deleted workspace."""
        self.touched.pop(workspace, None)

    def running(self, workspace: WorkspaceId) -> tuple[Exec, ...]:
        """List the execs of a workspace that are not over."""
        return self._open_rows(workspace)

    def _open_rows(self, workspace: WorkspaceId) -> tuple[Exec, ...]:
        rows = (self._journal.state.execs[exec_id] for exec_id in self._open.get(workspace, ()))
        return tuple(row for row in rows if row.state is ExecState.RUNNING)

    def _follow(self, exec_id: ExecId, work: Coroutine[object, object, Exec]) -> asyncio.Task[Exec]:
        task = self._background.spawn(work)
        self._waiting[exec_id] = task

        def over(_: asyncio.Task[Exec]) -> None:
            self._waiting.pop(exec_id, None)
            self._secrets.pop(exec_id, None)

        task.add_done_callback(over)
        return task


def _lost(row: Exec, detail: str) -> ExecResult:
    return _unstarted(row, StopReason.INTERRUPTED, detail)


def _unstarted(row: Exec, reason: StopReason, detail: str | None) -> ExecResult:
    return ExecResult(
        id=row.id,
        stop_reason=reason,
        exit_code=None,
        elapsed_seconds=0.0,
        stdout_bytes=0,
        stderr_bytes=0,
        detail=detail,
    )
