"""The contract of an agent driver: pure translation between our words and a command line.

A driver starts nothing and reads no file. It says which command to run for a task, and what the
end of that command means. Trouble of ours is never told to a driver: it sees only what the
agent's own process did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from forkyard.errors import ConfigError
from forkyard.model.execution import ExecResult
from forkyard.model.run import AgentSpec, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """What to run in the attempt's workspace; standard input is always closed."""

    argv: tuple[str, ...]
    working_directory: str
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnding:
    """What the end of an agent's command means."""

    has_started: bool
    """False: the agent could not start at all; that is the agent's, and `detail` says why."""
    detail: str | None = None
    """A clause for a person; None where there is nothing to say beyond the exit status."""


class AgentDriver(Protocol):
    """One kind of agent; see the module for the rules."""

    @property
    def name(self) -> str:
        """The word after ``driver:`` in a task file."""
        ...

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Say what is wrong with an agent's configuration, if anything."""
        ...

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Build the command that makes this agent work on a task."""
        ...

    def ending(self, agent: AgentSpec, result: ExecResult) -> AgentEnding:
        """Say what the command's end means."""
        ...
