"""What server and client say to each other about workspaces and the commands in them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from forkyard.model.hosts import MOST_ENTRIES, rule_problem
from forkyard.model.ids import is_id
from forkyard.model.workspace import NetworkPolicy
from forkyard.wire.bodies import AnswerModel, RequestModel, Text, Vars
from forkyard.wire.units import MOST_MICRO_USD, MOST_TOKENS

MOST_LIFETIME_SECONDS = 10 * 365 * 86400.0

INLINE_OUTPUT_BYTES = 1024**2
"""Output up to this size travels inside the exec's own answer; more is fetched by offset."""


class LimitsRequest(RequestModel):
    """Hard limits of one workspace; what is absent comes from the snapshot."""

    cpu_millicores: Annotated[int, Field(gt=0)] | None = None
    memory_bytes: Annotated[int, Field(ge=16 * 1024**2)] | None = None
    processes: Annotated[int, Field(ge=8)] | None = None
    disk_bytes: Annotated[int, Field(ge=1024**2)] | None = None
    disk_inodes: Annotated[int, Field(ge=64)] | None = None
    disk_is_hard: bool | None = None
    """Whether a file system of its own enforces the disk limits; as root only."""
    output_bytes: Annotated[int, Field(ge=1024)] | None = None


class LimitsInfo(AnswerModel):
    """Hard limits in force; null means no limit of ours."""

    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    disk_inodes: int | None = None
    disk_is_hard: bool = False
    output_bytes: int | None = None


class WorkspaceRequest(RequestModel):
    """Fork a workspace from a snapshot, or from the snapshot of a template's last build."""

    snapshot: str | None = None
    template: str | None = None
    display_name: Annotated[str, Field(max_length=200)] = ""
    ephemeral: bool = False
    network: NetworkPolicy | None = None
    """Default: as the snapshot's template says, else `none`."""
    allow: Annotated[list[str], Field(max_length=MOST_ENTRIES)] = []
    """With network `allowlist`, and in addition to the template's."""
    limits: LimitsRequest | None = None
    session: Annotated[str, Field(pattern=r"^[0-9A-Za-z]{8,64}$")] | None = None
    """With ephemeral: the client session whose end deletes it."""
    start: bool = False
    """Whether a sandbox is brought up at once, since a command follows."""
    vars: Vars = {}
    """With template: the snapshot that was built with these values."""
    budget_tokens: Annotated[int, Field(gt=0, le=MOST_TOKENS)] | None = None
    """With network `gateway`: most that it may spend in all."""
    budget_micro_usd: Annotated[int, Field(gt=0, le=MOST_MICRO_USD)] | None = None
    """The same in millionths of a US dollar."""
    idle_stop_seconds: Annotated[float, Field(gt=0, le=MOST_LIFETIME_SECONDS)] | None = None
    """It is stopped when nothing ran in it for so long."""
    ttl_seconds: Annotated[float, Field(gt=0, le=MOST_LIFETIME_SECONDS)] | None = None
    """From now; then it is deleted with all it holds."""

    @model_validator(mode="after")
    def _one_origin(self) -> WorkspaceRequest:
        if (self.snapshot is None) == (self.template is None):
            raise ValueError("needs exactly one of snapshot and template")
        if self.vars and self.template is None:
            raise ValueError("vars need a template")
        is_limited = self.budget_tokens is not None or self.budget_micro_usd is not None
        if is_limited and self.network is not NetworkPolicy.GATEWAY:
            raise ValueError("a budget needs network gateway: without, nothing is spent")
        for entry in self.allow:
            if (problem := rule_problem(entry)) is not None:
                raise ValueError(f"allow: {problem}")
        if self.allow and self.network not in (None, NetworkPolicy.ALLOWLIST):
            raise ValueError(f"allow has no meaning with network {self.network}")
        return self


class LifetimeRequest(RequestModel):
    """Say anew when a workspace is stopped or deleted by itself; what is null is never."""

    idle_stop_seconds: Annotated[float, Field(gt=0, le=MOST_LIFETIME_SECONDS)] | None = None
    ttl_seconds: Annotated[float, Field(gt=0, le=MOST_LIFETIME_SECONDS)] | None = None
    """From now."""


class WorkspaceInfo(AnswerModel):
    """One mutable, isolated copy of a snapshot."""

    id: str
    snapshot: str
    state: str
    created_at: str
    display_name: str = ""
    ephemeral: bool = False
    network: str = "none"
    allow: list[Text] = []
    """With network `allowlist`: the hosts."""
    epoch: int = 0
    owner: str | None = None
    trouble: Text | None = None
    limits: LimitsInfo | None = None
    held: dict[str, str] = {}
    """Of one that is shown by itself: each limit, and what holds it here (`enforced by ...`,
    `watched, not enforced`, `not enforced`)."""
    ports_first: int | None = None
    """First of its own range of ports on this machine's loopback."""
    ports_count: int = 0
    idle_stop_seconds: float | None = None
    """It is stopped when nothing ran in it for so long."""
    expires_at: str | None = None
    """It is deleted then, with all it holds."""
    idle_seconds: float | None = None
    """How long nothing has run in it, as far as this server knows; null: it does not run."""
    disk_bytes: int | None = None
    """What it holds beyond its snapshot; null: not asked for."""


class TerminalSize(RequestModel):
    """A terminal's size, in cells."""

    rows: Annotated[int, Field(ge=1, le=4096)] = 24
    columns: Annotated[int, Field(ge=1, le=4096)] = 80


class ExecRequest(RequestModel):
    """Run one command; sending the same id again attaches to it and never runs it twice."""

    id: str
    command: str | None = None
    """Given to ``/bin/sh -c``."""
    argv: list[str] | None = None
    working_directory: str | None = None
    """Default: the repository, or the workspace root where there is none."""
    variables: dict[str, str] = {}
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    keep_background: bool = True
    as_root: bool = False
    """As root of the workspace; only where its image is its own."""
    has_input: bool = False
    """Whether who attaches may write to its standard input; else that is empty."""
    attended: bool = False
    """Whether somebody attaches at once, and wants its output from the first byte on."""
    copy_path: Annotated[str, Field(pattern=r"^/", max_length=4096)] | None = None
    """Files are copied out of this path or into it, instead of a command executed."""
    copy_direction: Literal["out", "in"] = "out"
    terminal: TerminalSize | None = None
    """A terminal of its own; its output is one stream then."""

    @model_validator(mode="after")
    def _sound(self) -> ExecRequest:
        if (self.command is None) == (self.argv is None):
            raise ValueError("needs exactly one of command and argv")
        if self.argv is not None and not (self.argv and self.argv[0]):
            raise ValueError("argv must name a program")
        if not is_id(self.id) or not self.id.startswith("exec_"):
            raise ValueError("id must be exec_ and 6 to 32 hexadecimal digits")
        texts = [self.command or "", self.working_directory or "", *(self.argv or [])]
        texts.append(self.copy_path or "")
        if any("\0" in text for text in (*texts, *self.variables, *self.variables.values())):
            raise ValueError("a command cannot hold a NUL character")
        if any(not name or "=" in name for name in self.variables):
            raise ValueError("a variable's name must be neither empty nor hold '='")
        if self.working_directory is not None and not self.working_directory.startswith("/"):
            raise ValueError("working_directory must be an absolute path inside the workspace")
        return self


class ExecInfo(AnswerModel):
    """One exec: how it ended and, where it is small, what it printed (base64)."""

    id: str
    workspace: str
    state: Literal["running", "ended"]
    created_at: str | None = None
    task: Text = ""
    """The template's task that it is, such as `POST_START db`."""
    stop_reason: str | None = None
    exit_code: int | None = None
    elapsed_seconds: float | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    detail: Text | None = None
    argv: list[Text] = []
    """What was run; given where execs are listed or shown."""
    stdout: str | None = None
    """Base64; null where it is longer than the inline limit."""
    stderr: str | None = None
