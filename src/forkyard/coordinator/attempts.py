"""The steps of one attempt's life. Each begins from what the journal says, never from memory.

A step is entered again after a crash, so it first looks whether its work, or a part of it, is
done. What may have spent something (the agent) is never begun a second time: it is attached to,
its recorded end is read, or the attempt is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.agents.registry import driver_named
from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.base.removal import remove_tree
from forkyard.config import Layout
from forkyard.coordinator.commands import Command
from forkyard.coordinator.disk import DiskFloor
from forkyard.coordinator.interface import (
    CollectorPort,
    EvaluatorPort,
    WorkspacesPort,
)
from forkyard.coordinator.logs import keep_logs
from forkyard.coordinator.view import CLEANUP_DONE, CLEANUP_KEPT, is_terminal
from forkyard.errors import ForkyardError, InternalError, StoreError, WorkspaceError
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.ids import (
    AttemptId,
    EvaluationId,
    ExecId,
    RunId,
    WorkspaceId,
    new_evaluation_id,
    new_exec_id,
    new_workspace_id,
)
from forkyard.model.run import AgentSpec, Attempt, AttemptState, Run, Task, TaskProgress
from forkyard.model.verdict import Assurance, Evaluation, VerdictKind
from forkyard.model.workspace import (
    Limits,
    NetworkPolicy,
    Snapshot,
    Workspace,
    WorkspaceState,
)
from forkyard.store.journal import Change, Journal

KILL_PATIENCE_SECONDS = 60.0
"""TERM, grace and KILL take seconds; a sandbox that needs longer is ended whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """What the agent's end means for its attempt."""

    state: AttemptState
    detail: str | None = None
    trouble: str | None = None


@dataclass(slots=True, kw_only=True)
class AttemptSteps:
    """The parts that the steps need; see the module."""

    journal: Journal
    workspaces: WorkspacesPort
    collector: CollectorPort
    evaluator: EvaluatorPort
    layout: Layout
    clock: Clock
    floor: DiskFloor
    remaining_seconds: Callable[[RunId], float | None]
    """Until the run's deadline; None where it has none."""

    async def prepare(self, command: Command) -> None:
        """Fork a workspace and run its sandbox, or adopt the one a crash left behind."""
        attempt, run, task, progress = self._about(command)
        if attempt.state is AttemptState.QUEUED:
            trouble = self.floor.trouble()
            if trouble is not None:
                await self._could_not_run(attempt, trouble)
                return
            attempt = await self._commit(attempt, _intended(attempt), "preparing")
            failpoint("C02")
        try:
            if not self._has_sandbox(attempt):
                attempt = await self._fork(attempt, task, progress)
        except StoreError:
            raise
        except ForkyardError as error:
            await self._could_not_run(self._current(attempt.id), error.message)
            return
        failpoint("C07")
        started = self.clock.now()
        await self._commit(
            attempt,
            replace(attempt, state=AttemptState.RUNNING, started_at=started),
            f"agent {attempt.agent} starts in run {run.name}",
        )

    async def run_agent(self, command: Command) -> None:
        """Run the agent to its end; attach to it, or read its recorded end, where it has begun."""
        attempt, run, task, _ = self._about(command)
        result = await self._exec(attempt, task, run)
        ending = self._ending(attempt, run, task, result)
        failpoint("C11")
        await self._agent_over(attempt, ending, result)

    async def stop_agent(self, command: Command) -> None:
        """End the agent for the command's reason; what it did is collected."""
        attempt, run, task, _ = self._about(command)
        exec_id, _ = _names(attempt)
        result: ExecResult | None = None
        if exec_id in self.journal.state.execs:
            result = await self._kill(attempt, task, run)
        ending = _Ending(
            state=command.ending or AttemptState.INTERRUPTED,
            detail=command.detail,
            trouble=command.trouble,
        )
        if (
            ending.state is AttemptState.TIMED_OUT
            and result is not None
            and result.stop_reason not in _ENDED_BY_US
        ):
            # it ended by itself while we came to end it
            ending = self._ending(attempt, run, task, result)
        await self._agent_over(attempt, ending, result)

    async def collect(self, command: Command) -> None:
        """Stop the sandbox, take the candidate out of the dead workspace."""
        attempt, run, task, _ = self._about(command)
        _, workspace_id = _names(attempt)
        workspace = await self.workspaces.stop(workspace_id)
        failpoint("C12")
        base = self._snapshot(task).base
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
        run = self.journal.state.runs[run.id]
        collected = replace(attempt, candidate=candidate.id)
        if attempt.ending in (AttemptState.CANCELLED, AttemptState.INTERRUPTED):
            collected = self._ended(collected, attempt.ending)
        elif run.cancel_requested:
            detail = attempt.detail or "the run was cancelled before its evaluation"
            collected = self._ended(replace(collected, detail=detail), AttemptState.CANCELLED)
        else:
            collected = replace(collected, state=AttemptState.EVALUATING)
        await self.journal.append_all(
            [
                Change(entity=candidate, note=f"collected from {attempt.id}", expect=None),
                Change(entity=collected, note="collected", expect=attempt),
            ]
        )

    async def evaluate(self, command: Command) -> None:
        """Judge the candidate; trouble of ours is a verdict of its own."""
        attempt, _, task, progress = self._about(command)
        if attempt.candidate is None or progress.baseline is None:
            msg = f"cannot evaluate {attempt.id}: it has no candidate, or its task no baseline"
            raise InternalError(msg)
        candidate = self.journal.state.candidates[attempt.candidate]
        identity = new_evaluation_id()
        results = self.layout.attempt(attempt.run, attempt.id)
        try:
            await asyncio.to_thread(self._discard_unfinished, results)
            evaluation = await self.evaluator.evaluate(
                task,
                self._sealed(progress),
                candidate,
                progress.baseline,
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
                created_at=self.clock.now(),
                reasons=("trouble of ours, not the candidate's",),
                trouble=error.message,
            )
        judged = replace(attempt, evaluation=evaluation.id)
        await self.journal.append_all(
            [
                Change(entity=evaluation, note=f"judged {candidate.id}"),
                Change(
                    entity=self._ended(judged, attempt.ending or AttemptState.FINISHED),
                    note=f"verdict {evaluation.verdict}",
                    expect=attempt,
                ),
            ]
        )

    async def end(self, command: Command) -> None:
        """Give the attempt its terminal state without more work."""
        attempt, *_ = self._about(command)
        ended = self._ended(attempt, command.ending or AttemptState.COULD_NOT_RUN)
        ended = replace(
            ended,
            trouble=command.trouble or attempt.trouble,
            detail=command.detail or attempt.detail,
        )
        if attempt.state is AttemptState.COLLECTING:
            ended = replace(ended, cleanup=CLEANUP_KEPT)
        elif not self._owned(attempt.id):
            ended = replace(ended, cleanup=CLEANUP_DONE)
        await self._commit(attempt, ended, ended.trouble or ended.detail or "ended")

    async def clean_up(self, command: Command) -> None:
        """Keep the logs whole, then delete everything the attempt held on the host."""
        attempt, *_ = self._about(command)
        if attempt.workspace is not None and attempt.exec is not None:
            await self.workspaces_stopped(attempt.workspace)
            await asyncio.to_thread(keep_logs, self.layout, attempt)
        for workspace in self._owned(attempt.id):
            await self.workspaces.delete(workspace.id)
        await self._commit(attempt, replace(attempt, cleanup=CLEANUP_DONE), "cleaned up")

    async def workspaces_stopped(self, workspace_id: WorkspaceId) -> None:
        """Make sure that nothing writes into a workspace any more."""
        workspace = self.journal.state.workspaces.get(workspace_id)
        gone = (WorkspaceState.DELETED, WorkspaceState.DELETING, WorkspaceState.STOPPED)
        if workspace is not None and workspace.state not in gone:
            await self.workspaces.stop(workspace_id)

    # -- preparing ---------------------------------------------------------------------------

    def _has_sandbox(self, attempt: Attempt) -> bool:
        """Say whether the sandbox that a crash left behind can be taken over."""
        if attempt.workspace is None or attempt.exec is None:
            return False
        workspace = self.journal.state.workspaces.get(attempt.workspace)
        if workspace is None or workspace.state is not WorkspaceState.RUNNING:
            return False
        return ExecId(attempt.exec) not in self.journal.state.execs

    async def _fork(self, attempt: Attempt, task: Task, progress: TaskProgress) -> Attempt:
        leftovers = self._owned(attempt.id)
        for leftover in leftovers:
            await self.workspaces.delete(leftover.id)
        if leftovers:
            attempt = await self._commit(attempt, _intended(attempt), "prepared from scratch")
        _, workspace = _names(attempt)
        creation = asyncio.ensure_future(
            self.workspaces.create(
                self._sealed(progress).id,
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
        ended = replace(self._ended(attempt, AttemptState.COULD_NOT_RUN), trouble=trouble)
        if not self._owned(attempt.id):
            ended = replace(ended, cleanup=CLEANUP_DONE)
        await self._commit(attempt, ended, trouble)

    # -- running -----------------------------------------------------------------------------

    async def _exec(self, attempt: Attempt, task: Task, run: Run) -> ExecResult:
        exec_id, workspace = _names(attempt)
        agent = _agent(task, attempt)
        command = driver_named(agent.driver).command(agent, task)
        timeout = run.limits.attempt_timeout_seconds
        remaining = self.remaining_seconds(run.id)
        if remaining is not None:
            timeout = min(timeout, max(remaining, 0.1))
        try:
            ended = await self.workspaces.exec(
                workspace,
                command.argv,
                working_directory=command.working_directory,
                variables=command.variables,
                timeout_seconds=timeout,
                exec_id=exec_id,
                keep_background=False,
            )
        except StoreError:
            raise
        except ForkyardError:
            # Its end may be known all the same. If not, it runs on, or nothing was begun: then
            # asking again attaches, or begins what never was.
            known = self.journal.state.execs.get(exec_id)
            if known is None or known.result is None:
                raise
            return known.result
        if ended.result is None:
            msg = f"cannot follow exec {exec_id}: it returned before its end"
            raise InternalError(msg)
        return ended.result

    async def _kill(self, attempt: Attempt, task: Task, run: Run) -> ExecResult | None:
        exec_id, workspace = _names(attempt)
        try:
            async with asyncio.timeout(KILL_PATIENCE_SECONDS):
                await self.workspaces.kill_exec(workspace, exec_id)
                return await self._exec(attempt, task, run)
        except TimeoutError:
            await self.workspaces.stop(workspace)
            ended = self.journal.state.execs.get(exec_id)
            return None if ended is None else ended.result

    def _ending(self, attempt: Attempt, run: Run, task: Task, result: ExecResult) -> _Ending:
        agent = _agent(task, attempt)
        match result.stop_reason:
            case StopReason.EXITED | StopReason.COULD_NOT_START:
                told = driver_named(agent.driver).ending(agent, result)
                return _Ending(state=AttemptState.FINISHED, detail=told.detail)
            case StopReason.MEMORY | StopReason.DISK:
                detail = result.detail or f"the workspace's {result.stop_reason} struck"
                return _Ending(state=AttemptState.FINISHED, detail=detail)
            case StopReason.TIMED_OUT:
                limit = run.limits.attempt_timeout_seconds
                detail = (
                    f"still running at its time limit of {limit:g} s"
                    if result.elapsed_seconds >= limit * 0.99
                    else "still running at the run's deadline"
                )
                return _Ending(state=AttemptState.TIMED_OUT, detail=detail)
            case StopReason.KILLED:
                if self.journal.state.runs[run.id].cancel_requested:
                    return _Ending(state=AttemptState.CANCELLED, detail="the run was cancelled")
                return _Ending(
                    state=AttemptState.INTERRUPTED,
                    trouble="its command was ended from outside the run",
                )
            case StopReason.INTERRUPTED:
                return _Ending(
                    state=AttemptState.INTERRUPTED,
                    trouble=result.detail or "its sandbox died while the agent ran",
                )

    async def _agent_over(
        self, attempt: Attempt, ending: _Ending, result: ExecResult | None
    ) -> None:
        over = replace(
            attempt,
            state=AttemptState.COLLECTING,
            ending=ending.state,
            detail=ending.detail,
            trouble=ending.trouble,
        )
        if result is not None:
            over = replace(over, exit_code=result.exit_code, elapsed_seconds=result.elapsed_seconds)
        await self._commit(attempt, over, f"agent is over: {ending.detail or ending.state}")

    def _discard_unfinished(self, results: Path) -> None:
        """Remove what evaluations left behind that a crash or a cancellation cut short."""
        for path in results.glob("eval_*"):
            if EvaluationId(path.name) not in self.journal.state.evaluations:
                remove_tree(path, self.layout.trash)

    # -- small ones --------------------------------------------------------------------------

    def _about(self, command: Command) -> tuple[Attempt, Run, Task, TaskProgress]:
        if command.attempt is None:
            msg = f"cannot carry out {command.kind}: it names no attempt"
            raise InternalError(msg)
        attempt = self._current(command.attempt)
        run = self.journal.state.runs[attempt.run]
        return attempt, run, run.tasks[attempt.task], run.progress[attempt.task]

    def _current(self, attempt: AttemptId) -> Attempt:
        return self.journal.state.attempts[attempt]

    def _snapshot(self, task: Task) -> Snapshot:
        return self.journal.state.snapshots[task.snapshot]

    def _sealed(self, progress: TaskProgress) -> Snapshot:
        if progress.sealed is None:
            raise InternalError("cannot fork: the task has no sealed snapshot yet")
        return self.journal.state.snapshots[progress.sealed]

    def _owned(self, attempt: AttemptId) -> list[Workspace]:
        return [
            workspace
            for workspace in self.journal.state.workspaces.values()
            if workspace.owner == attempt and workspace.state is not WorkspaceState.DELETED
        ]

    def _ended(self, attempt: Attempt, state: AttemptState) -> Attempt:
        if is_terminal(attempt):
            msg = f"cannot end {attempt.id} twice: it is {attempt.state}"
            raise InternalError(msg)
        return replace(attempt, state=state, ended_at=self.clock.now())

    async def _commit(self, old: Attempt, new: Attempt, note: str) -> Attempt:
        await self.journal.append(new, note, expect=old)
        return new


_ENDED_BY_US = frozenset({StopReason.KILLED, StopReason.INTERRUPTED})


def _intended(attempt: Attempt) -> Attempt:
    """Name everything that is going to be made for an attempt."""
    return replace(
        attempt,
        state=AttemptState.PREPARING,
        workspace=new_workspace_id(),
        exec=new_exec_id(),
    )


def _names(attempt: Attempt) -> tuple[ExecId, WorkspaceId]:
    if attempt.exec is None or attempt.workspace is None:
        msg = f"cannot go on with {attempt.id}: it is {attempt.state} without a workspace"
        raise InternalError(msg)
    return ExecId(attempt.exec), attempt.workspace


def _agent(task: Task, attempt: Attempt) -> AgentSpec:
    return next(agent for agent in task.agents if agent.name == attempt.agent)
