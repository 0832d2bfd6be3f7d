"""Fakes of what the evaluation stands on: workspaces that are dictionaries of files.

Kept from the real ones: a workspace must be stopped before its files are touched, exec starts
it, deleting is idempotent, and what a command writes to ``$REPORT`` lies in the upper directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.candidate import rules
from forkyard.candidate.collector import Laid
from forkyard.config import Layout
from forkyard.errors import ForkyardError
from forkyard.model.candidate import Candidate
from forkyard.model.execution import Exec, ExecResult, ExecSpec, ExecState, StopReason
from forkyard.model.ids import ExecId, SnapshotId, WorkspaceId, new_exec_id, new_workspace_id
from forkyard.model.run import HeldOutFile
from forkyard.model.workspace import (
    Environment,
    Limits,
    NetworkPolicy,
    RecordedBase,
    Workspace,
    WorkspaceState,
)

Files = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command of a fake workspace ended."""

    exit_code: int | None = 0
    report: str | None = None
    stop_reason: StopReason = StopReason.EXITED
    stdout: str = ""


@dataclass(slots=True)
class FakeYard:
    """Workspaces and trusted hands in one, so that their order can be seen."""

    layout: Layout
    base: Files
    command: Callable[[str, Files], Ran]
    """Given the check's command and the files it sees."""
    candidates: dict[str, Files] = field(default_factory=dict)
    """Files that a candidate changes, by its id; an empty text removes one."""
    calls: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    files: dict[WorkspaceId, Files] = field(default_factory=dict)
    running: set[WorkspaceId] = field(default_factory=set)
    created: list[tuple[str | None, NetworkPolicy]] = field(default_factory=list)
    fails: dict[str, ForkyardError] = field(default_factory=dict)
    """Raised by the call of that name."""
    hangs: asyncio.Event | None = None
    """Set when a command has started that then never ends."""

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

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
        """Fork a dictionary."""
        self._called("create")
        self.created.append((owner, network))
        identity = new_workspace_id()
        self.files[identity] = dict(self.base)
        (self.layout.upper(identity) / "workspace").mkdir(parents=True)
        return Workspace(
            id=identity, snapshot=snapshot, layers=(), environment=Environment(),
            limits=limits or Limits(), state=WorkspaceState.STOPPED, created_at="",
            display_name=display_name, ephemeral=ephemeral, network=network, owner=owner,
        )  # fmt: skip

    async def exec(
        self,
        workspace: WorkspaceId,
        argv: Sequence[str],
        *,
        working_directory: str = "/workspace",
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        exec_id: ExecId | None = None,
        keep_background: bool = True,
        output_bytes: int | None = None,
    ) -> Exec:
        """Run the command on the dictionary."""
        self._called("exec")
        assert not keep_background
        self.running.add(workspace)
        if self.hangs is not None:
            self.hangs.set()
            await asyncio.Event().wait()
        report = dict(variables or {})["REPORT"]
        self.reports.append(report)
        ran = self.command(argv[-1], self.files[workspace])
        if ran.report is not None:
            target = self.layout.upper(workspace) / report.lstrip("/")
            await asyncio.to_thread(target.write_text, ran.report)
        identity = exec_id or new_exec_id()
        await asyncio.to_thread(self._log, self.layout.exec(workspace, identity), ran.stdout)
        spec = ExecSpec(
            id=identity, workspace=workspace, argv=tuple(argv), working_directory=working_directory
        )
        result = ExecResult(
            id=identity, stop_reason=ran.stop_reason, exit_code=ran.exit_code,
            elapsed_seconds=timeout_seconds or 0.5, stdout_bytes=0,
            stderr_bytes=min(0, output_bytes or 0),
        )  # fmt: skip
        return Exec(
            id=identity, workspace=workspace, epoch=1, spec=spec, state=ExecState.ENDED,
            created_at="", result=result,
        )  # fmt: skip

    @staticmethod
    def _log(folder: Path, stdout: str) -> None:
        folder.mkdir(parents=True)
        (folder / "stdout").write_text(stdout)
        (folder / "stderr").write_text("")

    async def stop(self, workspace: WorkspaceId) -> Workspace:
        """End it."""
        self._called("stop")
        self.running.discard(workspace)
        return Workspace(
            id=workspace, snapshot=SnapshotId("snap_1"), layers=(), environment=Environment(),
            limits=Limits(), state=WorkspaceState.STOPPED, created_at="",
        )  # fmt: skip

    async def delete(self, workspace: WorkspaceId) -> None:
        """Remove it."""
        self._called("delete")
        self.files.pop(workspace, None)
        self.running.discard(workspace)

    async def materialise(
        self, workspace: Workspace, base: RecordedBase, candidate: Candidate
    ) -> None:
        """Lay the candidate's files."""
        self._called("materialise")
        assert base.tree
        files = self._stopped(workspace.id)
        for path, text in self.candidates.get(candidate.id, {}).items():
            if text:
                files[path] = text
            else:
                files.pop(path, None)

    async def restore(
        self, workspace: Workspace, base: RecordedBase, patterns: Sequence[str]
    ) -> Laid:
        """Put protected files back, and take added ones away."""
        self._called("restore")
        assert base.tree
        files = self._stopped(workspace.id)
        named = (*patterns, *rules.RUNNER_FILES)
        for path in [path for path in files if rules.matches(path, named)]:
            del files[path]
        files |= {path: text for path, text in self.base.items() if rules.matches(path, named)}
        return Laid()

    async def add_files(
        self, workspace: Workspace, files: Sequence[HeldOutFile], repository: str
    ) -> None:
        """Lay held-out files; their text is their digest here."""
        self._called("add_files")
        assert repository == "/workspace/repo"
        self._stopped(workspace.id).update({one.path: one.sha256 for one in files})

    def _stopped(self, workspace: WorkspaceId) -> Files:
        assert workspace not in self.running, "files of a running workspace were touched"
        return self.files[workspace]
