"""The steps of one attempt's life. Each begins from what the journal says, never from memory.

A step is entered again after a crash, so it first looks whether its work, or a part of it, is
done. The agent's own time is `agent_steps`.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.base.durable import failpoint
from forkyard.base.removal import remove_tree
from forkyard.base.masking import Masker
from forkyard.config import Layout
from forkyard.coordinator.commands import Command
from forkyard.coordinator.disk import DiskFloor
from forkyard.coordinator.interface import (
    CollectorPort,
    EvaluatorPort,
    WorkspacesPort,
)
from forkyard.coordinator.logs import keep_logs
from forkyard.coordinator.rows import Rows, names_of
from forkyard.coordinator.view import CLEANUP_DONE, CLEANUP_KEPT
from forkyard.errors import ForkyardError, InternalError, StoreError, WorkspaceError
from forkyard.model.ids import (
    EvaluationId,
    ExecId,
    WorkspaceId,
    new_evaluation_id,
    new_exec_id,
    new_workspace_id,
)
from forkyard.model.run import Attempt, AttemptState, Task, TaskProgress
from forkyard.model.verdict import Assurance, Baseline, Evaluation, VerdictKind
from forkyard.model.workspace import (
    Limits,
    NetworkPolicy,
    WorkspaceState,
)
from forkyard.store.journal import Change


@dataclass(slots=True, kw_only=True)
class AttemptSteps:
    """The parts that the steps need; see the module."""

    rows: Rows
    workspaces: WorkspacesPort
    collector: CollectorPort
    evaluator: EvaluatorPort
    layout: Layout
    floor: DiskFloor
    masker: Masker

    async def prepare(self, command: Command) -> None:
        """Fork a workspace and run its sandbox, or adopt the one a crash left behind."""
        attempt, run, task, progress = self.rows.about(command)
        if attempt.state is AttemptState.QUEUED:
            trouble = self.floor.trouble()
            if trouble is not None:
                await self._could_not_run(attempt, trouble)
                return
            attempt = await self.rows.commit(attempt, _intended(attempt), "preparing")
            failpoint("C02")
        try:
            if not self._has_sandbox(attempt):
                attempt = await self._fork(attempt, task, progress)
        except StoreError:
            raise
        except ForkyardError as error:
            await self._could_not_run(self.rows.current(attempt.id), error.message)
            return
        failpoint("C07")
        started = self.rows.clock.now()
        await self.rows.commit(
            attempt,
            replace(attempt, state=AttemptState.RUNNING, started_at=started),
            f"agent {attempt.agent} starts in run {run.name}",
        )

    async def collect(self, command: Command) -> None:
        """Stop the sandbox, take the candidate out of the dead workspace."""
        attempt, run, task, _ = self.rows.about(command)
        _, workspace_id = names_of(attempt)
        workspace = await self.workspaces.stop(workspace_id)
        failpoint("C12")
        base = self.rows.snapshot(task).base
        if base is None:
            msg = f"cannot collect {attempt.id}: snapshot {task.snapshot} has no recorded base"
            raise WorkspaceError(msg)
        candidate = await self.collector.collect(
            attempt.id,
            workspace,
            base,
            repository=task.repository,
            out=self.layout.attempt(attempt.run, attempt.id),
            scope=task.scope,
            protected=task.protected,
        )
        run = self.rows.journal.state.runs[run.id]
        collected = replace(attempt, candidate=candidate.id)
        if attempt.ending in (AttemptState.CANCELLED, AttemptState.INTERRUPTED):
            collected = self.rows.ended(collected, attempt.ending)
        elif run.cancel_requested:
            detail = attempt.detail or "the run was cancelled before its evaluation"
            collected = self.rows.ended(replace(collected, detail=detail), AttemptState.CANCELLED)
        else:
            collected = replace(collected, state=AttemptState.EVALUATING)
        await self.rows.journal.append_all(
            [
                Change(entity=candidate, note=f"collected from {attempt.id}", expect=None),
                Change(entity=collected, note="collected", expect=attempt),
            ]
        )

    async def evaluate(self, command: Command) -> None:
        """Judge the candidate; trouble of ours is a verdict of its own.

        A command with a trouble runs nothing: it stands where the baseline would.
        """
        attempt, _, task, progress = self.rows.about(command)
        baseline = progress.baseline
        if command.trouble is not None:
            baseline = Baseline(checks=(), trouble=command.trouble)
        if attempt.candidate is None or baseline is None:
            msg = f"cannot evaluate {attempt.id}: it has no candidate, or its task no baseline"
            raise InternalError(msg)
        candidate = self.rows.journal.state.candidates[attempt.candidate]
        identity = new_evaluation_id()
        results = self.layout.attempt(attempt.run, attempt.id)
        try:
            await asyncio.to_thread(self._discard_unfinished, results)
            evaluation = await self.evaluator.evaluate(
                task,
                self.rows.sealed(progress),
                candidate,
                baseline,
                out=results / identity,
                evaluation_id=identity,
            )
        except StoreError:
            raise
        except ForkyardError as error:
            evaluation = Evaluation(
                id=identity,
                candidate=candidate.id,
                result_tree=candidate.result_tree,
                verdict=VerdictKind.NOT_EVALUATED,
                assurance=Assurance.NONE,
                created_at=self.rows.clock.now(),
                reasons=("trouble of ours, not the candidate's",),
                trouble=error.message,
            )
        judged = replace(attempt, evaluation=evaluation.id)
        await self.rows.journal.append_all(
            [
                Change(entity=evaluation, note=f"judged {candidate.id}"),
                Change(
                    entity=self.rows.ended(judged, attempt.ending or AttemptState.FINISHED),
                    note=f"verdict {evaluation.verdict}",
                    expect=attempt,
                ),
            ]
        )

    async def end(self, command: Command) -> None:
        """Give the attempt its terminal state without more work."""
        attempt, *_ = self.rows.about(command)
        ended = self.rows.ended(attempt, command.ending or AttemptState.COULD_NOT_RUN)
        ended = replace(
            ended,
            trouble=command.trouble or attempt.trouble,
            detail=command.detail or attempt.detail,
        )
        if attempt.state is AttemptState.COLLECTING:
            ended = replace(ended, cleanup=CLEANUP_KEPT)
        elif not self.rows.owned(attempt.id):
            ended = replace(ended, cleanup=CLEANUP_DONE)
        await self.rows.commit(attempt, ended, ended.trouble or ended.detail or "ended")

    async def clean_up(self, command: Command) -> None:
        """Keep the logs whole, then delete everything the attempt held on the host."""
        attempt, *_ = self.rows.about(command)
        if attempt.workspace is not None and attempt.exec is not None:
            await self.workspaces_stopped(attempt.workspace)
            await asyncio.to_thread(keep_logs, self.layout, attempt, self.masker)
        for workspace in self.rows.owned(attempt.id):
            await self.workspaces.delete(workspace.id)
        await self.rows.commit(attempt, replace(attempt, cleanup=CLEANUP_DONE), "cleaned up")

    async def workspaces_stopped(self, workspace_id: WorkspaceId) -> None:
        """Make sure that nothing writes into a workspace any more."""
        workspace = self.rows.journal.state.workspaces.get(workspace_id)
        gone = (WorkspaceState.DELETED, WorkspaceState.DELETING, WorkspaceState.STOPPED)
        if workspace is not None and workspace.state not in gone:
            await self.workspaces.stop(workspace_id)

    # -- preparing ---------------------------------------------------------------------------

    def _has_sandbox(self, attempt: Attempt) -> bool:
        """Say whether the sandbox that a crash left behind can be taken over."""
        if attempt.workspace is None or attempt.exec is None:
            return False
        workspace = self.rows.journal.state.workspaces.get(attempt.workspace)
        if workspace is None or workspace.state is not WorkspaceState.RUNNING:
            return False
        return ExecId(attempt.exec) not in self.rows.journal.state.execs

    async def _fork(self, attempt: Attempt, task: Task, progress: TaskProgress) -> Attempt:
        leftovers = self.rows.owned(attempt.id)
        for leftover in leftovers:
            await self.workspaces.delete(leftover.id)
        if leftovers:
            attempt = await self.rows.commit(attempt, _intended(attempt), "prepared from scratch")
        _, workspace = names_of(attempt)
        creation = asyncio.ensure_future(
            self.workspaces.create(
                self.rows.sealed(progress).id,
                display_name=f"{task.name}/{attempt.agent}-{attempt.number}",
                ephemeral=True,
                network=NetworkPolicy.NONE,
                limits=None if task.limits == Limits() else task.limits,
                owner=attempt.id,
                workspace_id=workspace,
            )
        )
        try:
            await asyncio.shield(creation)
        finally:
            # who cleans up after a cancellation must find all that was made
            while not creation.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([creation])
        await self.workspaces.start(workspace)
        return attempt

    async def _could_not_run(self, attempt: Attempt, trouble: str) -> None:
        ended = replace(self.rows.ended(attempt, AttemptState.COULD_NOT_RUN), trouble=trouble)
        if not self.rows.owned(attempt.id):
            ended = replace(ended, cleanup=CLEANUP_DONE)
        await self.rows.commit(attempt, ended, trouble)

    def _discard_unfinished(self, results: Path) -> None:
        """Remove what evaluations left behind that a crash or a cancellation cut short."""
        for path in results.glob("eval_*"):
            if EvaluationId(path.name) not in self.rows.journal.state.evaluations:
                remove_tree(path, self.layout.trash)


def _intended(attempt: Attempt) -> Attempt:
    """Name everything that is going to be made for an attempt."""
    return replace(
        attempt,
        state=AttemptState.PREPARING,
        workspace=new_workspace_id(),
        exec=new_exec_id(),
    )
