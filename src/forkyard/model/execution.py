"""One command run in a workspace, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forkyard.model.ids import ExecId, WorkspaceId


class StopReason(StrEnum):
    """Why an exec is over."""

    EXITED = "exited"
    TIMED_OUT = "timed-out"
    KILLED = "killed"
    """Ended on request: cancelled, or the workspace was stopped."""
    MEMORY = "memory-limit"
    """The workspace's memory limit struck while it ran, and it died of SIGKILL."""
    DISK = "disk-limit"
    """The workspace wrote more than its disk limit."""
    COULD_NOT_START = "could-not-start"
    """The command was not found, not executable, or its working directory is missing."""
    INTERRUPTED = "interrupted"
    """Its sandbox died without our doing: trouble of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSpec:
    """What to run. A string command is given to ``/bin/sh -c`` by whoever builds argv."""

    id: ExecId
    workspace: WorkspaceId
    argv: tuple[str, ...]
    working_directory: str
    variables: dict[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    grace_seconds: float = 5.0
    """Between TERM and KILL."""
    output_bytes: int = 256 * 1024**2
    keep_background: bool = True
    """False: whatever the command leaves running is killed when it ends."""
    as_root: bool = False
    """As root of the workspace; only where its image is its own."""
    has_input: bool = False
    """Whether whoever attaches may write to its standard input; else that is /dev/null."""
    attended: bool = False
    """Whether somebody is about to attach who wants its output from the first byte on."""
    task: str = ""
    """The template's task that it is, such as ``POST_START db``; nobody else asked for it."""
    copy: tuple[str, str] | None = None
    """Nothing is executed, but files are copied: `out` or `in`, and a path inside."""
    terminal: tuple[int, int] | None = None
    """Rows and columns of a terminal of its own; output is then one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How an exec ended; its output lies in files whose sizes are given here."""

    id: ExecId
    stop_reason: StopReason
    exit_code: int | None
    """The status, or 128 + signal as a shell tells it; None when it never started or was lost."""
    elapsed_seconds: float
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool = False
    """Whether output past the limit was dropped."""
    detail: str | None = None
    """A clause for a person: which limit struck, why it could not start."""


class ExecState(StrEnum):
    """An exec is journalled before it starts and once more when it is over."""

    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """The journal's row of one exec."""

    id: ExecId
    workspace: WorkspaceId
    epoch: int
    spec: ExecSpec
    state: ExecState
    created_at: str
    result: ExecResult | None = None
