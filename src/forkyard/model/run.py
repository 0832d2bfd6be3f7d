"""Runs, tasks and attempts as values, with the states they may be in and may go to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forkyard.model.budget import Budget
from forkyard.model.connection import Connections
from forkyard.model.ids import (
    AttemptId,
    CandidateId,
    EvaluationId,
    RunId,
    SnapshotId,
    WorkspaceId,
)
from forkyard.model.verdict import Baseline, Check, Ranking
from forkyard.model.workspace import REPOSITORY, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """A named, configured agent."""

    name: str
    driver: str
    command: str
    """What driver `command` runs; the others build theirs."""
    variables: dict[str, str] = field(default_factory=dict)
    attempts: int = 1
    model: str = ""
    """Empty: the driver's own default."""
    provider: str = ""
    """Name of the gateway's provider it talks to; empty: the driver's own default."""
    gateway: bool = False
    """Of driver `command`: let in at the gateway even where neither model nor provider is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutFile:
    """A file that only the evaluation sees; its bytes lie in the blob store."""

    path: str
    """Relative to the repository's root."""
    sha256: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is wanted, where to start from, and how it is judged."""

    name: str
    prompt: str
    snapshot: SnapshotId
    """The snapshot attempts and evaluations fork; already built and ready."""
    agents: tuple[AgentSpec, ...]
    checks: tuple[Check, ...] = ()
    repository: str = REPOSITORY
    scope: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    held_out: tuple[HeldOutFile, ...] = ()
    limits: Limits = Limits()
    allow: tuple[str, ...] = ()
    """Hosts that attempts may reach beside the model; evaluations reach nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits of one submission."""

    parallel: int = 4
    attempt_timeout_seconds: float = 2700.0
    deadline_seconds: float | None = None
    baseline_repeats: int = 2
    budget: Budget = Budget()
    """Of all attempts together."""
    attempt_budget: Budget = Budget()
    """Of each attempt."""
    attempt_requests: int | None = None
    """Most requests to a model that one attempt may make."""


class RunState(StrEnum):
    """States of a run (names that scripts rely on)."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """What a run has found out about one of its tasks."""

    sealed: SnapshotId | None = None
    """The derived snapshot that attempts fork: history up to the base commit and no more."""
    baseline: Baseline | None = None
    ranking: Ranking | None = None
    trouble: str | None = None
    """Trouble of ours that keeps the whole task from running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One submission: tasks x agents x attempts under one deadline."""

    id: RunId
    name: str
    tasks: tuple[Task, ...]
    progress: tuple[TaskProgress, ...]
    """One per task, same order."""
    limits: RunLimits
    state: RunState
    created_at: str
    deadline_at: str | None = None
    """Wall time, for display and for recovery."""
    ended_at: str | None = None
    cancel_requested: bool = False


class Failure(StrEnum):
    """Whose trouble kept an attempt from an ordinary end."""

    PROVIDER = "provider"
    """The model's provider refused, broke off or did not answer; never held against the agent."""
    AGENT = "agent"
    BUDGET = "budget"
    OURS = "ours"


class AttemptState(StrEnum):
    """States of an attempt (names that scripts rely on)."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    COLLECTING = "collecting"
    EVALUATING = "evaluating"
    FINISHED = "finished"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    BUDGET_EXHAUSTED = "budget-exhausted"
    COULD_NOT_RUN = "could-not-run"
    INTERRUPTED = "interrupted"


TERMINAL_ATTEMPT_STATES = frozenset(
    {
        AttemptState.FINISHED,
        AttemptState.TIMED_OUT,
        AttemptState.CANCELLED,
        AttemptState.BUDGET_EXHAUSTED,
        AttemptState.COULD_NOT_RUN,
        AttemptState.INTERRUPTED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One agent in one workspace, with its own identity and deadline."""

    id: AttemptId
    run: RunId
    task: int
    """Index into the run's tasks."""
    agent: str
    number: int
    """1-based among the attempts of the same agent on the same task."""
    epoch: int
    """Raised by every retry; workspace and exec names carry it, so an old one cannot answer."""
    state: AttemptState
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    workspace: WorkspaceId | None = None
    exec: str | None = None
    exit_code: int | None = None
    elapsed_seconds: float | None = None
    ending: AttemptState | None = None
    """Once the agent is over: the terminal state the attempt will have after evaluation."""
    trouble: str | None = None
    """Trouble of ours, in words; never held against the agent."""
    detail: str | None = None
    """Why the agent ended as it did: which limit, which signal, not found."""
    failure: Failure | None = None
    """None: the agent ended as agents do."""
    agent_version: str | None = None
    """As its transcript says."""
    limitations: str | None = None
    """What the agent says of its work's limits; None: none stated."""
    claims_success: bool | None = None
    """What the agent says of its own end; None: nothing."""
    connections: Connections | None = None
    """With an allowlist: what its workspace connected to, or tried to."""
    candidate: CandidateId | None = None
    evaluation: EvaluationId | None = None
    cleanup: str = "pending"
    """`pending` until the workspace and everything it held on the host is gone, then `done`."""
