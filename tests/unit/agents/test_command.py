"""The command driver: what it runs, and what an end of it means."""

from __future__ import annotations

import pytest

from forkyard.agents.command import CommandDriver
from forkyard.agents.registry import driver_named
from forkyard.errors import ConfigError
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.ids import new_exec_id, new_snapshot_id
from forkyard.model.run import AgentSpec, Task


def _agent(command: str = "true", **variables: str) -> AgentSpec:
    return AgentSpec(name="mine", driver="command", command=command, variables=variables)


def _ended(
    reason: StopReason, exit_code: int | None = None, detail: str | None = None
) -> ExecResult:
    return ExecResult(
        id=new_exec_id(),
        stop_reason=reason,
        exit_code=exit_code,
        elapsed_seconds=1.0,
        stdout_bytes=0,
        stderr_bytes=0,
        detail=detail,
    )


def test_shell_gets_command_when_prompt_holds_shell_words() -> None:
    """The prompt is a variable, never part of the command line."""
    task = Task(name="t", prompt="'; rm -rf $HOME", snapshot=new_snapshot_id(), agents=())
    command = CommandDriver().command(_agent('agent "$PROMPT"', LEVEL="high", PROMPT="x"), task)
    assert command.argv == ("/bin/sh", "-c", 'agent "$PROMPT"')
    assert command.variables == {"LEVEL": "high", "PROMPT": "'; rm -rf $HOME"}
    assert command.working_directory == task.repository


@pytest.mark.parametrize(
    ("result", "has_started"),
    [
        (_ended(StopReason.EXITED, 0), True),
        (_ended(StopReason.EXITED, 1), True),
        (_ended(StopReason.EXITED, 126), False),
        (_ended(StopReason.EXITED, 127), False),
        (_ended(StopReason.COULD_NOT_START, None, "no such directory"), False),
        (_ended(StopReason.MEMORY, 137, "memory limit"), True),
    ],
)
def test_start_is_told_from_failure_when_command_ends(
    result: ExecResult, *, has_started: bool
) -> None:
    """Statuses by which a shell says that it found nothing to run are no ordinary failures."""
    ending = CommandDriver().ending(_agent(), result)
    assert ending.has_started is has_started
    assert has_started or ending.detail is not None


@pytest.mark.parametrize("agent", [_agent(" "), _agent("a\0b"), _agent("a", KEY="\0")])
def test_configuration_is_refused_when_no_process_could_have_it(agent: AgentSpec) -> None:
    """Empty commands and NUL characters are told before anything runs."""
    assert CommandDriver().check(agent) is not None


def test_drivers_are_listed_when_name_is_unknown() -> None:
    """The message says what there is."""
    assert driver_named("command").check(_agent()) is None
    with pytest.raises(ConfigError, match="'telepathy': this version has command"):
        driver_named("telepathy")
