"""What a decision sees: the journal's state, and the few facts that live in this process only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forkyard.gateway.interface import RunStatus
from forkyard.model.ids import RunId, WorkspaceId
from forkyard.model.run import TERMINAL_ATTEMPT_STATES, Attempt, AttemptState, Run, RunState
from forkyard.store.projections import State

ACTIVE_RUN_STATES = frozenset({RunState.QUEUED, RunState.RUNNING})
WORKING_STATES = frozenset({AttemptState.PREPARING, AttemptState.RUNNING, AttemptState.COLLECTING})
"""An attempt in one of these holds a place until it leaves them."""

MOST_TRIES = 3
"""Trouble of ours that comes back this often is not going to pass by itself."""

CLEANUP_PENDING = "pending"
CLEANUP_DONE = "done"
CLEANUP_KEPT = "kept"
"""The workspace stays because its work could not be collected: it is never thrown away."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How often a command failed for reasons of ours, and when it may be tried again."""

    count: int
    retry_at: float
    """Monotonic."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Input of `decide`."""

    state: State
    parallel_limit: int
    """How many attempts may be worked on at once on this machine."""
    in_flight: frozenset[str] = frozenset()
    """Keys of the commands being carried out: these keep their place."""
    deadlines: Mapping[RunId, float] = field(default_factory=dict)
    """Monotonic; only runs that have one."""
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """By command key."""
    exhausted: Mapping[WorkspaceId, str] = field(default_factory=dict)
    """Whom a budget refused at the gateway, and why."""
    spent: Mapping[RunId, RunStatus] = field(default_factory=dict)
    """Runs whose budget is worth no further beginning, to all agents or to some."""

    def active_runs(self) -> tuple[Run, ...]:
        """List the runs that are not over, oldest first."""
        return tuple(run for run in self.state.runs.values() if run.state in ACTIVE_RUN_STATES)

    def has_given_up(self, key: str) -> bool:
        """Say whether a command failed too often to be tried again."""
        failure = self.failures.get(key)
        return failure is not None and failure.count >= MOST_TRIES

    def is_waiting(self, key: str, now: float) -> bool:
        """Say whether a command failed and its next try is not due yet."""
        failure = self.failures.get(key)
        return failure is not None and now < failure.retry_at


def is_terminal(attempt: Attempt) -> bool:
    """Say whether an attempt is over."""
    return attempt.state in TERMINAL_ATTEMPT_STATES
