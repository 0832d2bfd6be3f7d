"""Forks of forks, sixty deep: each holds what it should, and lookups do not grow without end."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.errors import ConflictError
from forkyard.model.ids import LayerId, WorkspaceId
from forkyard.model.workspace import RepositorySource, Snapshot
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.workspace.flattening import MOST_LAYERS
from forkyard.workspace.layers import OPAQUE
from station import Station, make_repository, station

pytestmark = pytest.mark.anyio

DEPTH = 60


@pytest.fixture
async def here(home: Path) -> AsyncIterator[Station]:
    """Give the services over an empty state directory."""
    async with station(home) as opened:
        yield opened


async def flat(here: Station, snapshot: Snapshot) -> Snapshot:
    """Wait until a snapshot is as shallow as it becomes."""
    while True:
        sequence = here.journal.sequence
        row = here.journal.state.snapshots[snapshot.id]
        if len(row.layers) < MOST_LAYERS:
            return row
        await here.journal.wait_for_change(sequence)


async def test_a_chain_of_forks_is_whole_when_sixty_deep(here: Station, tmp_path: Path) -> None:
    """Every fork sees what all before it left, and git agrees; parents are told, and kept."""
    source = make_repository(tmp_path / "src")
    taken = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    chain = [taken]
    workspaces: list[WorkspaceId] = []
    for level in range(DEPTH):
        fork = await here.workspaces.create(taken.id)
        workspaces.append(fork.id)
        script = (
            f'set -e; test "$(cat level 2>/dev/null || echo -1)" = {level - 1};'
            f" echo {level} > level;"
            f" echo {level} > only-{level}; rm -f only-{level - 2}; echo {level} >> log;"
            f" rm -rf fresh; mkdir -p fresh/deep; echo {level} > fresh/deep/f{level}"
        )
        await here.run(fork.id, script)
        await here.workspaces.stop(fork.id)
        taken = await here.snapshots.create(f"level-{level}", fork.id)
        chain.append(taken)
        assert taken.depth == level + 1
        assert taken.parent == chain[-2].id
    last = await here.workspaces.create((await flat(here, taken)).id)
    said = await here.run(
        last.id,
        "cat level; ls only-*; wc -l < log; find fresh -type f; cat a.txt; git status -s a.txt",
    )
    assert said.split() == ["59", "only-58", "only-59", "60", "fresh/deep/f59", "two"]
    depths = [len(one.layers) for one in here.journal.state.snapshots.values()]
    assert max(depths) <= MOST_LAYERS + 5
    assert any(one.flattened for one in here.journal.state.snapshots.values())
    with pytest.raises(ConflictError, match=r"stands? on it"):
        await here.snapshots.delete("level-0")
    # From the end each can go, and then its layers are gone.
    await here.workspaces.delete(last.id)
    for name, workspace in reversed(list(zip(chain[1:], workspaces, strict=True))):
        await here.workspaces.delete(workspace)
        await here.snapshots.delete(name.id)
    assert here.left()["layers"] == sorted(chain[0].layers)


def write_layers(here: Station, workspace: WorkspaceId, number: int) -> None:
    """Write into a stopped workspace as a sandbox would have."""
    top = here.layout.upper(workspace) / "workspace"
    (top / "folder").mkdir(parents=True, exist_ok=True)
    (top / "folder" / f"f{number}").write_text(str(number))
    (top / "newest").write_text(f"{number}\n")
    for path in (top, top / "folder", top / "newest", top / "folder" / f"f{number}"):
        os.chown(path, STORAGE_USER_ID, STORAGE_USER_ID)
    if number in (10, 24):
        os.setxattr(top / "folder", OPAQUE, b"y")
    if number % 5 == 4:
        os.mknod(top / "folder" / f"f{number - 1}", stat.S_IFCHR, 0)


async def _deep(here: Station, name: str = "deep") -> Snapshot:
    empty = await here.snapshot_of(None)
    fork = await here.workspaces.create(empty.id)
    taken = empty
    for number in range(MOST_LAYERS):
        write_layers(here, fork.id, number)
        taken = await here.snapshots.create(f"{name}-{number}", fork.id)
    return taken


async def test_a_merged_snapshot_shows_the_same_when_layers_hide_each_other(
    here: Station,
) -> None:
    """Whiteouts and opaque folders count as before; a workspace on the old layers goes over."""
    taken = await _deep(here)
    old = next(one.layers for one in [taken] if len(one.layers) >= MOST_LAYERS)
    look = "cat newest; ls folder | sort"
    fork = await here.workspaces.create(taken.id)
    row = await flat(here, taken)
    assert row.flattened == old
    assert len(row.layers) == 2
    assert row.base == taken.base
    merged = await here.run(fork.id, look, directory="/workspace")
    assert merged.split("\n")[0] == str(MOST_LAYERS - 1)
    source = here.workspaces.get(WorkspaceId(str(taken.workspace)))
    assert source.layers == old
    before = _names(here, old)
    assert merged.split()[1:] == sorted(before)
    assert before == {f"f{number}" for number in range(24, MOST_LAYERS)} - {"f28"}
    await here.run(source.id, "echo more > more", directory="/workspace")
    assert here.workspaces.get(source.id).layers == row.layers
    live = await here.snapshots.create("live", source.id)
    assert live.layers[1:] == row.layers


def _names(here: Station, layers: tuple[LayerId, ...]) -> set[str]:
    return {
        f"f{number}"
        for number in range(MOST_LAYERS)
        if (found := here.workspaces.layers.lookup(layers, f"/workspace/folder/f{number}"))
        is not None
        and stat.S_ISREG(found.facts.st_mode)
    }
