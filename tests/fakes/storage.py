"""A journal on disk, a fake fleet and a scripted base recorder, with the real services above."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fakes.fleet import FakeFleet
from forkyard.base.clock import SystemClock
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.ids import LayerId, WorkspaceId, new_layer_id, new_snapshot_id
from forkyard.model.workspace import RecordedBase, Snapshot, SnapshotState
from forkyard.store.journal import Journal
from forkyard.workspace.snapshots import Snapshots
from forkyard.workspace.templates import Templates
from forkyard.workspace.workspaces import Workspaces


@dataclass(slots=True)
class FakeRecorder:
    """Records the same base for every repository, or fails as scripted."""

    errors: list[WorkspaceError] = field(default_factory=list)
    asked: list[tuple[LayerId, ...]] = field(default_factory=list)
    known: list[RecordedBase | None] = field(default_factory=list)

    async def record(
        self, layers: tuple[LayerId, ...], repository: str, known: RecordedBase | None = None
    ) -> RecordedBase:
        """Give a base."""
        self.known.append(known)
        self.asked.append(layers)
        if self.errors:
            raise self.errors.pop()
        return RecordedBase(repository=repository, commit=None, tree="4b825dc642cb")


class Storage:
    """One state directory and one server over it; `restart` gives the next server."""

    def __init__(self, home: Path, fleet: FakeFleet | None = None) -> None:
        """Open the journal and wire the services."""
        self.layout = Layout(home)
        clock = SystemClock()
        self.journal = Journal.open(self.layout.database, clock, allow_volatile=True)
        self.fleet = fleet or FakeFleet(self.layout)
        self.recorder = FakeRecorder()
        self.workspaces = Workspaces(self.journal, self.fleet, self.layout, clock)
        self.snapshots = Snapshots(self.workspaces, self.recorder, clock)
        self.templates = Templates(self.snapshots, clock)

    async def recover(self) -> None:
        """Do what a server does first."""
        await self.workspaces.recover()
        await self.snapshots.recover()
        await self.templates.recover()

    def restart(self) -> Storage:
        """Forget all that was in memory; the machine stays as it is."""
        self.journal.close()
        return Storage(self.layout.home, self.fleet)

    async def base(self, name: str = "base") -> Snapshot:
        """Make a ready snapshot with one small layer."""
        layer = new_layer_id()
        folder = self.layout.layer(layer)
        (folder / "workspace/repo").mkdir(parents=True)
        (folder / "workspace/repo/file").write_text("base")
        snapshot = Snapshot(
            id=new_snapshot_id(),
            name=name,
            state=SnapshotState.READY,
            created_at="2026-01-01T00:00:00+00:00",
            layers=(layer,),
        )
        await self.journal.append(snapshot)
        return snapshot

    def write(self, workspace: WorkspaceId, text: str) -> None:
        """Write as a sandbox would have."""
        path = self.layout.upper(workspace) / "workspace/repo/file"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, layers: tuple[LayerId, ...]) -> str:
        """Read the file in the merged tree."""
        found = self.workspaces.layers.lookup(layers, "/workspace/repo/file")
        assert found is not None
        return (self.layout.layer(found.layer) / "workspace/repo/file").read_text()
