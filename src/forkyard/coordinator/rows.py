"""Reading and changing the rows of attempts: always from the newest value, by compare-and-swap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from forkyard.base.clock import Clock
from forkyard.coordinator.commands import Command
from forkyard.coordinator.view import is_terminal
from forkyard.errors import InternalError
from forkyard.model.ids import AttemptId, ExecId, WorkspaceId
from forkyard.model.run import Attempt, AttemptState, Run, Task, TaskProgress
from forkyard.model.workspace import Snapshot, Workspace, WorkspaceState
from forkyard.store.journal import Journal


class Subject(NamedTuple):
    """What a command about an attempt is about, as the journal has it now."""

    attempt: Attempt
    run: Run
    task: Task
    progress: TaskProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The journal, as the steps of attempts use it."""

    journal: Journal
    clock: Clock

    def about(self, command: Command) -> Subject:
        """Give attempt, run, task and progress that a command is about."""
        if command.attempt is None:
            msg = f"cannot carry out {command.kind}: it names no attempt"
            raise InternalError(msg)
        attempt = self.current(command.attempt)
        run = self.journal.state.runs[attempt.run]
        return Subject(attempt, run, run.tasks[attempt.task], run.progress[attempt.task])

    def current(self, attempt: AttemptId) -> Attempt:
        """Give the newest value of an attempt."""
        return self.journal.state.attempts[attempt]

    def snapshot(self, task: Task) -> Snapshot:
        """Give the snapshot that a task starts from, with its recorded base."""
        return self.journal.state.snapshots[task.snapshot]

    def sealed(self, progress: TaskProgress) -> Snapshot:
        """Give the snapshot that attempts and evaluations fork."""
        if progress.sealed is None:
            raise InternalError("cannot fork: the task has no sealed snapshot yet")
        return self.journal.state.snapshots[progress.sealed]

    def owned(self, attempt: AttemptId) -> list[Workspace]:
        """List the workspaces of an attempt that are not gone, of every epoch."""
        return [
            workspace
            for workspace in self.journal.state.workspaces.values()
            if workspace.owner == attempt and workspace.state is not WorkspaceState.DELETED
        ]

    def ended(self, attempt: Attempt, state: AttemptState) -> Attempt:
        """Give the attempt its terminal state; the only place that does, and never twice."""
        if is_terminal(attempt):
            msg = f"cannot end {attempt.id} twice: it is {attempt.state}"
            raise InternalError(msg)
        return replace(attempt, state=state, ended_at=self.clock.now())

    async def commit(self, old: Attempt, new: Attempt, note: str) -> Attempt:
        """Journal a new value of an attempt, provided that nobody else changed it."""
        await self.journal.append(new, note, expect=old)
        return new


def names_of(attempt: Attempt) -> tuple[ExecId, WorkspaceId]:
    """Give the exec and the workspace that a prepared attempt has."""
    if attempt.exec is None or attempt.workspace is None:
        msg = f"cannot go on with {attempt.id}: it is {attempt.state} without a workspace"
        raise InternalError(msg)
    return ExecId(attempt.exec), attempt.workspace
