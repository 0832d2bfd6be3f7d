"""The driver of any shell command: the prompt is in ``$PROMPT``, the work is what it leaves."""

from __future__ import annotations

from collections.abc import Iterable

from forkyard.agents.interface import AgentCommand, AgentEnding, Recipe
from forkyard.agents.trajectory import Trajectory
from forkyard.errors import ConfigError
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.run import AgentSpec, Task

PROMPT_VARIABLE = "PROMPT"
NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""What a shell answers when it finds no such command."""


class CommandDriver:
    """Runs ``/bin/sh -c COMMAND`` in the repository."""

    name = "command"
    title = "any shell command"
    api: str | None = None
    default_model: str | None = None
    recipe: Recipe | None = None

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Refuse an empty command, and text that no process can be given."""
        if not agent.command.strip():
            return ConfigError(
                f"cannot use agent {agent.name}: its command is empty",
                hint="Give the shell command that runs the agent.",
            )
        texts = (agent.command, *agent.variables, *agent.variables.values())
        if any("\0" in text for text in texts):
            return ConfigError(
                f"cannot use agent {agent.name}: its command or variables hold a NUL character",
                hint="Remove it.",
            )
        return None

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Give the shell the command; the prompt wins over a variable of the same name."""
        return AgentCommand(
            argv=("/bin/sh", "-c", agent.command),
            working_directory=task.repository,
            variables={**agent.variables, PROMPT_VARIABLE: task.prompt},
        )

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Say that nobody knows what an unknown agent prints."""
        del lines
        return None

    def ending(
        self, agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
    ) -> AgentEnding:
        """Tell an agent that could not start from one that failed."""
        del transcript
        if result.stop_reason is StopReason.COULD_NOT_START:
            return AgentEnding(
                has_started=False,
                detail=f"agent {agent.name} could not start: {result.detail or 'no reason given'}",
            )
        if result.stop_reason is StopReason.EXITED and result.exit_code in (
            NOT_EXECUTABLE,
            NOT_FOUND,
        ):
            reason = (
                "a command in it was not found"
                if result.exit_code == NOT_FOUND
                else "a command in it is not executable"
            )
            return AgentEnding(
                has_started=False,
                detail=f"agent {agent.name} could not start: {reason} (exit {result.exit_code})",
            )
        return AgentEnding(has_started=True, detail=result.detail)
