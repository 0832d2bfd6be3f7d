"""The steps of one attempt's life. Each begins from what the journal says, never from memory.

A step is entered again after a crash, so it first looks whether its work, or a part of it, is
done. The agent's own time is `agent_steps`.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.agents.registry import driver_named
from forkyard.base.durable import failpoint
from forkyard.base.masking import Masker
from forkyard.base.removal import remove_tree
from forkyard.config import Layout
from forkyard.coordinator.access import is_let_in
from forkyard.coordinator.collect_step import has_changed
from forkyard.coordinator.commands import Command
from forkyard.coordinator.disk import DiskFloor
from forkyard.coordinator.ending import agent_of
from forkyard.coordinator.interface import (
    AgentsPort,
    EvaluatorPort,
    WorkspacesPort,
)
from forkyard.coordinator.logs import keep_logs
from forkyard.coordinator.metering import Metering
from forkyard.coordinator.rows import Rows, names_of
from forkyard.coordinator.view import CLEANUP_DONE, CLEANUP_KEPT
from forkyard.errors import (
    ForkyardError,
    GatewayError,
    InternalError,
    StoreError,
    WorkspaceError,
)
from forkyard.model.candidate import Candidate
from forkyard.model.ids import (
    EvaluationId,
    ExecId,
    WorkspaceId,
    new_evaluation_id,
    new_exec_id,
    new_workspace_id,
)
from forkyard.model.run import (
    AgentSpec,
    Attempt,
    AttemptState,
    Failure,
    Run,
    Task,
    TaskProgress,
)
from forkyard.model.verdict import Assurance, Baseline, Evaluation, VerdictKind
from forkyard.model.workspace import (
    Limits,
    NetworkPolicy,
    ReadOnlyMount,
    WorkspaceState,
)
from forkyard.store.journal import Change

WRITE_SECONDS = 60.0
_WRITE_FILES = """\
set -eu
umask 077
while [ $# -gt 0 ]; do
    mkdir -p -- "${1%/*}"
    rm -rf -- "$1"
    printf %s "$2" > "$1"
    shift 2
done
"""
_NOT_ITS_OWN = frozenset({Failure.PROVIDER, Failure.OURS})


@dataclass(slots=True, kw_only=True)
class AttemptSteps:
    """The parts that the steps need; see the module."""

    rows: Rows
    workspaces: WorkspacesPort
    agents: AgentsPort
    metering: Metering
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
        agent = agent_of(task, attempt)
        try:
            attempt, mounts = await self._install(attempt, agent)
            if self._has_sandbox(attempt):
                await self.metering.let_in(attempt, run, agent)
            else:
                attempt = await self._fork(attempt, run, task, progress, mounts)
            await self._write_files(attempt, agent, task)
        except StoreError:
            raise
        except ForkyardError as error:
            attempt = self.rows.current(attempt.id)
            failure = Failure.OURS if isinstance(error, GatewayError) else None
            await self._could_not_run(attempt, _with_hint(error), failure)
            if not self.rows.owned(attempt.id):
                # nothing is cleaned up, but its grant stands until it is taken back
                await self.metering.close(attempt, run, agent)
            return
        failpoint("C07")
        started = self.rows.clock.now()
        await self.rows.commit(
            attempt,
            replace(attempt, state=AttemptState.RUNNING, started_at=started, detail=None),
            f"agent {attempt.agent} starts in run {run.name}",
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
            if attempt.failure in _NOT_ITS_OWN and not has_changed(candidate):
                evaluation = self._not_held_against(attempt, candidate, identity)
            else:
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
        if command.ending is AttemptState.BUDGET_EXHAUSTED:
            ended = replace(ended, failure=Failure.BUDGET)
        if attempt.state is AttemptState.COLLECTING:
            ended = replace(ended, cleanup=CLEANUP_KEPT)
        elif not self.rows.owned(attempt.id):
            ended = replace(ended, cleanup=CLEANUP_DONE)
        await self.rows.commit(attempt, ended, ended.trouble or ended.detail or "ended")

    async def clean_up(self, command: Command) -> None:
        """Keep the logs whole, then delete everything the attempt held on the host."""
        attempt, run, task, _ = self.rows.about(command)
        if attempt.workspace is not None and attempt.exec is not None:
            await self.workspaces_stopped(attempt.workspace)
            if attempt.candidate is None:
                await self.metering.close(attempt, run, agent_of(task, attempt))
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

    async def _install(
        self, attempt: Attempt, agent: AgentSpec
    ) -> tuple[Attempt, tuple[ReadOnlyMount, ...]]:
        """Have the agent there, and say so while it is not."""
        if not self.agents.is_installed(agent.driver):
            detail = f"installing {agent.driver}; that is done once"
            attempt = await self.rows.commit(attempt, replace(attempt, detail=detail), detail)
        return attempt, await self.agents.mounts(agent.driver)

    async def _fork(
        self,
        attempt: Attempt,
        run: Run,
        task: Task,
        progress: TaskProgress,
        mounts: tuple[ReadOnlyMount, ...],
    ) -> Attempt:
        agent = agent_of(task, attempt)
        leftovers = self.rows.owned(attempt.id)
        for leftover in leftovers:
            await self.workspaces.delete(leftover.id)
        if leftovers:
            await self.metering.close(attempt, run, agent)
            attempt = await self.rows.commit(attempt, _intended(attempt), "prepared from scratch")
        _, workspace = names_of(attempt)
        # before its sockets are: a request that comes before its grant only waits
        await self.metering.let_in(attempt, run, agent)
        reaches_models = is_let_in(agent, run.limits)
        creation = asyncio.ensure_future(
            self.workspaces.create(
                self.rows.sealed(progress).id,
                display_name=f"{task.name}/{attempt.agent}-{attempt.number}",
                ephemeral=True,
                network=_network(task, reaches_models=reaches_models),
                allow=task.allow,
                reaches_models=reaches_models,
                limits=None if task.limits == Limits() else task.limits,
                owner=attempt.id,
                workspace_id=workspace,
                mounts=mounts,
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

    async def _write_files(self, attempt: Attempt, agent: AgentSpec, task: Task) -> None:
        """Write the agent's configuration, inside and as its own user; again is fine."""
        files = driver_named(agent.driver).command(agent, task).files
        if not files:
            return
        _, workspace = names_of(attempt)
        argv = ["/bin/sh", "-c", _WRITE_FILES, "sh"]
        for path, text in sorted(files.items()):
            argv += [path, text]
        done = await self.workspaces.exec(
            workspace,
            argv,
            working_directory="/",
            timeout_seconds=WRITE_SECONDS,
            keep_background=False,
        )
        result = done.result
        if result is None or result.exit_code != 0:
            status = "it did not end" if result is None else f"exit status {result.exit_code}"
            raise WorkspaceError(
                f"cannot write the configuration of agent {agent.name} in its workspace: {status}",
                hint="See whether the snapshot's home folder can be written by its user.",
            )

    def _not_held_against(
        self, attempt: Attempt, candidate: Candidate, identity: EvaluationId
    ) -> Evaluation:
        why = attempt.detail or f"the trouble was of the kind {attempt.failure}"
        return Evaluation(
            id=identity,
            candidate=candidate.id,
            result_tree=candidate.result_tree,
            verdict=VerdictKind.NOT_EVALUATED,
            assurance=Assurance.NONE,
            created_at=self.rows.clock.now(),
            reasons=(f"changes nothing, through no fault of the agent: {why}",),
        )

    async def _could_not_run(
        self, attempt: Attempt, trouble: str, failure: Failure | None = None
    ) -> None:
        """End an attempt before its agent; a failure of ours says that it was the gateway."""
        ended = self.rows.ended(attempt, AttemptState.COULD_NOT_RUN)
        ended = replace(ended, trouble=trouble, failure=failure)
        if not self.rows.owned(attempt.id):
            ended = replace(ended, cleanup=CLEANUP_DONE)
        await self.rows.commit(attempt, ended, trouble)

    def _discard_unfinished(self, results: Path) -> None:
        """Remove what evaluations left behind that a crash or a cancellation cut short."""
        for path in results.glob("eval_*"):
            if EvaluationId(path.name) not in self.rows.journal.state.evaluations:
                remove_tree(path, self.layout.trash)


def _with_hint(error: ForkyardError) -> str:
    return error.message if error.hint is None else f"{error.message}; {error.hint}"


def _intended(attempt: Attempt) -> Attempt:
    """Name everything that is going to be made for an attempt."""
    return replace(
        attempt,
        state=AttemptState.PREPARING,
        workspace=new_workspace_id(),
        exec=new_exec_id(),
    )


def _network(task: Task, *, reaches_models: bool) -> NetworkPolicy:
    if task.allow:
        return NetworkPolicy.ALLOWLIST
    return NetworkPolicy.GATEWAY if reaches_models else NetworkPolicy.NONE
