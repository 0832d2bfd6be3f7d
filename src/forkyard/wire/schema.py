"""What server and client say to each other about templates, snapshots, workspaces and execs.

Requests forbid unknown keys: what cannot be honoured is refused, never ignored. Answers ignore
keys the reader does not know, so that a newer server can still be asked for its version.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from forkyard.model.hosts import MOST_ENTRIES, rule_problem
from forkyard.model.ids import is_id
from forkyard.model.workspace import NetworkPolicy
from forkyard.wire.errors import printable
from forkyard.wire.units import MOST_MICRO_USD, MOST_TOKENS

API_VERSION = 1

MOST_LIFETIME_SECONDS = 10 * 365 * 86400.0

INLINE_OUTPUT_BYTES = 1024**2
"""Output up to this size travels inside the exec's own answer; more is fetched by offset."""


def _printable(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_printable)]
"""Text that may come from an agent: undecodable bytes appear as ``\\xNN``."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def _is_name(value: str) -> str:
    if re.fullmatch(_NAME, value) is None:
        raise ValueError(
            f"{value[:120]!r} is no name: use letters, digits, '.', '-' and '_', starting with a"
            " letter or digit, 100 characters at most"
        )
    return value


Name = Annotated[str, AfterValidator(_is_name), Field(json_schema_extra={"pattern": f"^{_NAME}$"})]
"""A name that people type and that is safe in paths, URLs and shells."""


class RequestModel(BaseModel):
    """Base of what a client sends."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class AnswerModel(BaseModel):
    """Base of what the server answers."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, defer_build=True)


class Nothing(AnswerModel):
    """The answer of a request that has nothing to say but success."""


class VersionInfo(AnswerModel):
    """Which server answers, and whether it has anything to do."""

    version: str
    api_version: int
    pid: int
    home: str
    started_at: str
    active: int = 0
    """Runs, builds and sandboxes in progress."""


class DoctorReport(AnswerModel):
    """What isolation is in force on this machine."""

    runtime: str | None
    storage_mode: str
    protections: dict[str, str] = {}
    problems: list[Text] = []
    notes: list[Text] = []
    digest: str = ""
    home: str = ""
    free_bytes: int | None = None


class TemplateRequest(RequestModel):
    """A template file as text, with the path it was read from: relative paths start there."""

    name: Name
    text: str
    file: str


Vars = Annotated[dict[str, Annotated[str, Field(max_length=64 * 1024)]], Field(max_length=200)]
"""Values of a template's `vars`, as text."""


class BuildRequest(RequestModel):
    """Build a template, with other values of its `vars` where some are given."""

    vars: Vars = {}


class FailureInfo(AnswerModel):
    """What a build failed at."""

    word: str
    """`pull`, `build`, `clone`, `start`, `task`, `stop` or `snapshot`."""
    task: Text | None = None
    tail: Text = ""
    """The end of that task's output."""


class TaskInfo(AnswerModel):
    """One task of a template's newest build."""

    name: Text
    type: str
    number: int
    started_at: str
    background: bool = False
    as_root: bool = False
    outcome: Text = ""
    is_ok: bool = True
    exit_code: int | None = None
    elapsed_seconds: float = 0.0


class TemplateInfo(AnswerModel):
    """A named recipe and the snapshot its last good build made."""

    id: str
    name: str
    state: str
    created_at: str
    snapshot: str | None = None
    """Of its last good build with the defaults of its `vars`."""
    last_build: str | None = None
    """Of its last good build, whatever the values."""
    trouble: Text | None = None
    failure: FailureInfo | None = None
    image: Text = ""
    parameters: dict[str, Text] = {}
    """Its `vars` with their defaults."""
    secrets: list[str] = []
    """Names of the secrets that a build needs."""
    notes: list[Text] = []
    """What a person should know of it on this machine."""
    tasks: list[TaskInfo] = []
    """Of its newest build, in order; only where one template is shown."""


class SnapshotRequest(RequestModel):
    """Take a snapshot of a workspace."""

    name: Name
    workspace: str


class BaseInfo(AnswerModel):
    """What a snapshot's repository really held."""

    repository: str
    commit: str | None
    tree: str
    branch: Text | None = None
    uncommitted: bool = False
    notes: list[Text] = []


class SnapshotInfo(AnswerModel):
    """Immutable state of a workspace's files."""

    id: str
    name: str
    state: str
    created_at: str
    layers: list[str] = []
    base: BaseInfo | None = None
    workspace: str | None = None
    """The one that it was taken from."""
    sealed_of: str | None = None
    trouble: Text | None = None
    parent: str | None = None
    """The snapshot that its workspace stood on."""
    depth: int = 0
    """How many snapshots it stands on, each on the next."""
    frozen_seconds: float | None = None
    """Where its workspace ran: for so long everything in it was frozen; the files are consistent
    at file-system level."""
    bytes_total: int | None = None
    """On disk, of all its layers; null while it is not measured."""
    bytes_unique: int | None = None
    """What deleting it would give back."""


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


class PatchInfo(AnswerModel):
    """A workspace's change against its snapshot's recorded base."""

    workspace: str
    status: str
    base_tree: str
    result_tree: str
    patch_sha256: str
    patch: str
    """Base64 of the patch's bytes."""
    files: list[FileChangeInfo] = []
    left_out: list[LeftOutInfo] = []
    ignored: list[LeftOutInfo] = []
    problems: list[Text] = []


class FileChangeInfo(AnswerModel):
    """One path that differs."""

    path: Text
    kind: str
    old_mode: str | None = None
    new_mode: str | None = None
    size_bytes: int = 0
    added_lines: int | None = None
    deleted_lines: int | None = None


class LeftOutInfo(AnswerModel):
    """Something that is not carried, and why."""

    path: Text
    reason: Text


class EventInfo(AnswerModel):
    """One entry of the journal, as the event stream tells it."""

    sequence: int
    at: str
    kind: str
    id: str
    state: str | None = None
    note: Text = ""
    run: str | None = None
    """The run it belongs to, where there is one."""


class DriverInfo(AnswerModel):
    """One way to run an agent."""

    name: str
    summary: str
    version: str | None = None
    """As it is pinned; null: it is the user's own command."""
    provider: str | None = None
    """Whom it talks to where an agent names nobody."""
    model: str | None = None
    """What it uses where an agent names none."""
    installed: bool | None = None
    """null: there is nothing to install."""


class ArchiveInfo(AnswerModel):
    """One published archive that an agent is installed from."""

    registry: str
    name: str
    version: str
    file: str
    sha512: str


class DriverReport(DriverInfo):
    """How it stands with one agent's installation."""

    folder: Text | None = None
    """Where it is installed."""
    archives: list[ArchiveInfo] = []
    needs: str = ""
    """What it needs of the image."""
    problems: list[Text] = []
    notes: list[Text] = []


class InstallProgress(AnswerModel):
    """How the installation of an agent goes."""

    doing: Text | None = None
    """Which archive is fetched, what is unpacked; None: nothing is being done."""
    size_bytes: int = 0
    """On disk so far."""


class InstallRequest(RequestModel):
    """Install an agent."""

    source: Annotated[str, Field(pattern=r"^/")] | None = None
    """Folder of its archives; null: they are fetched."""
    variables: dict[str, str] = {}
    """What the caller's environment says of package registries."""


class GarbageRequest(RequestModel):
    """Remove what nothing needs any more."""

    dry_run: bool = False
    """Say it only."""
    older_than_seconds: Annotated[float, Field(ge=0)] | None = None
    """Since a run ended, for the snapshot that was made for it; by default a week."""


class RemovedInfo(AnswerModel):
    """One thing that is gone, or would be."""

    kind: str
    """`snapshot`, `template`, `record`, `layer`, `objects`, `root`, `blob`, `log`, `leftover`."""
    name: Text
    size_bytes: int = 0


class GarbageReport(AnswerModel):
    """What was removed because nothing needed it any more, or would be."""

    removed: list[RemovedInfo] = []
    size_bytes: int = 0
    """Of all of it, on disk."""
    dry_run: bool = False


class StopRequest(RequestModel):
    """Ask the server to exit; running sandboxes stay and are re-attached at the next start."""

    only_if_idle: bool = False


PatchInfo.model_rebuild()
