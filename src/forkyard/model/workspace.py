"""Templates, snapshots and workspaces as values, with the states they may be in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forkyard.model.budget import Budget
from forkyard.model.ids import LayerId, SnapshotId, TemplateId, WorkspaceId

WORKSPACE_ROOT = "/workspace"
REPOSITORY = "/workspace/repo"
USER_NAME = "workspace"
USER_ID = 1000
USER_HOME = "/home/workspace"


class NetworkPolicy(StrEnum):
    """What a sandbox can reach; everything starts from an empty network namespace."""

    NONE = "none"
    GATEWAY = "gateway"
    """The gateway's providers under their names, and nothing else."""
    OPEN = "open"
    """The internet, but neither this host nor private, link-local or metadata addresses."""
    ALLOWLIST = "allowlist"
    """The named hosts by a proxy of ours, for attempts the gateway's providers, nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Hard limits of one running workspace. None means no limit of ours."""

    cpu_millicores: int | None = None
    memory_bytes: int | None = 4 * 1024**3
    processes: int | None = 512
    disk_bytes: int | None = None
    disk_inodes: int | None = None
    disk_is_hard: bool = False
    """Whether the disk limit must be enforced by the file system, not watched."""
    output_bytes: int = 256 * 1024**2
    """Per exec and stream; what a command prints past this is counted and dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyMount:
    """A host folder shown read-only at the same path, such as a toolchain in the user's home."""

    source: str
    target: str
    reason: str
    """Which file of the repository asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBase:
    """What a snapshot's repository really held, independent of its (untrusted) .git."""

    repository: str
    """Absolute path inside the workspace."""
    commit: str | None
    """The base commit, or None where HEAD could not be read and checked as text."""
    tree: str
    """Git tree id of the files as they were, uncommitted work included, .git excluded."""
    branch: str | None = None
    uncommitted: bool = False
    """Whether the tree differs from the commit's own."""
    untracked: str | None = None
    """Git tree id of those of its files that the commit does not have; all without a commit."""
    notes: tuple[str, ...] = ()
    """What a person should know: why the commit is unknown, what was passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What every exec of a workspace starts with."""

    variables: dict[str, str] = field(default_factory=dict)
    mounts: tuple[ReadOnlyMount, ...] = ()
    repository_source: str | None = None
    """The repository's absolute path on the host, where it also appears inside."""
    host_packages: str | None = None
    """Digest of the host's package state at build time (image `host`)."""
    image: ImageRoot | None = None
    """None with image `host`: then the layers hold only the workspace and the home."""
    is_builder: bool = False
    """Made to build an image in, by this machine's programs; commands as root may then mount, in
    namespaces of the sandbox's own. Nobody else gets into it."""
    tasks: tuple[TemplateTask, ...] = ()
    """What runs each time a sandbox has started (POST_START) or is to stop (PRE_STOP)."""
    network: NetworkPlan | None = None
    """What workspaces can reach by default; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to log in somewhere: a user name, and the name of the secret that is the password."""

    username: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRoot:
    """The OCI image whose root file system a workspace's own lowest layers are."""

    reference: str
    """As the template names it."""
    digest: str
    """Of the image's manifest, such as ``sha256:...``."""
    user_home: str = USER_HOME


class OnFailure(StrEnum):
    """What a failing template task does to the build (the first seed's words)."""

    ABORT = "ON_FAILURE_ABORT"
    CONTINUE = "ON_FAILURE_CONTINUE"


class TaskType(StrEnum):
    """When a template's task runs (the first seed's words)."""

    ON_CREATE = "ON_CREATE"
    """Once, while the template is built; what it wrote is in every fork."""
    POST_START = "POST_START"
    PRE_STOP = "PRE_STOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTask:
    """One command of a template."""

    name: str
    run: str
    working_directory: str = WORKSPACE_ROOT
    on_failure: OnFailure = OnFailure.ABORT
    type: TaskType = TaskType.ON_CREATE
    run_as_root: bool = False
    """As root of the workspace; only where the image is its own."""
    background: bool = False
    """Left running while the next task starts, until its phase or its sandbox ends."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Variable -> name of the secret that is its value; for this task alone."""
    evaluations: bool = False
    """With POST_START: whether it runs where candidates are judged as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositorySource:
    """Where a template's repository comes from: exactly one of path and url."""

    path: str | None = None
    include_uncommitted: bool = False
    """With path: take the working tree as it lies (untracked and ignored files too)."""
    url: str | None = None
    credentials: Credentials | None = None
    """With url: used by the clone alone."""
    branch: str | None = None
    checkout: str | None = None
    """A commit, tag or branch to check out after the clone."""
    depth: int | None = None
    """Commits of history; None for all of it."""
    submodules: bool = False
    target: str = REPOSITORY
    """Where it lies inside."""


class ImageKind(StrEnum):
    """Where an image comes from."""

    HOST = "host"
    REGISTRY = "registry"
    LAYOUT = "layout"
    """A folder in OCI layout."""
    ARCHIVE = "archive"
    """A tar file of an OCI layout or of `docker save`."""
    BUILD = "build"
    """A Dockerfile or Containerfile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """An image other than `host`."""

    kind: ImageKind
    location: str
    """Reference in a registry, absolute path of a layout or archive, or of a build's context."""
    credentials: Credentials | None = None
    containerfile: str | None = None
    """With a build: absolute path of the file; by default the context's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """What a template's workspaces can reach, by phase; evaluations reach nothing."""

    build: NetworkPolicy = NetworkPolicy.OPEN
    """While its ON_CREATE tasks run."""
    workspace: NetworkPolicy = NetworkPolicy.NONE
    """By default for a workspace made from it."""
    allow: tuple[str, ...] = ()
    """Host names, `*.` before one for those below it; for the phases with an allowlist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """A recipe whose build yields a snapshot."""

    image: str = "host"
    """For people; `image_source` says where another one comes from."""
    image_source: ImageSource | None = None
    repository: RepositorySource | None = None
    additional_repositories: tuple[RepositorySource, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    tasks: tuple[TemplateTask, ...] = ()
    limits: Limits = Limits()
    network: NetworkPlan = NetworkPlan()
    parameters: dict[str, str] = field(default_factory=dict)
    """The file's `vars` with the values that hold; a build or run may give others."""
    source_text: str = ""
    """The file, where it has `vars`: read again for other values."""
    source_file: str = ""
    source_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailure:
    """What a build failed at."""

    word: str
    """`pull`, `build`, `clone`, `start`, `task`, `stop` or `snapshot`."""
    task: str | None = None
    tail: str = ""
    """The end of that task's output, secrets masked."""


class TemplateState(StrEnum):
    """Where a template is between its file and its snapshot."""

    APPLIED = "applied"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A named recipe and the snapshot its last good build made."""

    id: TemplateId
    name: str
    spec: TemplateSpec
    state: TemplateState
    created_at: str
    snapshot: SnapshotId | None = None
    """Of its last good build with the defaults of its `vars`."""
    trouble: str | None = None
    failure: BuildFailure | None = None
    """With state `failed`, where it was a step that failed."""
    last_build: SnapshotId | None = None
    """Of its last good build, whatever the values."""


class SnapshotState(StrEnum):
    """A snapshot may be forked only when ready."""

    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Immutable state of a workspace's files: ordered layers and the recorded base."""

    id: SnapshotId
    name: str
    state: SnapshotState
    created_at: str
    layers: tuple[LayerId, ...] = ()
    """Topmost first, as overlayfs lists them."""
    base: RecordedBase | None = None
    environment: Environment = Environment()
    limits: Limits = Limits()
    workspace: WorkspaceId | None = None
    """The workspace it was taken from."""
    template: TemplateId | None = None
    """Whose build made it."""
    parameters: dict[str, str] = field(default_factory=dict)
    """With a template: the values of its `vars`."""
    recipe: str = ""
    """With a template: the digest of what was built, `vars` put in."""
    sealed_of: SnapshotId | None = None
    """Set on the derived snapshot whose history ends at the base commit."""
    trouble: str | None = None
    parent: SnapshotId | None = None
    """The snapshot that its workspace stood on; None for a template's."""
    depth: int = 0
    """How many snapshots it stands on, each on the next."""
    frozen_seconds: float | None = None
    """Set where its workspace ran: for so long everything in it was held still. Its files are
    consistent as a file system's are; what programs had not written yet is not in them."""
    flattening: LayerId | None = None
    """The layer that some of its layers are being merged into."""
    flattened: tuple[LayerId, ...] = ()
    """The layers that it had before some of them were merged: the same files."""


class WorkspaceState(StrEnum):
    """States of a workspace; `starting` and `stopping` own a sandbox or may."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DELETING = "deleting"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """When a workspace is stopped or deleted by itself; by default never."""

    idle_stop_seconds: float | None = None
    """It is stopped when nothing ran in it for so long."""
    expires_at: str | None = None
    """It is deleted then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """One mutable, isolated copy forked from a snapshot."""

    id: WorkspaceId
    snapshot: SnapshotId
    layers: tuple[LayerId, ...]
    environment: Environment
    limits: Limits
    state: WorkspaceState
    created_at: str
    display_name: str = ""
    ephemeral: bool = False
    """Deleted when its owner goes: its attempt, or the client that made it."""
    network: NetworkPolicy = NetworkPolicy.NONE
    slot: int = 0
    """Index of its private id range on this machine."""
    epoch: int = 0
    """Counts sandboxes: each start is a new one, and an old one can never answer for it."""
    trouble: str | None = None
    owner: str | None = None
    """The attempt or evaluation it serves; None for a person's own."""
    allow: tuple[str, ...] = ()
    """With network `allowlist`: the hosts."""
    reaches_models: bool = False
    """With network `allowlist`: the gateway's providers listen inside too."""
    ports_first: int | None = None
    """First of its own range of ports on this machine's loopback, for forwarding."""
    idle_stop_seconds: float | None = None
    """It is stopped when nothing ran in it for so long."""
    expires_at: str | None = None
    """It is deleted then."""
    budget: Budget = Budget()
    """With network `gateway`, and no attempt: what it may spend in all."""


class SpareState(StrEnum):
    """A spare waits for its workspace; then it is over, whether it was taken or removed."""

    WAITING = "waiting"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A sandbox made ahead of time, under the name that the next workspace will have."""

    id: WorkspaceId
    slot: int
    state: SpareState
    created_at: str
