"""The sandbox kept ready: who gets it, who does not, and that nothing of it is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fakes.storage import Storage
from forkyard.model.ids import new_workspace_id
from forkyard.model.workspace import Limits, NetworkPolicy, Spare

pytestmark = pytest.mark.anyio


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


async def _spare(storage: Storage) -> Spare:
    """Fork once, and wait for the spare that follows."""
    await storage.workspaces.create((await storage.base()).id, start=True)
    await _until(lambda: bool(storage.fleet.prepared))
    await _until(lambda: bool(storage.journal.state.spares))
    (spare,) = storage.journal.state.spares.values()
    return spare


async def test_the_next_fork_gets_the_spare_when_it_is_of_its_kind(storage: Storage) -> None:
    """One commit says that it is a workspace now; its id, slot and first epoch are the spare's."""
    spare = await _spare(storage)
    before = storage.journal.sequence

    row = await storage.workspaces.create(next(iter(storage.journal.state.snapshots)), start=True)

    assert (row.id, row.slot, row.epoch) == (spare.id, spare.slot, 1)
    notes = [(e.entity_kind, e.note) for e in storage.journal.events_after(before)]
    assert notes == [("spare", "taken"), ("workspace", "created")]
    await _until(lambda: spare.id not in storage.fleet.prepared)
    assert storage.fleet.started[-1].workspace == spare.id
    await storage.workspaces.close()


async def test_a_fork_makes_its_own_when_the_spare_is_of_another_kind(storage: Storage) -> None:
    """Other limits, another network, a name of its own, or no start at once: no spare."""
    spare = await _spare(storage)
    snapshot = next(iter(storage.journal.state.snapshots))

    rows = [
        await storage.workspaces.create(snapshot, start=True, limits=Limits(processes=7)),
        await storage.workspaces.create(snapshot, start=True, network=NetworkPolicy.GATEWAY),
        await storage.workspaces.create(snapshot, start=True, workspace_id=new_workspace_id()),
        await storage.workspaces.create(snapshot),
    ]

    assert spare.id not in {row.id for row in rows}
    assert len({spare.slot, *(row.slot for row in rows)}) == 5
    await storage.workspaces.close()


async def test_one_spare_of_the_newest_kind_is_kept_when_kinds_change(storage: Storage) -> None:
    """It costs memory: never more than one, and the old one's name and slot are let go."""
    old = await _spare(storage)
    snapshot = next(iter(storage.journal.state.snapshots))

    await storage.workspaces.create(snapshot, start=True, limits=Limits(processes=7))
    await _until(lambda: bool(storage.fleet.prepared) and old.id not in storage.fleet.prepared)

    (spec,) = storage.fleet.prepared.values()
    assert spec.limits.processes == 7
    assert old.id not in storage.journal.state.spares
    assert not storage.layout.workspace(old.id).exists()
    await storage.workspaces.close()


async def test_nothing_is_left_when_the_server_closes(storage: Storage) -> None:
    """A spare is of no use to anybody then."""
    spare = await _spare(storage)

    await storage.workspaces.close()

    assert not storage.fleet.prepared
    assert not storage.journal.state.spares
    assert not storage.layout.workspace(spare.id).exists()


async def test_an_earlier_server_s_spare_is_removed_when_it_was_killed(storage: Storage) -> None:
    """Its name is in the journal, so all of it is found; a second recovery changes nothing."""
    spare = await _spare(storage)

    again = storage.restart()
    assert spare.id in again.journal.state.spares
    await again.workspaces.recover()

    assert not again.fleet.prepared
    assert not again.journal.state.spares
    assert not again.layout.workspace(spare.id).exists()
    before = again.journal.sequence
    await again.workspaces.recover()
    assert again.journal.sequence == before
    again.journal.close()
