"""One shape for every agent's transcript: what it said, which tools it used, what it claims.

Everything here was printed by the agent, so all of it is a claim: what was really spent is in the
gateway's ledger, what was really changed is in the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass

from forkyard.model.budget import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Text by the agent or to it."""

    role: str
    """`assistant`, `user`, `system` or `reasoning`."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One use of a tool."""

    tool: str
    input: str
    """As JSON, or as the text that was handed over."""
    output: str = ""
    exit_status: int | None = None
    is_error: bool = False
    milliseconds: int | None = None
    """None where the transcript does not tell."""


Step = Message | ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A whole transcript."""

    steps: tuple[Step, ...]
    session: str | None = None
    model: str | None = None
    agent_version: str | None = None
    final_text: str | None = None
    """The agent's last words on its work."""
    claimed_success: bool | None = None
    claimed_tokens: TokenCounts | None = None
    """As its own counters have it; the ledger is what counts."""
    api_error: str | None = None
    skipped_lines: int = 0
