"""A state directory with everything that workspaces need, as the server wires it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.clock import SystemClock
from forkyard.candidate.collector import Collector
from forkyard.config import Layout
from forkyard.model.execution import Exec
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.model.workspace import RepositorySource, Snapshot, TemplateSpec, TemplateTask
from forkyard.store.journal import Journal
from forkyard.workspace.fleet import LocalFleet
from forkyard.workspace.snapshots import Snapshots
from forkyard.workspace.templates import Templates
from forkyard.workspace.workspaces import Workspaces


@dataclass(slots=True, kw_only=True)
class Station:
    """The services over one state directory, with real sandboxes."""

    layout: Layout
    journal: Journal
    fleet: LocalFleet
    workspaces: Workspaces
    snapshots: Snapshots
    templates: Templates

    async def snapshot_of(
        self,
        repository: RepositorySource | None,
        *,
        name: str = "t",
        tasks: tuple[TemplateTask, ...] = (),
    ) -> Snapshot:
        """Build a template of a repository and give its snapshot."""
        spec = TemplateSpec(repository=repository, tasks=tasks)
        await self.templates.apply(name, spec)
        built = await self.templates.build(name)
        assert built.snapshot is not None
        return self.journal.state.snapshots[built.snapshot]

    async def shell(
        self,
        workspace: WorkspaceId,
        command: str,
        *,
        directory: str = "/workspace/repo",
        exec_id: ExecId | None = None,
        timeout_seconds: float | None = 60,
    ) -> tuple[Exec, str]:
        """Run a shell command; give its row and what it printed."""
        done = await self.workspaces.exec(
            workspace,
            ["/bin/sh", "-c", command],
            working_directory=directory,
            exec_id=exec_id,
            timeout_seconds=timeout_seconds,
        )
        folder = self.layout.exec(workspace, done.id)
        text = "".join(
            (folder / stream).read_text(errors="replace")
            for stream in ("stdout", "stderr")
            if (folder / stream).exists()
        )
        return done, text

    async def run(self, workspace: WorkspaceId, command: str, **options: str) -> str:
        """Run a shell command that must succeed; give what it printed."""
        done, text = await self.shell(workspace, command, **options)  # type: ignore[arg-type]
        assert done.result is not None
        assert done.result.exit_code == 0, f"{command}: {done.result}: {text}"
        return text

    def left(self) -> dict[str, list[str]]:
        """List what lies in the folders that live rows name."""
        return {
            folder.name: sorted(path.name for path in folder.iterdir())
            for folder in (self.layout.layers, self.layout.workspaces, self.layout.trash)
        }


@asynccontextmanager
async def station(home: Path) -> AsyncIterator[Station]:
    """Open a state directory, recover, and close it again; sandboxes go on."""
    layout = Layout(home)
    layout.run.mkdir(exist_ok=True, mode=0o700)
    clock = SystemClock()
    journal = Journal.open(layout.database, clock)
    fleet = LocalFleet(layout)
    try:
        workspaces = Workspaces(journal, fleet, layout, clock)
        snapshots = Snapshots(workspaces, Collector(layout, clock), clock)
        templates = Templates(snapshots, clock)
        await workspaces.recover()
        await snapshots.recover()
        await templates.recover()
        try:
            yield Station(
                layout=layout,
                journal=journal,
                fleet=fleet,
                workspaces=workspaces,
                snapshots=snapshots,
                templates=templates,
            )
        finally:
            await workspaces.close()
            await fleet.close()
    finally:
        journal.close()


def git(folder: Path, *arguments: str) -> str:
    """Run git in a repository that a test made."""
    done = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.invalid", *arguments],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            # copies belong to the storage range, and are looked at as root
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        },
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.decode().strip()


def make_repository(folder: Path) -> Path:
    """Make a small repository with two commits on branch main."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("one\n")
    (folder / "pkg").mkdir()
    (folder / "pkg/old.py").write_text("old = 1\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    (folder / "a.txt").write_text("two\n")
    git(folder, "commit", "-qam", "second")
    return folder
