"""What the evaluation needs of workspaces and of the collector; all it can reach of the rest.

Whatever stands behind these keeps the workspaces' rules: commands that fail are results, an
exception is trouble of ours, and asking again with the same id attaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from forkyard.model.candidate import Candidate
from forkyard.model.execution import Exec
from forkyard.model.ids import ExecId, SnapshotId, WorkspaceId
from forkyard.model.run import HeldOutFile
from forkyard.model.workspace import Limits, NetworkPolicy, RecordedBase, Workspace


class JudgeWorkspaces(Protocol):
    """Where checks run."""

    async def create(
        self,
        snapshot: SnapshotId,
        *,
        display_name: str = "",
        ephemeral: bool = False,
        network: NetworkPolicy = NetworkPolicy.NONE,
        limits: Limits | None = None,
        owner: str | None = None,
        is_evaluation: bool = False,
    ) -> Workspace:
        """Fork a stopped workspace."""
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
        """Run one command to its end, starting the sandbox when none runs."""
        ...

    async def stop(self, workspace: WorkspaceId) -> Workspace:
        """End the sandbox and everything in it."""
        ...

    async def delete(self, workspace: WorkspaceId) -> None:
        """Remove the workspace; goes on when the waiting is cancelled."""
        ...


class Restored(Protocol):
    """What was put back."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Files in which only the test runners' settings were put back."""
        ...


class TreeKeeper(Protocol):
    """Trusted hands in a stopped workspace's files."""

    async def materialise(
        self, workspace: Workspace, base: RecordedBase, candidate: Candidate
    ) -> object:
        """Lay a candidate's changes over the base."""
        ...

    async def restore(
        self, workspace: Workspace, base: RecordedBase, patterns: Sequence[str]
    ) -> Restored:
        """Put paths that match, and test runners' settings, back as the base has them."""
        ...

    async def add_files(
        self, workspace: Workspace, files: Sequence[HeldOutFile], repository: str
    ) -> object:
        """Lay held-out files at the repository's root, over whatever stands there."""
        ...
