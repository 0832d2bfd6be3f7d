"""What the coordinator may rely on of workspaces: the real ones, and the world of its tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.coordination import FakeWorkspaces, make_world
from fakes.fleet import FakeFleet
from fakes.storage import Storage
from forkyard.config import Layout
from forkyard.coordinator.interface import WorkspacesPort
from forkyard.errors import ForkyardError
from forkyard.model.execution import StopReason
from forkyard.model.ids import SnapshotId, new_exec_id, new_snapshot_id, new_workspace_id
from forkyard.model.workspace import WorkspaceState
from forkyard.store.journal import Journal

pytestmark = pytest.mark.anyio


@dataclass(slots=True)
class Ground:
    """Workspaces over a journal, and a snapshot to fork."""

    workspaces: WorkspacesPort
    journal: Journal
    snapshot: SnapshotId


@asynccontextmanager
async def world(home: Path) -> AsyncIterator[Ground]:
    """Give the coordinator's fake."""
    made = make_world(home)
    yield Ground(FakeWorkspaces(made), made.journal, new_snapshot_id())
    made.journal.close()


@asynccontextmanager
async def real(home: Path) -> AsyncIterator[Ground]:
    """Give the real ones, over a fake fleet."""
    fleet = FakeFleet(Layout(home))
    fleet.script("exit 3", exit_code=3)
    fleet.script("hang", held=asyncio.Event())
    made = Storage(home, fleet)
    made.workspaces.layers.prepare()
    snapshot = await made.base()
    yield Ground(made.workspaces, made.journal, snapshot.id)
    await made.workspaces.close()
    made.journal.close()


@pytest.fixture(params=[world, real], ids=["fake", "real"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    """Give each of them in turn."""
    async with request.param(tmp_path / "s") as made:
        yield made


async def test_a_workspace_has_the_name_and_owner_that_were_given(ground: Ground) -> None:
    """The coordinator journals names before anything exists, and finds leftovers by owner."""
    name = new_workspace_id()
    made = await ground.workspaces.create(
        ground.snapshot, ephemeral=True, owner="att_1", workspace_id=name
    )
    row = ground.journal.state.workspaces[name]
    assert (made.id, row.owner, row.ephemeral) == (name, "att_1", True)
    assert row.state is WorkspaceState.STOPPED


async def test_a_start_is_a_new_epoch_and_twice_is_one(ground: Ground) -> None:
    """So that an old sandbox can never answer for a new one."""
    made = await ground.workspaces.create(ground.snapshot)
    first = await ground.workspaces.start(made.id)
    again = await ground.workspaces.start(made.id)
    assert (first.state, first.epoch) == (again.state, again.epoch) == (WorkspaceState.RUNNING, 1)
    await ground.workspaces.stop(made.id)
    assert (await ground.workspaces.start(made.id)).epoch == 2


async def test_a_command_is_run_once_and_its_end_is_journalled(ground: Ground) -> None:
    """Asking again with the id gives the same end."""
    made = await ground.workspaces.create(ground.snapshot)
    name = new_exec_id()
    first = await ground.workspaces.exec(made.id, ["exit 3"], exec_id=name)
    again = await ground.workspaces.exec(made.id, ["exit 3"], exec_id=name)
    assert first.result is not None
    assert (first.result.stop_reason, first.result.exit_code) == (StopReason.EXITED, 3)
    assert again.result == first.result == ground.journal.state.execs[name].result


async def test_a_command_ends_when_it_is_killed(ground: Ground) -> None:
    """Whoever waits is told; killing it again is fine."""
    made = await ground.workspaces.create(ground.snapshot)
    name = new_exec_id()
    waiting = asyncio.create_task(ground.workspaces.exec(made.id, ["hang"], exec_id=name))
    while name not in ground.journal.state.execs:
        await ground.journal.wait_for_change(ground.journal.sequence)
    await ground.workspaces.kill_exec(made.id, name)
    ended = await waiting
    assert ended.result is not None
    assert ended.result.stop_reason is StopReason.KILLED
    await ground.workspaces.kill_exec(made.id, name)


async def test_stopping_and_deleting_twice_are_fine(ground: Ground) -> None:
    """Clean-up is begun again after a crash."""
    made = await ground.workspaces.create(ground.snapshot)
    await ground.workspaces.start(made.id)
    for _ in range(2):
        assert (await ground.workspaces.stop(made.id)).state is WorkspaceState.STOPPED
    for _ in range(2):
        await ground.workspaces.delete(made.id)
    assert ground.journal.state.workspaces[made.id].state is WorkspaceState.DELETED


async def test_a_running_workspace_goes_with_its_commands_when_it_is_deleted(
    ground: Ground,
) -> None:
    """Nobody waits for ever."""
    made = await ground.workspaces.create(ground.snapshot)
    name = new_exec_id()
    waiting = asyncio.create_task(ground.workspaces.exec(made.id, ["hang"], exec_id=name))
    while name not in ground.journal.state.execs:
        await ground.journal.wait_for_change(ground.journal.sequence)
    await ground.workspaces.delete(made.id)
    (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    if not isinstance(ended, ForkyardError):
        assert not isinstance(ended, BaseException)
        assert ended.result is not None
        assert ended.result.stop_reason in {StopReason.KILLED, StopReason.INTERRUPTED}
