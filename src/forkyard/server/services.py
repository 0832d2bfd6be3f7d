"""What the server needs from the rest of the program, by role; bootstrap hands over the parts.

Every call here is idempotent by the id it names, is journalled by whoever serves it, and may be
cancelled without undoing what was begun: a client that goes away ends its wait, nothing else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forkyard.base.clock import Clock
from forkyard.base.masking import Masker
from forkyard.config import Layout
from forkyard.coordinator.garbage import Removed
from forkyard.gateway.interface import RunStatus
from forkyard.model.application import Application
from forkyard.model.budget import Budget
from forkyard.model.candidate import Candidate
from forkyard.model.connection import Connections
from forkyard.model.execution import Exec
from forkyard.model.ids import (
    ApplicationId,
    CandidateId,
    ExecId,
    RunId,
    SnapshotId,
    WorkspaceId,
)
from forkyard.model.run import Attempt, Run
from forkyard.model.secret import Secret
from forkyard.model.workspace import (
    Lifetime,
    Limits,
    NetworkPolicy,
    Snapshot,
    Template,
    TemplateSpec,
    Workspace,
)
from forkyard.server.presence import Presence
from forkyard.store.journal import Journal
from forkyard.wire.taskfile import RunRequest
from forkyard.workspace.agent_install import InstalledAgent
from forkyard.workspace.agent_progress import Doing
from forkyard.workspace.interface import Isolation, Line
from forkyard.workspace.sizes import Size


class WorkspaceService(Protocol):
    """Forks, runs and removes workspaces."""

    async def create(
        self,
        snapshot: SnapshotId,
        *,
        display_name: str = "",
        ephemeral: bool = False,
        network: NetworkPolicy = NetworkPolicy.NONE,
        allow: tuple[str, ...] = (),
        limits: Limits | None = None,
        owner: str | None = None,
        lifetime: Lifetime = Lifetime(),
        start: bool = False,
        budget: Budget = Budget(),
    ) -> Workspace:
        """Fork a stopped workspace from a ready snapshot."""
        ...

    async def start(self, workspace: WorkspaceId) -> Workspace:
        """Run its sandbox."""
        ...

    async def stop(
        self, workspace: WorkspaceId, *, only_if: Callable[[], bool] | None = None
    ) -> Workspace:
        """End its sandbox and all that is in it, if that is still wanted when it can be."""
        ...

    async def connections(self, workspace: WorkspaceId) -> Connections | None:
        """Give what a workspace with an allowlist connected to; None for another one."""
        ...

    async def delete(self, workspace: WorkspaceId) -> None:
        """Remove it from the host."""
        ...

    async def exec(
        self,
        workspace: WorkspaceId,
        argv: Sequence[str],
        *,
        working_directory: str,
        variables: dict[str, str],
        timeout_seconds: float | None,
        exec_id: ExecId | None = None,
        keep_background: bool = True,
        as_root: bool = False,
        has_input: bool = False,
        attended: bool = False,
        terminal: tuple[int, int] | None = None,
        copy: tuple[str, str] | None = None,
        output_bytes: int | None = None,
    ) -> Exec:
        """Run a command to its end, or attach to the exec of that id."""
        ...

    async def attach_exec(self, exec_id: ExecId) -> Line | None:
        """Attach to an exec that runs, or is about to; None where it is over."""
        ...

    async def connect(self, workspace: WorkspaceId, port: int) -> socket.socket:
        """Connect to a port of a running workspace's own loopback."""
        ...

    async def change_lifetime(self, workspace: WorkspaceId, lifetime: Lifetime) -> Workspace:
        """Say anew when it is stopped or deleted by itself."""
        ...

    def running_execs(self, workspace: WorkspaceId) -> Sequence[Exec]:
        """List its execs that are not over."""
        ...

    def last_used(self, workspace: WorkspaceId) -> float | None:
        """Say when a command last began or ended in it, in monotonic seconds."""
        ...

    async def wait_exec(self, exec_id: ExecId) -> Exec:
        """Wait for the end of an exec."""
        ...

    async def kill_exec(self, workspace: WorkspaceId, exec_id: ExecId) -> None:
        """End one exec and what it left behind."""
        ...


class LifetimeService(Protocol):
    """Knows since when nothing has happened in workspaces."""

    def idle_seconds(self, workspace: Workspace) -> float | None:
        """Say so of one that runs; None where it is not known."""
        ...


class SnapshotService(Protocol):
    """Takes and removes snapshots."""

    async def create(self, name: str, workspace: WorkspaceId) -> Snapshot:
        """Take a snapshot of a workspace."""
        ...

    async def sizes(self, snapshots: Sequence[Snapshot]) -> Sequence[Size]:
        """Measure what each takes on disk."""
        ...

    async def delete(self, snapshot: SnapshotId) -> None:
        """Remove a snapshot that nothing uses."""
        ...


class TemplateService(Protocol):
    """Keeps recipes and builds them."""

    async def apply(self, name: str, spec: TemplateSpec) -> Template:
        """Keep a recipe under a name."""
        ...

    async def begin_build(self, name: str, values: Mapping[str, str] | None = None) -> Template:
        """Start a build and return at once; its end is in the journal."""
        ...

    def built(self, name: str, values: Mapping[str, str]) -> Snapshot | None:
        """Give the newest ready snapshot that a build with these values made."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a recipe; snapshots of it stay."""
        ...

    def log(self, name: str) -> Path:
        """Say where the log of its newest build lies."""
        ...


class RunService(Protocol):
    """Submits runs and changes their course."""

    async def submit(
        self, request: RunRequest, *, is_wanted: Callable[[], Awaitable[bool]] | None = None
    ) -> Run:
        """Journal a run, if it is still wanted when it could be; it goes on by itself."""
        ...

    async def cancel(self, run: RunId) -> Run:
        """Ask a run to end; what was found so far is kept."""
        ...

    async def retry(self, run: RunId) -> Run:
        """Start the attempts again that trouble of ours ended."""
        ...

    async def regrade(self, run: RunId) -> Run:
        """Evaluate the candidates again."""
        ...

    def log(self, attempt: Attempt, stream: str) -> Path:
        """Say where an attempt's `stdout` or `stderr` lies."""
        ...

    def live(self, run: RunId) -> RunStatus | None:
        """Say what a run spends, waits for and is refused now; None: nothing is let in."""
        ...

    async def copy_usage(self) -> None:
        """Have everything in the journal that is spent by now, as far as it can be had."""
        ...


class CandidateService(Protocol):
    """Reads what attempts yielded and puts it where a person wants it."""

    def patch(self, candidate: CandidateId) -> Path:
        """Say where its patch lies."""
        ...

    def manifest(self, candidate: CandidateId) -> Path:
        """Say where its manifest lies."""
        ...

    async def apply_to_tree(self, candidate: CandidateId, target: Path) -> Application:
        """Put its bytes into a folder of the host."""
        ...

    async def apply_to_workspace(
        self, candidate: CandidateId, workspace: WorkspaceId
    ) -> Application:
        """Put its bytes into a workspace."""
        ...

    async def undo(self, application: ApplicationId, *, is_dry: bool) -> Application:
        """Take an application back, or only see whether it can be."""
        ...

    async def collect_workspace(self, workspace: WorkspaceId) -> tuple[Candidate, bytes]:
        """Stop a workspace and collect its change against its snapshot; give the patch."""
        ...


class SecretService(Protocol):
    """Keeps keys by name; gives none of them back."""

    async def set(self, name: str, value: str) -> tuple[Secret, tuple[str, ...]]:
        """Keep a value, in place of an earlier one; tell what keeps it from being used."""
        ...

    async def rotate_key(self) -> int:
        """Seal every value with a new key; give how many there are."""
        ...

    async def list(self) -> tuple[Secret, ...]:
        """List them, without anything of a value."""
        ...

    async def delete(self, name: str) -> None:
        """Remove one."""
        ...


class AgentService(Protocol):
    """Installs agents."""

    def doing(self, driver: str) -> Doing | None:
        """Say what is done to install an agent just now; None: nothing."""
        ...

    def find(self, driver: str) -> InstalledAgent | None:
        """Give an agent that is installed as it is pinned."""
        ...

    async def install(
        self,
        driver: str,
        *,
        source: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> InstalledAgent:
        """Install one, from a folder or from the registries."""
        ...

    async def damage(self, agent: InstalledAgent) -> tuple[str, ...]:
        """Say which of its files are not as they were unpacked."""
        ...

    def others(self, driver: str) -> tuple[str, ...]:
        """Name the folders of its other versions."""
        ...


class MaintenanceService(Protocol):
    """Removes what nothing needs any more."""

    async def collect_garbage(
        self, *, older_than_seconds: float | None, is_dry: bool
    ) -> tuple[Removed, ...]:
        """Do it now, or say what it would be."""
        ...


class AccessService(Protocol):
    """Knows what the gateway has keys for."""

    async def refuse_without_keys(self) -> None:
        """Refuse to let anybody in where no provider has its key."""
        ...


class SessionService(Protocol):
    """Knows which clients are there."""

    def hold(self, session: str, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        """Be a client's stream; its end is the client's end."""
        ...


class Isolator(Protocol):
    """Says what isolation is in force."""

    async def isolation(self) -> Isolation:
        """Start a container once, really, and say what protects it."""
        ...


@dataclass(slots=True, kw_only=True)
class Services:
    """Everything the routes may use."""

    layout: Layout
    clock: Clock
    journal: Journal
    fleet: Isolator
    workspaces: WorkspaceService
    snapshots: SnapshotService
    templates: TemplateService
    runs: RunService
    candidates: CandidateService
    maintenance: MaintenanceService
    sessions: SessionService
    access: AccessService
    agents: AgentService
    secrets: SecretService
    presence: Presence
    lifetimes: LifetimeService
    masker: Masker
    """For whatever a sandbox printed, before anybody sees it."""
    started_at: str
    stopping: asyncio.Event
    """Set when the server is about to exit: streams end themselves then."""
