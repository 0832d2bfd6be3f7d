"""The ON_CREATE tasks of one build: in order, each with its log and timing, some in the background.

A secret is in the environment of the one task that names it: neither the journal nor any other
command has it, and what a task prints of it is masked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from forkyard.base.clock import Clock
from forkyard.config import Layout
from forkyard.errors import ForkyardError, WorkspaceError
from forkyard.model.execution import Exec, StopReason
from forkyard.model.ids import ExecId, WorkspaceId, new_exec_id
from forkyard.model.workspace import OnFailure, TaskType, TemplateTask
from forkyard.workspace.build_log import BuildLog
from forkyard.workspace.build_steps import StepError
from forkyard.workspace.kept_secrets import find_secrets
from forkyard.workspace.life_tasks import outcome
from forkyard.workspace.task_records import TaskRecord
from forkyard.workspace.workspaces import Workspaces

TASK_SECONDS = 4 * 3600.0
KILL_SECONDS = 30.0
"""How long a background task may take to be gone once it is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    task: TemplateTask
    number: int
    exec_id: ExecId
    work: asyncio.Task[str | None]


@dataclass(slots=True, kw_only=True)
class BuildTasks:
    """Runs the tasks of one build in its workspace."""

    template: str
    workspace: WorkspaceId
    workspaces: Workspaces
    layout: Layout
    log: BuildLog
    clock: Clock
    secret: Callable[[str], str]
    """Gives the value of a secret."""
    _background: list[_Begun] = field(default_factory=list)

    async def run(self, tasks: tuple[TemplateTask, ...]) -> None:
        """Run those for ON_CREATE; when this returns no background task is left.

        Raises:
            StepError: One failed that may not.
        """
        try:
            for number, task in enumerate(tasks, start=1):
                if task.type is TaskType.ON_CREATE:
                    await self._begin(task, number)
        finally:
            await self._end_background()
        for one in self._background:
            self._judge(one.task, one.number, one.work.result())

    async def refuse_kept_secrets(self, tasks: tuple[TemplateTask, ...]) -> None:
        """Look through what was written, once the workspace is stopped, for the tasks' secrets.

        Raises:
            StepError: There is one: it would be in every fork.
        """
        users = {name: task.name for task in tasks for name in task.secrets.values()}
        if not users:
            return
        values = {name: self.secret(name) for name in users}
        upper = self.layout.upper(self.workspace)
        found = await asyncio.to_thread(find_secrets, upper, values)
        if not found:
            return
        name, path = found[0]
        self.log.say("secrets were left behind: " + ", ".join(f"{n} in {p}" for n, p in found))
        error = WorkspaceError(
            f"cannot build template {self.template}: task {users[name]} left secret {name} in"
            f" {path}, which every fork would have",
            hint="Remove the file at the end of that task, or pass the secret by another way.",
        )
        raise StepError("task", error, task=users[name])

    async def _begin(self, task: TemplateTask, number: int) -> None:
        identity = new_exec_id()
        if not task.background:
            self._judge(task, number, await self._one(task, number, identity))
            return
        work = asyncio.create_task(self._one(task, number, identity))
        self._background.append(_Begun(task=task, number=number, exec_id=identity, work=work))

    async def _end_background(self) -> None:
        """End what is still running; that it was ended is no failure."""
        running = [one for one in self._background if not one.work.done()]
        for one in running:
            # One that was only just asked for is not known yet.
            journal = self.workspaces.journal
            while one.exec_id not in journal.state.execs:
                if (await asyncio.wait({one.work}, timeout=0.02))[0]:
                    break
            with contextlib.suppress(ForkyardError):
                await self.workspaces.kill_exec(self.workspace, one.exec_id)
        if running:
            await asyncio.wait([one.work for one in running], timeout=KILL_SECONDS)
        for one in running:
            one.work.cancel()
        await asyncio.gather(*(one.work for one in running), return_exceptions=True)

    async def _one(self, task: TemplateTask, number: int, identity: ExecId) -> str | None:
        where = " in the background" if task.background else ""
        who = " as root" if task.run_as_root else ""
        self.log.say(f"task {task.name}{where}{who}: {task.run.strip()}")
        record = TaskRecord.begun(task, number, self.clock.now())
        self.log.record(record)
        async with self.log.following(self.layout.exec(self.workspace, identity), f"task-{number}"):
            done = await self.workspaces.exec(
                self.workspace,
                ["/bin/sh", "-c", task.run],
                working_directory=task.working_directory,
                timeout_seconds=TASK_SECONDS,
                exec_id=identity,
                keep_background=False,
                as_root=task.run_as_root,
                task=f"{task.type} {task.name}",
                secrets={key: self.secret(name) for key, name in task.secrets.items()},
            )
        trouble = outcome(done)
        told = trouble or "ended with status 0"
        if task.background and _was_killed(done):
            trouble, told = None, "was ended with the phase"
        elapsed = 0.0 if done.result is None else done.result.elapsed_seconds
        self.log.say(f"task {task.name} {told} after {elapsed:.1f} s")
        self.log.record(record.ended(told, done.result, is_ok=trouble is None))
        return trouble

    def _judge(self, task: TemplateTask, number: int, trouble: str | None) -> None:
        if trouble is None:
            return
        if task.on_failure is OnFailure.CONTINUE:
            self.log.say(f"the build goes on, as task {task.name} allows")
            return
        error = WorkspaceError(
            f"cannot build template {self.template}: task {task.name} {trouble}",
            hint=f"Read the build's log: `forkyard template show {self.template} --log`.",
        )
        tail = self.log.tail(f"task-{number}")
        raise StepError("task", error, task=task.name, tail=tail)


def _was_killed(done: Exec) -> bool:
    return done.result is not None and done.result.stop_reason is StopReason.KILLED
