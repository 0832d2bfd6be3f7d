"""What server and client say to each other about itself, templates, snapshots and candidates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forkyard.wire.bodies import AnswerModel, Name, RequestModel, Text, Vars

API_VERSION = 1


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
