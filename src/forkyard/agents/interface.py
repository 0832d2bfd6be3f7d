"""The contract of an agent driver: pure translation between our words and a command line.

A driver starts nothing, reads no file and opens no connection. It says what has to be installed,
which files lie beside the agent before it starts, which command to run for a task, what the end
of that command means, and what its transcript tells. Trouble of ours is never told to a driver:
it sees only what the agent's own process did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from forkyard.agents.trajectory import Trajectory
from forkyard.errors import ConfigError
from forkyard.model.execution import ExecResult
from forkyard.model.run import AgentSpec, Task

AGENTS_ROOT = "/opt/forkyard/agents"
"""Where installed agents appear inside, read-only, one folder per driver."""
AGENT_FOLDER = "/home/workspace/.forkyard"
"""Each driver keeps its configuration in a folder of its own name below this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One published archive, pinned by its hash; where it comes from is the installer's to know."""

    registry: str
    """`npm` or `pypi`."""
    name: str
    version: str
    file: str
    """The archive's file name, under which an offline folder holds it."""
    sha512: str
    """Hexadecimal; what counts."""
    sha256: str = ""
    """The same for clients that find an archive by this one; empty where none does."""
    place: str = "."
    """Folder it is unpacked into, below the agent's own."""
    strip: int = 1
    """Leading folders of its paths to drop."""
    keep: tuple[str, ...] = ()
    """Only these folders and files of it, after stripping; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What makes an agent run with nothing of the host's: its archives and its runtime's."""

    version: str
    packages: tuple[Package, ...]
    program: str
    """Path of the executable below the agent's folder."""
    library: str = ""
    """Folder of Python modules below the agent's, compiled when it is installed; empty: none."""
    needs: str = ""
    """What it needs of the image, for a person; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """What to run in the attempt's workspace; standard input is always closed."""

    argv: tuple[str, ...]
    working_directory: str
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Absolute path inside -> text, written before the start; all below `AGENT_FOLDER`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnding:
    """What the end of an agent's command means."""

    has_started: bool
    """False: the agent could not start at all; that is the agent's, and `detail` says why."""
    detail: str | None = None
    """A clause for a person; None where there is nothing to say beyond the exit status."""
    claims_success: bool | None = None
    """What the agent itself said of its end; a claim, never a finding. None: it said nothing."""
    api_error: str | None = None
    """The last error of its model's API that the transcript shows; None where there is none."""


class AgentDriver(Protocol):
    """One kind of agent; see the module for the rules."""

    @property
    def name(self) -> str:
        """The word after ``driver:`` in a task file."""
        ...

    @property
    def title(self) -> str:
        """Name it as its makers do."""
        ...

    @property
    def api(self) -> str | None:
        """Default provider's name (`anthropic`, `openai`, `gemini`); None: it calls no model."""
        ...

    @property
    def default_model(self) -> str | None:
        """Name the model that is used where an agent names none; None: it calls no model."""
        ...

    @property
    def recipe(self) -> Recipe | None:
        """Say what has to be installed; None: nothing."""
        ...

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Say what is wrong with an agent's configuration, if anything."""
        ...

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Build the command that makes this agent work on a task."""
        ...

    def ending(
        self, agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
    ) -> AgentEnding:
        """Say what the command's end means."""
        ...

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Read what the agent printed; None: this kind of agent prints no transcript.

        Args:
            lines: Standard output, hostile like everything an agent writes; a line that is not
                understood is skipped and counted.
        """
        ...
