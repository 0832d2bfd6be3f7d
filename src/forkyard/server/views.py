"""From journalled values to what the wire says of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from forkyard.coordinator.access import model_of
from forkyard.gateway.interface import GrantStatus, RunStatus
from forkyard.model.budget import UsageRow
from forkyard.model.candidate import Candidate
from forkyard.model.events import Entity, Event
from forkyard.model.execution import Exec
from forkyard.model.ids import WorkspaceId
from forkyard.model.run import TERMINAL_ATTEMPT_STATES, Attempt, Run, Task, TaskProgress
from forkyard.model.verdict import Evaluation
from forkyard.model.workspace import WorkspaceState
from forkyard.server.spending import budget_view, live_view, usage_of_attempt, usage_of_run
from forkyard.store.projections import State
from forkyard.wire.results import (
    AttemptInfo,
    BaseSummary,
    CandidateInfo,
    CandidateSummary,
    EvaluationInfo,
    RankedInfo,
    RunInfo,
    RunSummary,
    TaskInfo,
)
from forkyard.wire.schema import EventInfo
from forkyard.wire.spaces import ExecInfo


def run_view(
    run: Run, state: State, *, is_brief: bool = False, live: RunStatus | None = None
) -> RunInfo:
    """Tell a run with everything it has found out.

    Args:
        run: Which.
        state: Of the journal.
        is_brief: Without files and tests.
        live: What the gateway says of it now.
    """
    attempts = state.attempts_of(run.id)
    grants = {} if live is None else {grant.workspace: grant for grant in live.grants}
    return RunInfo(
        id=run.id,
        name=run.name,
        state=run.state,
        created_at=run.created_at,
        ended_at=run.ended_at,
        deadline_at=run.deadline_at,
        cancel_requested=run.cancel_requested,
        tasks=[
            _task_view(
                task,
                progress,
                [
                    attempt_view(one, state, is_brief=is_brief, live=_grant(one, grants))
                    for one in attempts
                    if one.task == index
                ],
                state,
            )
            for index, (task, progress) in enumerate(zip(run.tasks, run.progress, strict=True))
        ],
        usage=usage_of_run(run, state),
        budget=budget_view(run.limits.budget),
    )


def _grant(attempt: Attempt, grants: Mapping[WorkspaceId, GrantStatus]) -> GrantStatus | None:
    if attempt.state in TERMINAL_ATTEMPT_STATES or attempt.workspace is None:
        return None
    return grants.get(attempt.workspace)


def _task_view(
    task: Task, progress: TaskProgress, attempts: list[AttemptInfo], state: State
) -> TaskInfo:
    snapshot = state.snapshots.get(task.snapshot)
    base = None if snapshot is None else snapshot.base
    ranking = progress.ranking
    return TaskInfo(
        name=task.name,
        base=BaseSummary(
            commit=None if base is None else base.commit,
            tree=None if base is None else base.tree,
            snapshot=task.snapshot,
            uncommitted=base is not None and base.uncommitted,
        ),
        attempts=attempts,
        ranking=[]
        if ranking is None
        else [RankedInfo.model_validate(place) for place in ranking.places],
        winner=None if ranking is None else ranking.winner,
        summary="" if ranking is None else ranking.summary,
        trouble=progress.trouble,
    )


def attempt_view(
    attempt: Attempt,
    state: State,
    *,
    is_brief: bool = False,
    live: GrantStatus | None = None,
) -> AttemptInfo:
    """Tell an attempt with its candidate and evaluation."""
    run = state.runs[attempt.run]
    agent = next((one for one in run.tasks[attempt.task].agents if one.name == attempt.agent), None)
    candidate = None if attempt.candidate is None else state.candidates.get(attempt.candidate)
    evaluation = None if attempt.evaluation is None else state.evaluations.get(attempt.evaluation)
    if is_brief:
        candidate = candidate and replace(candidate, files=())
        evaluation = evaluation and replace(evaluation, checks=())
    return AttemptInfo(
        id=attempt.id,
        agent=attempt.agent,
        number=attempt.number,
        state=attempt.state,
        exit_code=attempt.exit_code,
        elapsed_seconds=attempt.elapsed_seconds,
        cleanup=attempt.cleanup,
        trouble=attempt.trouble,
        detail=attempt.detail,
        workspace=attempt.workspace,
        candidate=None if candidate is None else CandidateSummary.model_validate(candidate),
        evaluation=None if evaluation is None else evaluation_view(evaluation),
        failure=attempt.failure,
        model="" if agent is None else model_of(agent) or "",
        agent_version=attempt.agent_version,
        known_limitations=attempt.limitations,
        claims_success=attempt.claims_success,
        usage=usage_of_attempt(attempt, run, state),
        live=None if live is None else live_view(live),
    )


def evaluation_view(evaluation: Evaluation) -> EvaluationInfo:
    """Tell an evaluation."""
    return EvaluationInfo.model_validate(evaluation)


def candidate_view(candidate: Candidate, state: State) -> CandidateInfo:
    """Tell a candidate by itself."""
    attempt = state.attempts.get(candidate.attempt)
    summary = CandidateSummary.model_validate(candidate)
    return CandidateInfo.model_validate(
        {
            **summary.model_dump(),
            "attempt": candidate.attempt,
            "run": "" if attempt is None else attempt.run,
            "source": None if attempt is None else _source(attempt, state),
            "created_at": candidate.created_at,
            "manifest_sha256": candidate.manifest_sha256,
            "left_out": candidate.left_out,
            "ignored": candidate.ignored,
            "facts": candidate.facts,
        },
        from_attributes=True,
    )


def _source(attempt: Attempt, state: State) -> str | None:
    """Give the folder of this machine that an attempt's repository was taken from."""
    task = state.runs[attempt.run].tasks[attempt.task]
    snapshot = state.snapshots.get(task.snapshot)
    return None if snapshot is None else snapshot.environment.repository_source


def run_summary(run: Run, state: State) -> RunSummary:
    """Tell a run in one line."""
    attempts = state.attempts_of(run.id)
    return RunSummary(
        id=run.id,
        name=run.name,
        state=run.state,
        created_at=run.created_at,
        ended_at=run.ended_at,
        attempts=len(attempts),
        attempts_ended=sum(one.state in TERMINAL_ATTEMPT_STATES for one in attempts),
        winners=[
            None if progress.ranking is None else progress.ranking.winner
            for progress in run.progress
        ],
    )


def exec_view(row: Exec, stdout: str | None = None, stderr: str | None = None) -> ExecInfo:
    """Tell an exec; output is given by the caller, who has read it from its files."""
    result = row.result
    if result is None:
        return ExecInfo(
            id=row.id,
            workspace=row.workspace,
            state=row.state.value,
            created_at=row.created_at,
            task=row.spec.task,
        )
    return ExecInfo(
        id=row.id,
        workspace=row.workspace,
        state=row.state.value,
        created_at=row.created_at,
        task=row.spec.task,
        stop_reason=result.stop_reason,
        exit_code=result.exit_code,
        elapsed_seconds=result.elapsed_seconds,
        stdout_bytes=result.stdout_bytes,
        stderr_bytes=result.stderr_bytes,
        truncated=result.truncated,
        detail=result.detail,
        stdout=stdout,
        stderr=stderr,
    )


def event_view(event: Event, state: State) -> EventInfo:
    """Tell one entry of the journal."""
    value = getattr(event.entity, "state", None)
    return EventInfo(
        sequence=event.sequence,
        at=event.at,
        kind=event.entity_kind,
        id=event.entity.id,
        state=None if value is None else str(value),
        note=event.note,
        run=_run_of(event.entity, state),
    )


def _run_of(entity: Entity, state: State) -> str | None:
    match entity:
        case Run():
            return entity.id
        case Attempt() | UsageRow():
            return entity.run
        case Candidate():
            attempt = state.attempts.get(entity.attempt)
            return None if attempt is None else attempt.run
        case Evaluation():
            candidate = state.candidates.get(entity.candidate)
            return None if candidate is None else _run_of(candidate, state)
        case _:
            return None


def event_bytes(event: EventInfo) -> bytes:
    """Frame an event for a server-sent event stream."""
    data = json.dumps(event.model_dump(), ensure_ascii=True, separators=(",", ":"))
    return f"id: {event.sequence}\nevent: change\ndata: {data}\n\n".encode()


def active(state: State, builds: int = 0) -> int:
    """Count what keeps a server from having nothing to do."""
    runs = sum(run.ended_at is None for run in state.runs.values())
    sandboxes = sum(
        one.state in (WorkspaceState.STARTING, WorkspaceState.RUNNING, WorkspaceState.STOPPING)
        for one in state.workspaces.values()
    )
    return runs + sandboxes + builds
