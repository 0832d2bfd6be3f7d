"""The server killed with SIGKILL while it takes a snapshot, builds, or seals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from depth import first
from forkyard.base.durable import FAILPOINT_VARIABLE
from forkyard.config import Layout
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import (
    Limits,
    RepositorySource,
    SnapshotState,
    TemplateState,
    WorkspaceState,
)
from forkyard.workspace.flattening import MOST_LAYERS
from integration.test_deep_chains import write_layers
from station import make_repository, station

pytestmark = pytest.mark.anyio

CHILD = """
import asyncio, sys
from pathlib import Path
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import RepositorySource
from integration.test_deep_chains import flat
from station import station

async def main(home, what, name):
    async with station(Path(home)) as here:
        if what == "snapshot":
            await here.snapshots.create("s", WorkspaceId(name))
        elif what == "stop":
            await here.workspaces.stop(WorkspaceId(name))
        elif what == "deep":
            taken = await here.snapshots.create("s", WorkspaceId(name))
            assert (await flat(here, taken)).flattened
        elif what == "seal":
            await here.snapshots.sealed(here.snapshots.get(name))
        else:
            await here.snapshot_of(RepositorySource(path=name, include_uncommitted=True))

asyncio.run(main(*sys.argv[1:]))
"""


def die(home: Path, failpoint: str, *arguments: str) -> None:
    """Do something in a process that kills itself at a failpoint."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(home), *arguments],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{root}/src:{root}/tests",
            FAILPOINT_VARIABLE: failpoint,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("failpoint", first("S01", "S02"))
async def test_a_workspace_keeps_its_files_when_killed_while_a_snapshot_is_taken(
    home: Path, tmp_path: Path, failpoint: str
) -> None:
    """Nothing is lost, the snapshot failed, and taking it again works."""
    source = make_repository(tmp_path / "src")
    async with station(home) as here:
        snapshot = await here.snapshot_of(RepositorySource(path=str(source)))
        fork = (await here.workspaces.create(snapshot.id)).id
        await here.run(fork, "echo mine > a.txt")
        await here.workspaces.stop(fork)
    die(home, failpoint, "snapshot", fork)
    async with station(home) as here:
        failed = here.journal.state.snapshot_named("s")
        assert failed is not None
        assert failed.state is SnapshotState.FAILED
        assert here.left()["layers"] == sorted(snapshot.layers)
        taken = await here.snapshots.create("s", fork)
        other = await here.workspaces.create(taken.id)
        assert await here.run(other.id, "cat a.txt") == "mine\n"
        assert await here.run(fork, "cat a.txt") == "mine\n"


@pytest.mark.parametrize("failpoint", first("H01", "H02"))
async def test_a_disk_of_its_own_is_taken_out_when_killed_while_that_is_done(
    home: Path, failpoint: str
) -> None:
    """The files are those of before the stop, once, and no image is left."""
    limits = Limits(disk_bytes=8 * 1024**2, disk_is_hard=True)
    async with station(home) as here:
        empty = await here.snapshot_of(None)
        fork = (await here.workspaces.create(empty.id, limits=limits)).id
        await here.run(fork, "echo kept > file", directory="/workspace")
        assert not (here.layout.upper(fork) / "workspace/file").exists()
    die(home, failpoint, "stop", fork)
    async with station(home) as here:
        assert here.workspaces.get(fork).state is WorkspaceState.STOPPED
        assert (here.layout.upper(fork) / "workspace/file").read_text() == "kept\n"
        assert sorted(path.name for path in here.layout.disk(fork).iterdir()) == [
            "upper",
            "volume",
            "work",
        ]
        assert await here.run(fork, "cat file", directory="/workspace") == "kept\n"
        await here.workspaces.delete(fork)
        assert here.left()["trash"] == []


@pytest.mark.parametrize("failpoint", first("S08", "S07", "S09"))
async def test_a_deep_snapshot_is_whole_when_killed_while_its_layers_are_merged(
    home: Path, failpoint: str
) -> None:
    """It has its old layers or the merged one, never half of it, and nothing else is left."""
    async with station(home) as here:
        empty = await here.snapshot_of(None)
        fork = (await here.workspaces.create(empty.id)).id
        for number in range(MOST_LAYERS - 2):
            write_layers(here, fork, number)
            await here.snapshots.create(f"s{number}", fork)
        write_layers(here, fork, MOST_LAYERS - 2)
    die(home, failpoint, "deep", fork)
    async with station(home) as here:
        row = here.snapshots.get("s")
        assert row.state is SnapshotState.READY
        assert row.flattening is None
        assert bool(row.flattened) is (failpoint == "S09")
        state = here.journal.state
        named = {layer for one in state.snapshots.values() for layer in one.layers}
        named.update(layer for one in state.workspaces.values() for layer in one.layers)
        assert {str(layer) for layer in named} >= set(here.left()["layers"])
        assert set(here.left()["layers"]) >= set(row.layers)
        other = await here.workspaces.create(row.id)
        said = await here.run(other.id, "cat newest; ls folder", directory="/workspace")
        assert said.split() == ["30", *(f"f{number}" for number in range(24, 31) if number != 28)]
        sequence = here.journal.sequence
        await here.snapshots.recover()
        assert here.journal.sequence == sequence


@pytest.mark.parametrize("failpoint", first("S06", "S05", "S02"))
async def test_a_running_workspace_runs_on_when_killed_while_a_snapshot_is_taken(
    home: Path, tmp_path: Path, failpoint: str
) -> None:
    """It thaws by itself, nothing is left of the try, and taking it again works."""
    source = make_repository(tmp_path / "src")
    async with station(home) as here:
        snapshot = await here.snapshot_of(RepositorySource(path=str(source)))
        fork = (await here.workspaces.create(snapshot.id)).id
        writer = "while :; do date +%N > a.txt; sleep 0.01; done >/dev/null 2>&1 &"
        await here.run(fork, writer)
    die(home, failpoint, "snapshot", fork)
    written = Layout(home).upper(fork) / "workspace/repo/a.txt"
    before, deadline = written.stat().st_mtime_ns, time.monotonic() + 20
    while written.stat().st_mtime_ns == before:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    async with station(home) as here:
        failed = here.journal.state.snapshot_named("s")
        assert failed is not None
        assert failed.state is SnapshotState.FAILED
        assert here.left()["layers"] == sorted(snapshot.layers)
        assert here.workspaces.get(fork).state is WorkspaceState.RUNNING
        taken = await here.snapshots.create("s", fork)
        assert taken.frozen_seconds is not None
        await here.workspaces.stop(fork)


@pytest.mark.parametrize("failpoint", first("T02", "T01", "W11", "S02"))
async def test_nothing_is_left_when_killed_during_a_build(
    home: Path, tmp_path: Path, failpoint: str
) -> None:
    """The template failed as interrupted; a second recovery changes nothing; it builds again."""
    source = make_repository(tmp_path / "src")
    die(home, failpoint, "build", str(source))
    async with station(home) as here:
        row = here.templates.get("t")
        assert row.state is TemplateState.FAILED
        assert (row.trouble or "").startswith("interrupted")
        assert here.left() == {"layers": [], "workspaces": [], "trash": []}
        assert await here.fleet.running() == ()
        sequence = here.journal.sequence
    async with station(home) as here:
        assert here.journal.sequence == sequence
        built = await here.templates.build("t")
        assert built.state is TemplateState.READY


@pytest.mark.parametrize("failpoint", first("S03", "W02", "W07@2", "W11@3"))
async def test_nothing_is_left_when_killed_while_a_history_is_sealed(
    home: Path, tmp_path: Path, failpoint: str
) -> None:
    """The snapshot is as it was and can be sealed afterwards."""
    source = make_repository(tmp_path / "src")
    async with station(home) as here:
        snapshot = await here.snapshot_of(RepositorySource(path=str(source)))
        before = here.left()
    die(home, failpoint, "seal", snapshot.name)
    async with station(home) as here:
        assert here.left() == before
        assert await here.fleet.running() == ()
        live = [
            w
            for w in here.journal.state.workspaces.values()
            if w.state is not WorkspaceState.DELETED
        ]
        assert live == []
        sealed = await here.snapshots.sealed(snapshot)
        fork: WorkspaceId = (await here.workspaces.create(sealed.id)).id
        assert await here.run(fork, "git status --short") == ""


def test_the_state_directory_is_private_when_made(home: Path) -> None:
    """Nobody else on the machine reaches what agents wrote."""
    assert Layout(home).home.stat().st_mode & 0o077 == 0
