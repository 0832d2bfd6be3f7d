"""Candidates as the routes see them: files that lie beside the run, and bytes to take home."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forkyard.candidate.collect import MANIFEST_NAME, PATCH_NAME
from forkyard.candidate.collector import Collector
from forkyard.config import Layout
from forkyard.errors import ConflictError, NotFoundError, WorkspaceError
from forkyard.model.application import Application
from forkyard.model.candidate import Candidate
from forkyard.model.ids import ApplicationId, CandidateId, WorkspaceId, new_attempt_id
from forkyard.promotion.apply import Applications
from forkyard.store.journal import Journal
from forkyard.workspace.workspaces import Workspaces

SCRATCH_PREFIX = "patch-"
"""Of folders beside the sockets; whatever a crash leaves of them is removed at the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Implements `CandidateService`."""

    journal: Journal
    layout: Layout
    workspaces: Workspaces
    collector: Collector
    applications: Applications

    def patch(self, candidate: CandidateId) -> Path:
        """Say where its patch lies."""
        return self._folder(candidate) / PATCH_NAME

    def manifest(self, candidate: CandidateId) -> Path:
        """Say where its manifest lies."""
        return self._folder(candidate) / MANIFEST_NAME

    def _folder(self, candidate: CandidateId) -> Path:
        row = self.journal.state.candidates[candidate]
        attempt = self.journal.state.attempts.get(row.attempt)
        if attempt is None:
            raise NotFoundError(f"cannot find the files of {candidate}: its attempt is unknown")
        folder = self.layout.attempt(attempt.run, attempt.id)
        if attempt.candidate == candidate:
            return folder
        # A retry has set the results of an earlier epoch aside.
        for epoch in sorted(folder.glob("epoch-*")):
            manifest = epoch / MANIFEST_NAME
            if manifest.is_file() and candidate.encode() in manifest.read_bytes():
                return epoch
        return folder

    async def apply_to_tree(self, candidate: CandidateId, target: Path) -> Application:
        """Put its bytes into a folder of the host."""
        return await self.applications.apply_to_tree(candidate, target)

    async def apply_to_workspace(
        self, candidate: CandidateId, workspace: WorkspaceId
    ) -> Application:
        """Put its bytes into a workspace, whose sandbox is ended first."""
        await self.workspaces.stop(workspace)
        return await self.applications.apply_to_workspace(candidate, workspace)

    async def undo(self, application: ApplicationId, *, is_dry: bool) -> Application:
        """Take an application back; the sandbox of a workspace is ended first."""
        found = self.journal.state.applications.get(application)
        workspace = None if found is None or found.target.startswith("/") else found.target
        if workspace is not None and workspace in self.journal.state.workspaces:
            await self.workspaces.stop(WorkspaceId(workspace))
        return await self.applications.undo(application, is_dry=is_dry)

    async def collect_workspace(self, workspace: WorkspaceId) -> tuple[Candidate, bytes]:
        """Stop a workspace and collect its change against its snapshot.

        Returns:
            What a candidate would be (it is not journalled), and the patch.

        Raises:
            ConflictError: The snapshot holds no repository.
            WorkspaceError: Trouble of ours.
        """
        stopped = await self.workspaces.stop(workspace)
        snapshot = self.journal.state.snapshots.get(stopped.snapshot)
        if snapshot is None or snapshot.base is None:
            raise ConflictError(
                f"cannot collect the change of {workspace}: its snapshot holds no repository",
                hint="Use files of the workspace through commands instead.",
            )
        try:
            with tempfile.TemporaryDirectory(
                prefix=SCRATCH_PREFIX, dir=self.layout.run, ignore_cleanup_errors=True
            ) as name:
                folder = Path(name)
                candidate = await self.collector.collect(
                    new_attempt_id(),
                    stopped,
                    snapshot.base,
                    repository=snapshot.base.repository,
                    out=folder,
                )
                return candidate, await asyncio.to_thread((folder / PATCH_NAME).read_bytes)
        except OSError as error:
            raise WorkspaceError(
                f"cannot collect the change of {workspace}: {error.strerror}"
            ) from error
