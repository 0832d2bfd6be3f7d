"""Tasks of a workspace's life: POST_START once its sandbox is there, PRE_STOP before it goes.

What they run as is journalled under ids that follow from workspace, epoch and place: after a
restart a task that was begun is waited for, and none is begun twice in one sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable

from forkyard.errors import ForkyardError, WorkspaceError
from forkyard.model.execution import Exec, ExecSpec, StopReason
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.model.workspace import OnFailure, TaskType, TemplateTask, Workspace
from forkyard.workspace.background import Background
from forkyard.workspace.execs import Execs
from forkyard.workspace.sandboxes import UP, Sandboxes

START_SECONDS = 900.0
"""Of one POST_START task in the foreground; commands wait for it."""
STOP_SECONDS = 60.0
"""Of all PRE_STOP tasks of one stop."""


class LifeTasks:
    """Runs them, and lets commands wait until a start is complete."""

    def __init__(self, sandboxes: Sandboxes, execs: Execs, background: Background) -> None:
        """Be told of every sandbox that comes up, and asked before every command."""
        self._sandboxes = sandboxes
        self._execs = execs
        self._background = background
        self._starts: dict[WorkspaceId, tuple[int, asyncio.Task[None]]] = {}
        sandboxes.on_up = self.begin
        execs.ready = self.ready

    def begin(self, row: Workspace) -> None:
        """Begin the POST_START tasks of a sandbox that is there; without any, do nothing."""
        tasks = _of(row, TaskType.POST_START)
        self._starts.pop(row.id, None)
        if tasks:
            work = self._background.spawn(self._start(row, tasks))
            self._starts[row.id] = (row.epoch, work)

    def ready(self, row: Workspace) -> Awaitable[None] | None:
        """Give what to wait for until the tasks of a sandbox's start are over; None: nothing.

        Waiting raises `WorkspaceError` where a task failed: the workspace is stopped then.
        """
        found = self._starts.get(row.id)
        if found is None or found[0] != row.epoch:
            return None
        work = found[1]
        if work.done() and not work.cancelled() and work.exception() is None:
            return None
        return asyncio.shield(work)

    async def _start(self, row: Workspace, tasks: tuple[TemplateTask, ...]) -> None:
        for number, task in enumerate(tasks):
            spec = self._spec(row, task, number, None if task.background else START_SECONDS)
            if task.background:
                with contextlib.suppress(ForkyardError):
                    await self._execs.begin_task(spec, row)
                continue
            trouble = await self._run(spec, row)
            if trouble is None or task.on_failure is OnFailure.CONTINUE:
                continue
            trouble = f"task: task {task.name} {trouble}"
            await self._give_up(row, trouble)
            raise WorkspaceError(
                f"cannot start workspace {row.id}: {trouble}",
                hint="Read what it printed:"
                f" `forkyard workspace logs {row.id} --task {task.name}`.",
            )

    async def _run(self, spec: ExecSpec, row: Workspace) -> str | None:
        try:
            return outcome(await self._execs.run_task(spec, row))
        except ForkyardError as error:
            return error.message

    async def _give_up(self, row: Workspace, trouble: str) -> None:
        async with self._sandboxes.lock(row.id):
            now = self._sandboxes.journal.state.workspaces.get(row.id)
            if now is not None and now.state in UP and now.epoch == row.epoch:
                await self._sandboxes.take_down(now, trouble=trouble)

    async def before_stop(self, row: Workspace) -> None:
        """Run the PRE_STOP tasks of a live sandbox; the stop goes on whatever becomes of them."""
        tasks = _of(row, TaskType.PRE_STOP)
        if not tasks or not self._sandboxes.is_live(row):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for number, task in enumerate(tasks):
                    trouble = await self._run(self._spec(row, task, number, STOP_SECONDS), row)
                    if trouble is not None and task.on_failure is OnFailure.ABORT:
                        return

    def _spec(
        self, row: Workspace, task: TemplateTask, number: int, seconds: float | None
    ) -> ExecSpec:
        name = f"{row.id} {row.epoch} {task.type} {number}".encode()
        return ExecSpec(
            id=ExecId(f"exec_{hashlib.sha256(name).hexdigest()[:24]}"),
            workspace=row.id,
            argv=("/bin/sh", "-c", task.run),
            working_directory=task.working_directory,
            variables=self._sandboxes.variables(row, as_root=task.run_as_root),
            timeout_seconds=seconds,
            output_bytes=row.limits.output_bytes,
            as_root=task.run_as_root,
            task=f"{task.type} {task.name}",
        )


def outcome(done: Exec) -> str | None:
    """Say in a clause how a task failed; None where it did not."""
    result = done.result
    if result is None:
        return "ended without a result"
    if result.stop_reason is not StopReason.EXITED:
        return f"ended: {result.stop_reason}" + (f" ({result.detail})" if result.detail else "")
    return None if result.exit_code == 0 else f"ended with status {result.exit_code}"


def _of(row: Workspace, wanted: TaskType) -> tuple[TemplateTask, ...]:
    return tuple(task for task in row.environment.tasks if task.type is wanted)
