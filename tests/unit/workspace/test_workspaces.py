"""Rows, slots, epochs and ends of workspaces, with a fleet that only pretends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fakes.storage import Storage
from forkyard.errors import ConflictError, NotFoundError, WorkspaceError
from forkyard.model.execution import Exec, ExecState, StopReason
from forkyard.model.ids import SnapshotId, WorkspaceId, new_exec_id, new_workspace_id
from forkyard.model.workspace import (
    Environment,
    ReadOnlyMount,
    SnapshotState,
    WorkspaceState,
)

pytestmark = pytest.mark.anyio


async def _until_asked(storage: Storage, exec_id: str) -> None:
    async with asyncio.timeout(5):
        while not any(spec.id == exec_id for spec in storage.fleet.executed):
            await asyncio.sleep(0)


async def test_a_workspace_is_stopped_and_named_when_created(storage: Storage) -> None:
    """One commit, then its directories."""
    snapshot = await storage.base()
    before = storage.journal.sequence
    row = await storage.workspaces.create(snapshot.id, display_name="one", owner="att_1")
    assert storage.journal.sequence == before + 1
    assert row.state is WorkspaceState.STOPPED
    assert row.layers == snapshot.layers
    assert storage.layout.upper(row.id).is_dir()
    assert storage.journal.state.workspaces[row.id] == row


async def test_one_is_made_when_the_same_id_is_asked_for_twice(storage: Storage) -> None:
    """A repeated request gives back what is there."""
    snapshot = await storage.base()
    identity = new_workspace_id()
    first = await storage.workspaces.create(snapshot.id, workspace_id=identity)
    assert await storage.workspaces.create(snapshot.id, workspace_id=identity) == first


async def test_slots_are_the_lowest_free_when_many_come_and_go(storage: Storage) -> None:
    """No two live workspaces share a range of ids; a deleted one's is used again."""
    snapshot = await storage.base()
    rows = await asyncio.gather(*(storage.workspaces.create(snapshot.id) for _ in range(8)))
    assert sorted(row.slot for row in rows) == list(range(8))
    victim = next(row for row in rows if row.slot == 3)
    await storage.workspaces.delete(victim.id)
    assert (await storage.workspaces.create(snapshot.id)).slot == 3
    again = storage.restart()
    assert (await again.workspaces.create(snapshot.id)).slot == 8
    again.journal.close()


async def test_two_commits_are_made_when_a_stopped_workspace_runs_a_short_command(
    storage: Storage,
) -> None:
    """Start and exec share one, running and the end the other."""
    row = await storage.workspaces.create((await storage.base()).id)
    before = storage.journal.sequence
    done = await storage.workspaces.exec(row.id, ["true"], variables={"A": "1"})
    notes = [(e.entity_kind, e.note) for e in storage.journal.events_after(before)]
    assert notes == [
        ("workspace", "start"),
        ("exec", "exec"),
        ("workspace", "started"),
        ("exec", "exited"),
    ]
    assert done.state is ExecState.ENDED
    assert storage.workspaces.get(row.id).state is WorkspaceState.RUNNING
    assert storage.workspaces.get(row.id).epoch == done.epoch == 1


async def test_running_is_told_when_the_first_command_takes_long(storage: Storage) -> None:
    """Nobody reads `starting` for hours."""
    row = await storage.workspaces.create((await storage.base()).id)
    held = asyncio.Event()
    storage.fleet.script("long", held=held)
    waiting = asyncio.create_task(storage.workspaces.exec(row.id, ["long"]))
    async with asyncio.timeout(5):
        while storage.workspaces.get(row.id).state is not WorkspaceState.RUNNING:
            await storage.journal.wait_for_change(storage.journal.sequence)
    held.set()
    assert (await waiting).state is ExecState.ENDED


async def test_variables_are_layered_when_a_command_runs(storage: Storage) -> None:
    """Built-in, then the template's, then the command's own."""
    snapshot = await storage.base()
    variables = {"LANG": "de", "LEVEL": "template", "KEEP": "yes"}
    await storage.journal.append(replace(snapshot, environment=Environment(variables=variables)))
    row = await storage.workspaces.create(snapshot.id)
    await storage.workspaces.exec(row.id, ["true"], variables={"LEVEL": "exec"})
    given = storage.fleet.executed[0].variables
    assert given["HOME"] == "/home/workspace"
    assert (given["LANG"], given["LEVEL"], given["KEEP"]) == ("de", "exec", "yes")


async def test_a_new_epoch_begins_when_a_stopped_workspace_starts(storage: Storage) -> None:
    """Starting twice is one sandbox; after a stop the next is another."""
    row = await storage.workspaces.create((await storage.base()).id)
    await asyncio.gather(*(storage.workspaces.start(row.id) for _ in range(3)))
    assert [spec.epoch for spec in storage.fleet.started] == [1]
    await storage.workspaces.stop(row.id)
    await storage.workspaces.stop(row.id)
    await storage.workspaces.start(row.id)
    assert [spec.epoch for spec in storage.fleet.started] == [1, 2]


async def test_the_row_says_why_when_a_start_fails(storage: Storage) -> None:
    """Stopped again, with the reason; the command that asked has an end; a retry works."""
    row = await storage.workspaces.create((await storage.base()).id)
    storage.fleet.start_errors.append(WorkspaceError("cannot start: no runtime"))
    with pytest.raises(WorkspaceError, match="no runtime"):
        await storage.workspaces.exec(row.id, ["true"])
    now = storage.workspaces.get(row.id)
    assert now.state is WorkspaceState.STOPPED
    assert now.trouble == "cannot start: no runtime"
    (ended,) = storage.journal.state.execs.values()
    assert ended.result is not None
    assert ended.result.stop_reason is StopReason.INTERRUPTED
    assert (await storage.workspaces.exec(row.id, ["true"])).state is ExecState.ENDED
    assert storage.workspaces.get(row.id).trouble is None


async def test_it_is_said_when_the_sandbox_is_gone(storage: Storage) -> None:
    """The next command finds no sandbox and did not run: the row is stopped with the trouble."""
    row = await storage.workspaces.create((await storage.base()).id)
    await storage.workspaces.exec(row.id, ["true"])
    storage.fleet.crash(row.id)
    lost = await storage.workspaces.exec(row.id, ["true"])
    assert lost.result is not None
    assert lost.result.stop_reason is StopReason.INTERRUPTED
    now = storage.workspaces.get(row.id)
    assert (now.state, now.trouble) == (WorkspaceState.STOPPED, "its sandbox was gone")
    assert (await storage.workspaces.exec(row.id, ["true"])).epoch == 2


async def test_a_command_is_killed_when_its_sandbox_is_still_on_its_way(storage: Storage) -> None:
    """Whoever cancels too early for the fleet to know the command is not forgotten."""
    row = await storage.workspaces.create((await storage.base()).id)
    storage.fleet.script("long", held=asyncio.Event())
    identity = new_exec_id()
    waiting = asyncio.create_task(storage.workspaces.exec(row.id, ["long"], exec_id=identity))
    while identity not in storage.journal.state.execs:
        await storage.journal.wait_for_change(storage.journal.sequence)
    assert storage.fleet.executed == []
    await storage.workspaces.kill_exec(row.id, identity)
    ended = await waiting
    assert ended.result is not None
    assert ended.result.stop_reason is StopReason.KILLED


async def test_a_command_is_interrupted_when_its_sandbox_dies(storage: Storage) -> None:
    """That is a result, and the workspace is stopped."""
    row = await storage.workspaces.create((await storage.base()).id)
    identity = new_exec_id()
    storage.fleet.script("long", held=asyncio.Event())
    waiting = asyncio.create_task(storage.workspaces.exec(row.id, ["long"], exec_id=identity))
    await _until_asked(storage, identity)
    storage.fleet.crash(row.id)
    done = await waiting
    assert done.result is not None
    assert done.result.stop_reason is StopReason.INTERRUPTED
    assert storage.workspaces.get(row.id).state is WorkspaceState.STOPPED


async def test_a_command_goes_on_when_its_caller_is_cancelled(storage: Storage) -> None:
    """Whoever asks with the same id gets the one end."""
    row = await storage.workspaces.create((await storage.base()).id)
    identity, held = new_exec_id(), asyncio.Event()
    storage.fleet.script("long", held=held)
    waiting = asyncio.create_task(storage.workspaces.exec(row.id, ["long"], exec_id=identity))
    await _until_asked(storage, identity)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    attached = asyncio.create_task(storage.workspaces.exec(row.id, ["other"], exec_id=identity))
    await asyncio.sleep(0)
    held.set()
    assert (await attached).spec.argv == ("long",)
    assert len(storage.fleet.executed) == 1


async def test_commands_end_when_their_workspace_is_stopped_killed_or_deleted(
    storage: Storage,
) -> None:
    """Every waiter gets an end, whichever way it comes."""
    snapshot = await storage.base()
    storage.fleet.script("long", held=asyncio.Event())

    async def begin() -> tuple[WorkspaceId, asyncio.Task[Exec]]:
        row = await storage.workspaces.create(snapshot.id)
        identity = new_exec_id()
        task = asyncio.create_task(storage.workspaces.exec(row.id, ["long"], exec_id=identity))
        await _until_asked(storage, identity)
        return row.id, task

    for end in ("stop", "kill", "delete"):
        workspace, task = await begin()
        if end == "stop":
            await storage.workspaces.stop(workspace)
        elif end == "kill":
            (running,) = [
                row
                for row in storage.journal.state.execs.values()
                if row.workspace == workspace and row.state is ExecState.RUNNING
            ]
            await storage.workspaces.kill_exec(workspace, running.id)
        else:
            await storage.workspaces.delete(workspace)
        done = await task
        assert done.result is not None
        assert done.result.stop_reason is StopReason.KILLED
        assert storage.journal.state.execs[done.id] == done


async def test_nothing_is_left_when_a_workspace_is_deleted(storage: Storage) -> None:
    """Running or not, twice or once; one that never was is not found."""
    row = await storage.workspaces.create((await storage.base()).id)
    await storage.workspaces.start(row.id)
    await asyncio.gather(*(storage.workspaces.delete(row.id) for _ in range(3)))
    assert not storage.layout.workspace(row.id).exists()
    assert list(storage.layout.trash.iterdir()) == []
    assert await storage.fleet.running() == ()
    with pytest.raises(NotFoundError, match="it is deleted"):
        await storage.workspaces.exec(row.id, ["true"])
    with pytest.raises(NotFoundError, match="no such id"):
        await storage.workspaces.delete(WorkspaceId("ws_000000000000"))


async def test_deletion_goes_on_later_when_a_stop_fails(storage: Storage) -> None:
    """The row stays `deleting`; asking again, or the next server, brings it to its end."""
    row = await storage.workspaces.create((await storage.base()).id)
    await storage.workspaces.start(row.id)
    storage.fleet.stop_errors.append(WorkspaceError("cannot stop: busy"))
    with pytest.raises(WorkspaceError, match="busy"):
        await storage.workspaces.delete(row.id)
    with pytest.raises(ConflictError, match="being deleted"):
        await storage.workspaces.start(row.id)
    again = storage.restart()
    await again.recover()
    assert again.journal.state.workspaces[row.id].state is WorkspaceState.DELETED
    assert await again.fleet.running() == ()
    again.journal.close()


async def test_only_a_ready_snapshot_is_forked_when_asked(storage: Storage) -> None:
    """Anything else is refused with its state."""
    snapshot = await storage.base()
    await storage.journal.append(replace(snapshot, state=SnapshotState.PENDING))
    with pytest.raises(ConflictError, match="it is pending"):
        await storage.workspaces.create(snapshot.id)
    with pytest.raises(NotFoundError):
        await storage.workspaces.create(SnapshotId("snap_000000000000"))


async def test_live_sandboxes_are_adopted_when_a_server_follows(storage: Storage) -> None:
    """Running commands go on, ended ones get their record, dead sandboxes are told."""
    snapshot = await storage.base()
    held = asyncio.Event()
    storage.fleet.script("long", held=held)
    alive, dead, stray = [await storage.workspaces.create(snapshot.id) for _ in range(3)]
    identity = new_exec_id()
    waiting = asyncio.create_task(storage.workspaces.exec(alive.id, ["long"], exec_id=identity))
    await _until_asked(storage, identity)
    await storage.workspaces.start(dead.id)
    await storage.workspaces.start(stray.id)
    storage.fleet.crash(dead.id)
    await storage.journal.append(replace(stray, state=WorkspaceState.STOPPED))
    await storage.workspaces.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    following = storage.restart()
    await following.recover()
    states = {row.id: row.state for row in following.journal.state.workspaces.values()}
    assert states == {
        alive.id: WorkspaceState.RUNNING,
        dead.id: WorkspaceState.STOPPED,
        stray.id: WorkspaceState.STOPPED,
    }
    assert [s.workspace for s in await following.fleet.running()] == [alive.id]
    sequence = following.journal.sequence
    await following.recover()
    assert following.journal.sequence == sequence
    held.set()
    done = await following.workspaces.wait_exec(identity)
    assert done.result is not None
    assert done.result.exit_code == 0
    following.journal.close()


async def test_no_workspace_stands_on_nothing_when_its_snapshot_is_deleted_meanwhile(
    storage: Storage,
) -> None:
    """Either the workspace is made and its layers stay, or it is refused and leaves nothing."""
    for _ in range(5):
        snapshot = await storage.base()
        made, deleted = await asyncio.gather(
            storage.workspaces.create(snapshot.id),
            storage.snapshots.delete(snapshot.id),
            return_exceptions=True,
        )
        if isinstance(made, BaseException):
            assert isinstance(made, NotFoundError)
            assert deleted is None
        else:
            assert storage.read(made.layers) == "base"
            await storage.workspaces.delete(made.id)
    for path in storage.layout.workspaces.iterdir():
        pytest.fail(f"{path} is left")


async def test_it_is_said_when_a_toolchain_is_no_longer_there(storage: Storage) -> None:
    """What asked for it, and what to do; the workspace is stopped."""
    snapshot = await storage.base()
    mount = ReadOnlyMount(source="/nonexistent/py", target="/nonexistent/py", reason=".venv")
    await storage.journal.append(replace(snapshot, environment=Environment(mounts=(mount,))))
    row = await storage.workspaces.create(snapshot.id)
    with pytest.raises(WorkspaceError, match=r"/nonexistent/py, which \.venv asks for"):
        await storage.workspaces.start(row.id)
    assert storage.workspaces.get(row.id).state is WorkspaceState.STOPPED


async def test_a_second_path_is_shown_when_the_repository_is_a_real_folder(
    storage: Storage,
) -> None:
    """A link put in its place would be followed on the host, so then it is not."""
    snapshot = await storage.base()
    await storage.journal.append(
        replace(snapshot, environment=Environment(repository_source="/home/a/project"))
    )
    row = await storage.workspaces.create(snapshot.id)
    await storage.workspaces.start(row.id)
    await storage.workspaces.stop(row.id)
    (storage.layout.upper(row.id) / "workspace").mkdir()
    (storage.layout.upper(row.id) / "workspace/repo").symlink_to("/etc")
    await storage.workspaces.start(row.id)
    shown = [spec.environment.repository_source for spec in storage.fleet.started]
    assert shown == ["/home/a/project", None]


async def test_a_command_is_made_ready_while_it_is_journalled(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins only when that is durable, and is forgotten where it cannot be."""
    row = await storage.workspaces.create((await storage.base()).id)
    await storage.workspaces.exec(row.id, ["true"])
    append = storage.journal.append

    async def full(entity: object, *rest: object, **options: object) -> None:
        if isinstance(entity, Exec):
            assert [spec.argv for spec in storage.fleet.made_ready] == [("false",)]
            raise ConflictError("no room")
        await append(entity, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(storage.journal, "append", full)
    with pytest.raises(ConflictError):
        await storage.workspaces.exec(row.id, ["false"])
    assert storage.fleet.made_ready == []
    assert [spec.argv for spec in storage.fleet.executed] == [("true",)]
