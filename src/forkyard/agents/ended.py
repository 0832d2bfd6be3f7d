"""What the end of an installed agent means: its exit status, and what its transcript admits.

An exit status of 0 and the word "success" are the agent's claims. Whether it solved anything is
for the evaluation to say.
"""

from __future__ import annotations

from forkyard.agents.interface import AgentEnding
from forkyard.agents.trajectory import Trajectory
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.run import AgentSpec

NOT_STARTED = frozenset({126, 127})
"""What a shell, and our launcher, answer where a program cannot be run."""


def ending_of(
    agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
) -> AgentEnding:
    """Tell an agent that could not start from one that failed, and both from one that ended."""
    error = None if transcript is None else transcript.api_error
    claims = None if transcript is None else transcript.claimed_success
    if result.stop_reason is StopReason.COULD_NOT_START:
        reason = result.detail or "no reason given"
    elif (
        result.stop_reason is StopReason.EXITED
        and result.exit_code in NOT_STARTED
        and (transcript is None or not transcript.steps)
    ):
        reason = f"its program or what it runs on was not found (exit {result.exit_code})"
    else:
        return AgentEnding(
            has_started=True,
            detail=_detail(agent, result, error),
            # An error that was its last word outweighs whatever it claims beside it.
            claims_success=False if error is not None and result.exit_code else claims,
            api_error=error,
        )
    return AgentEnding(
        has_started=False, detail=f"agent {agent.name} could not start: {reason}", api_error=error
    )


def _detail(agent: AgentSpec, result: ExecResult, error: str | None) -> str | None:
    if error is not None:
        return f"agent {agent.name} ended on an error of its model's API: {error}"
    if result.detail is not None:
        return result.detail
    if result.stop_reason is StopReason.EXITED and result.exit_code:
        return f"agent {agent.name} exited with status {result.exit_code}"
    return None
