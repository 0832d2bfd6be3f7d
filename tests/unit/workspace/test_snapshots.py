"""Snapshots over a fake fleet: what is renamed when, who needs what, and the way back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fakes.storage import Storage
from forkyard.errors import ConfigError, ConflictError, NotFoundError, WorkspaceError
from forkyard.model.ids import new_layer_id, new_snapshot_id
from forkyard.model.workspace import Snapshot, SnapshotState, Workspace

pytestmark = pytest.mark.anyio


async def _written(storage: Storage, text: str) -> Workspace:
    row = await storage.workspaces.create((await storage.base()).id)
    storage.write(row.id, text)
    return row


async def test_the_workspace_goes_on_above_its_layer_when_taken(storage: Storage) -> None:
    """The upper directory is the layer; later writes do not reach the snapshot."""
    row = await _written(storage, "one")
    taken = await storage.snapshots.create("s", row.id)
    assert taken.state is SnapshotState.READY
    assert taken.layers[1:] == row.layers
    assert storage.workspaces.get(row.id).layers == taken.layers
    assert storage.workspaces.layers.upper_is_empty(row.id)
    storage.write(row.id, "two")
    assert storage.read(taken.layers) == "one"
    assert storage.recorder.asked == [taken.layers]


async def test_no_layer_is_added_when_nothing_was_written(storage: Storage) -> None:
    """Depth grows with changes only."""
    row = await storage.workspaces.create((await storage.base()).id)
    assert (await storage.snapshots.create("s", row.id)).layers == row.layers


async def test_the_workspace_is_as_it_was_when_taking_fails(storage: Storage) -> None:
    """The upper directory comes back, the row says why, nothing is left, the name is free."""
    row = await _written(storage, "one")
    storage.recorder.errors.append(WorkspaceError("cannot record the base: no space"))
    with pytest.raises(WorkspaceError, match="no space"):
        await storage.snapshots.create("s", row.id)
    assert storage.workspaces.get(row.id) == row
    assert (storage.layout.upper(row.id) / "workspace/repo/file").read_text() == "one"
    (failed,) = [s for s in storage.journal.state.snapshots.values() if s.name == "s"]
    assert (failed.state, failed.layers) == (SnapshotState.FAILED, ())
    assert [path.name for path in storage.layout.layers.iterdir()] == list(row.layers)
    assert storage.read((await storage.snapshots.create("s", row.id)).layers) == "one"


async def test_a_running_workspace_is_copied_when_taken(storage: Storage) -> None:
    """It is frozen meanwhile, keeps its own upper directory, and its row does not change."""
    row = await _written(storage, "one")
    running = await storage.workspaces.start(row.id)
    taken = await storage.snapshots.create("s", row.id)
    assert taken.frozen_seconds == 0.25
    assert taken.layers[1:] == row.layers
    assert storage.fleet.frozen == {}
    assert storage.workspaces.get(row.id) == running
    storage.write(row.id, "two")
    assert storage.read(taken.layers) == "one"


async def test_nothing_is_left_when_a_running_workspace_cannot_be_frozen(storage: Storage) -> None:
    """The snapshot failed with the reason; the workspace runs on."""
    row = await _written(storage, "one")
    running = await storage.workspaces.start(row.id)
    storage.fleet.crash(row.id)
    with pytest.raises(WorkspaceError, match="its sandbox is gone"):
        await storage.snapshots.create("s", row.id)
    assert storage.workspaces.get(row.id) == running
    assert [path.name for path in storage.layout.layers.iterdir()] == list(row.layers)


async def test_lineage_is_told_when_snapshots_follow_each_other(storage: Storage) -> None:
    """A workspace's next snapshot comes from its last one, a fork's first from where it stands."""
    base = await storage.base()
    row = await _written(storage, "one")
    first = await storage.snapshots.create("first", row.id)
    storage.write(row.id, "two")
    second = await storage.snapshots.create("second", row.id)
    fork = await storage.workspaces.create(first.id)
    storage.write(fork.id, "three")
    third = await storage.snapshots.create("third", fork.id)
    assert [one.depth for one in (base, first, second, third)] == [0, 1, 2, 2]
    assert [first.parent, second.parent, third.parent] == [row.snapshot, first.id, first.id]


async def test_one_gets_the_name_when_two_ask_for_it(storage: Storage) -> None:
    """Names are unique among live snapshots; a deleted one's is free."""
    rows = [await _written(storage, str(n)) for n in range(2)]
    outcomes = await asyncio.gather(
        *(storage.snapshots.create("s", row.id) for row in rows), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(refused) == 1
    assert isinstance(refused[0], ConflictError)
    for row in rows:
        await storage.workspaces.delete(row.id)
    await storage.snapshots.delete("s")
    assert (await storage.snapshots.create("s", (await _written(storage, "x")).id)).name == "s"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a@1", "x" * 101, "../x"])
async def test_a_bad_name_is_refused_when_given(storage: Storage, name: str) -> None:
    """Before anything is looked at."""
    row = await _written(storage, "one")
    with pytest.raises(ConfigError):
        await storage.snapshots.create(name, row.id)


async def test_waiting_ends_when_the_snapshot_is_ready_or_failed(storage: Storage) -> None:
    """Whoever waits sees what others do."""
    base = await storage.base()
    pending = Snapshot(
        id=new_snapshot_id(), name="later", state=SnapshotState.PENDING, created_at="now"
    )
    await storage.journal.append(pending)
    waiting = asyncio.create_task(storage.snapshots.wait_until_ready("later"))
    await asyncio.sleep(0)
    ready = replace(pending, state=SnapshotState.READY, layers=base.layers)
    await storage.journal.append(ready)
    assert await waiting == ready
    await storage.journal.append(replace(ready, state=SnapshotState.FAILED, trouble="disk full"))
    with pytest.raises(WorkspaceError, match="disk full"):
        await storage.snapshots.wait_until_ready("later")
    with pytest.raises(NotFoundError):
        await storage.snapshots.wait_until_ready("never")


async def test_layers_go_when_the_last_one_who_needs_them_goes(storage: Storage) -> None:
    """A snapshot stands while a workspace or a later snapshot stands on it, in that order only."""
    row = await _written(storage, "one")
    first = await storage.snapshots.create("first", row.id)
    storage.write(row.id, "two")
    second = await storage.snapshots.create("second", row.id)
    with pytest.raises(ConflictError, match="snapshot second stand on it"):
        await storage.snapshots.delete("first")
    with pytest.raises(ConflictError, match=f"workspace {row.id} stands on it"):
        await storage.snapshots.delete("second")
    await storage.workspaces.delete(row.id)
    await storage.snapshots.delete("second")
    assert not storage.layout.layer(second.layers[0]).exists()
    assert storage.layout.layer(first.layers[0]).exists()
    await storage.snapshots.delete("first")
    await storage.snapshots.delete(first.id)
    await storage.snapshots.delete("base")
    assert list(storage.layout.layers.iterdir()) == []


async def test_half_a_snapshot_is_taken_back_when_a_server_follows(storage: Storage) -> None:
    """Whether the directory moved already or not, the workspace has its files as before."""
    for moved in (False, True):
        row = await _written(storage, "one")
        added = new_layer_id()
        pending = Snapshot(
            id=new_snapshot_id(),
            name=f"s{moved}",
            state=SnapshotState.PENDING,
            created_at="now",
            layers=(added, *row.layers),
            workspace=row.id,
        )
        await storage.journal.append_all([pending, replace(row, layers=pending.layers)])
        if moved:
            storage.workspaces.layers.adopt_upper(row.id, added)
        storage = storage.restart()
        await storage.recover()
        assert storage.workspaces.get(row.id) == row
        assert (storage.layout.upper(row.id) / "workspace/repo/file").read_text() == "one"
        assert storage.journal.state.snapshots[pending.id].state is SnapshotState.FAILED
        assert not storage.layout.layer(added).exists()
        sequence = storage.journal.sequence
        await storage.recover()
        assert storage.journal.sequence == sequence
    storage.journal.close()


async def test_what_no_row_names_is_removed_when_a_server_starts(storage: Storage) -> None:
    """Half-made layers and directories of unknown workspaces are leftovers."""
    base = await storage.base()
    storage.workspaces.layers.start(new_layer_id())
    (storage.layout.layers / new_layer_id()).mkdir()
    (storage.layout.workspaces / "ws_00000000dead").mkdir()
    await storage.recover()
    assert [path.name for path in storage.layout.layers.iterdir()] == list(base.layers)
    assert list(storage.layout.workspaces.iterdir()) == []
    assert list(storage.layout.trash.iterdir()) == []


async def test_a_half_made_layer_is_no_leftover_when_a_row_names_it(storage: Storage) -> None:
    """Collecting garbage during a build takes nothing from under it."""
    layer = new_layer_id()
    await storage.journal.append(
        Snapshot(
            id=new_snapshot_id(),
            name="building",
            state=SnapshotState.PENDING,
            created_at="now",
            layers=(layer,),
        )
    )
    storage.workspaces.layers.start(layer)
    assert storage.workspaces.layers.leftovers(storage.journal.state) == ()
