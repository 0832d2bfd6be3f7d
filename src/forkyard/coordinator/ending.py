"""What the end of an agent's command means for its attempt: pure."""

from __future__ import annotations

from dataclasses import dataclass

from forkyard.agents.registry import driver_named
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.run import AgentSpec, Attempt, AttemptState, RunLimits, Task

ENDED_BY_US = frozenset({StopReason.KILLED, StopReason.INTERRUPTED})
"""Ends that say nothing of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The terminal state that an attempt is going to have, and why."""

    state: AttemptState
    detail: str | None = None
    """Why, when it is the agent's."""
    trouble: str | None = None
    """Why, when it is ours."""


def agent_of(task: Task, attempt: Attempt) -> AgentSpec:
    """Give the agent that an attempt is of."""
    return next(agent for agent in task.agents if agent.name == attempt.agent)


def ending_of(
    result: ExecResult, agent: AgentSpec, limits: RunLimits, *, is_cancelled: bool
) -> Ending:
    """Say what an ended command means.

    Args:
        result: How the agent's command ended.
        agent: Whose command it was.
        limits: Of the run; told in the reason.
        is_cancelled: Whether the run was asked to end.
    """
    match result.stop_reason:
        case StopReason.EXITED | StopReason.COULD_NOT_START:
            told = driver_named(agent.driver).ending(agent, result)
            return Ending(state=AttemptState.FINISHED, detail=told.detail)
        case StopReason.MEMORY | StopReason.DISK:
            detail = result.detail or f"the workspace's {result.stop_reason} struck"
            return Ending(state=AttemptState.FINISHED, detail=detail)
        case StopReason.TIMED_OUT:
            limit = limits.attempt_timeout_seconds
            detail = (
                f"still running at its time limit of {limit:g} s"
                if result.elapsed_seconds >= limit * 0.99
                else "still running at the run's deadline"
            )
            return Ending(state=AttemptState.TIMED_OUT, detail=detail)
        case StopReason.KILLED:
            if is_cancelled:
                return Ending(state=AttemptState.CANCELLED, detail="the run was cancelled")
            return Ending(
                state=AttemptState.INTERRUPTED,
                trouble="its command was ended from outside the run",
            )
        case StopReason.INTERRUPTED:
            return Ending(
                state=AttemptState.INTERRUPTED,
                trouble=result.detail or "its sandbox died while the agent ran",
            )
