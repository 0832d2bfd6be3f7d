"""Which drivers exist."""

from __future__ import annotations

from forkyard.agents.claude_code import ClaudeCode
from forkyard.agents.codex import Codex
from forkyard.agents.command import CommandDriver
from forkyard.agents.gemini import Gemini
from forkyard.agents.interface import AgentDriver
from forkyard.agents.mini_swe_agent import MiniSweAgent
from forkyard.agents.opencode import Opencode
from forkyard.errors import ConfigError

_DRIVERS: dict[str, AgentDriver] = {
    driver.name: driver
    for driver in (
        CommandDriver(),
        ClaudeCode(),
        Codex(),
        Opencode(),
        Gemini(),
        MiniSweAgent(),
    )
}


def driver_names() -> tuple[str, ...]:
    """List the drivers that a task file may name."""
    return tuple(_DRIVERS)


def driver_named(name: str) -> AgentDriver:
    """Find a driver.

    Raises:
        ConfigError: There is none of that name; those that exist are listed.
    """
    driver = _DRIVERS.get(name)
    if driver is None:
        raise ConfigError(
            f"cannot use driver {name!r}: this version has {', '.join(_DRIVERS)}",
            hint="Use `driver: command` with the agent's own command line.",
        )
    return driver
