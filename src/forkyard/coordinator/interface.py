"""What the coordinator asks of the parts below it; bootstrap hands over the real ones.

Every call is idempotent, since after a crash it is made again with the same arguments. Cancelling
a call must leave the world such that the same call can be made again. A ForkyardError means
trouble of ours; what the agent or the checks did is always a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forkyard.agents.trajectory import Trajectory
from forkyard.model.candidate import Candidate
from forkyard.model.connection import Connections
from forkyard.model.execution import Exec
from forkyard.model.ids import AttemptId, EvaluationId, ExecId, SnapshotId, WorkspaceId
from forkyard.model.run import Attempt, AttemptState, Task
from forkyard.model.verdict import Baseline, Evaluation, Ranking
from forkyard.model.workspace import (
    Limits,
    NetworkPolicy,
    ReadOnlyMount,
    RecordedBase,
    Snapshot,
    Workspace,
)
from forkyard.workspace.interface import RunningSandbox


class WorkspacesPort(Protocol):
    """Forks, runs and removes workspaces; each step is journalled before it happens."""

    async def create(
        self,
        snapshot: SnapshotId,
        *,
        display_name: str = "",
        ephemeral: bool = False,
        network: NetworkPolicy = NetworkPolicy.NONE,
        allow: tuple[str, ...] = (),
        reaches_models: bool = False,
        limits: Limits | None = None,
        owner: str | None = None,
        workspace_id: WorkspaceId | None = None,
        mounts: Sequence[ReadOnlyMount] = (),
    ) -> Workspace:
        """Fork a stopped workspace."""
        ...

    async def start(self, workspace: WorkspaceId) -> Workspace:
        """Run its sandbox; one that runs already is kept."""
        ...

    async def exec(
        self,
        workspace: WorkspaceId,
        argv: Sequence[str],
        *,
        working_directory: str = ...,
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        exec_id: ExecId | None = None,
        keep_background: bool = True,
        output_bytes: int | None = None,
    ) -> Exec:
        """Run a command to its end, or attach to the exec of that id."""
        ...

    async def kill_exec(self, workspace: WorkspaceId, exec_id: ExecId) -> None:
        """End one exec and what it left behind; one that is over is fine."""
        ...

    async def stop(self, workspace: WorkspaceId) -> Workspace:
        """End its sandbox and all that is in it."""
        ...

    async def connections(self, workspace: WorkspaceId) -> Connections | None:
        """Give what a workspace with an allowlist connected to; None for another one."""
        ...

    async def delete(self, workspace: WorkspaceId) -> None:
        """Remove it from the host; one that is gone is fine."""
        ...


class SnapshotsPort(Protocol):
    """Derives the snapshot that attempts fork."""

    async def sealed(self, snapshot: Snapshot) -> Snapshot:
        """Give the snapshot whose history ends at the recorded base; cached."""
        ...


class AgentsPort(Protocol):
    """Installs agents; each once, whoever asks meanwhile."""

    def is_installed(self, driver: str) -> bool:
        """Say whether a driver's agent is there, or needs no installation."""
        ...

    async def mounts(self, driver: str) -> tuple[ReadOnlyMount, ...]:
        """Give what an attempt is to be shown, installed before where it is missing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is known of an agent's end when its candidate is collected, for the manifest."""

    ending: AttemptState | None = None
    trajectory: Trajectory | None = None
    claims_success: bool | None = None
    limitations: str | None = None
    connections: Connections | None = None


class CollectorPort(Protocol):
    """Turns a stopped workspace into a candidate."""

    async def collect(
        self,
        attempt: AttemptId,
        workspace: Workspace,
        base: RecordedBase,
        *,
        repository: str,
        out: Path,
        scope: tuple[str, ...],
        protected: tuple[str, ...],
        told: Told,
    ) -> Candidate:
        """Collect; the same stopped workspace gives the same tree again."""
        ...


class EvaluatorPort(Protocol):
    """Judges bases and candidates on clean forks; what it makes is deleted when it is cancelled."""

    async def baseline(
        self, task: Task, snapshot: Snapshot, *, owner: str, out: Path, repeats: int = ...
    ) -> Baseline:
        """Run the checks on the base itself; logs and reports go below `out`."""
        ...

    async def evaluate(
        self,
        task: Task,
        snapshot: Snapshot,
        candidate: Candidate,
        baseline: Baseline,
        *,
        out: Path,
        evaluation_id: EvaluationId | None = None,
    ) -> Evaluation:
        """Run the checks on a candidate; the id also owns its fork."""
        ...


class Ranker(Protocol):
    """Orders the candidates of one task."""

    def __call__(
        self,
        candidates: Sequence[Candidate],
        evaluations: Sequence[Evaluation],
        attempts: Sequence[Attempt],
    ) -> Ranking:
        """Rank; pure."""
        ...


class FleetPort(Protocol):
    """What the reaper asks of the fleet."""

    async def running(self) -> tuple[RunningSandbox, ...]:
        """List the sandboxes that are alive, whoever started them."""
        ...

    async def stop(self, workspace: WorkspaceId, *, epoch: int) -> None:
        """End a sandbox; idempotent."""
        ...
