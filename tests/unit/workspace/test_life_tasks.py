"""POST_START before any command, PRE_STOP before the end; over a fake fleet."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fakes.storage import Storage
from forkyard.errors import WorkspaceError
from forkyard.model.execution import ExecState, StopReason
from forkyard.model.ids import WorkspaceId, new_exec_id
from forkyard.model.workspace import (
    Environment,
    OnFailure,
    Snapshot,
    TaskType,
    TemplateTask,
    WorkspaceState,
)

pytestmark = pytest.mark.anyio

START = TemplateTask(name="up", run="bring up", type=TaskType.POST_START)
SERVE = TemplateTask(name="db", run="serve", type=TaskType.POST_START, background=True)
STOP = TemplateTask(name="flush", run="flush", type=TaskType.PRE_STOP)


async def snapshot_with(storage: Storage, *tasks: TemplateTask) -> Snapshot:
    """Make a ready snapshot whose workspaces have tasks."""
    snapshot = await storage.base()
    with_tasks = replace(snapshot, environment=Environment(tasks=tasks))
    await storage.journal.append(with_tasks)
    return with_tasks


def ran(storage: Storage) -> list[str]:
    """List what was run, in order."""
    return [spec.argv[-1] for spec in storage.fleet.executed]


async def run(storage: Storage, workspace: WorkspaceId, command: str) -> StopReason:
    """Run a command; give how it ended."""
    done = await storage.workspaces.exec(workspace, ["/bin/sh", "-c", command])
    assert done.result is not None
    return done.result.stop_reason


async def test_a_command_waits_when_start_tasks_run(storage: Storage) -> None:
    """Those in the background are only begun; each start runs them again; a stop flushes."""
    held = asyncio.Event()
    storage.fleet.script("bring up", held=held)
    storage.fleet.script("serve", held=asyncio.Event())
    snapshot = await snapshot_with(storage, SERVE, START, STOP)
    workspace = (await storage.workspaces.create(snapshot.id)).id
    command = asyncio.create_task(run(storage, workspace, "mine"))
    async with asyncio.timeout(5):
        while len(ran(storage)) < 2:
            await asyncio.sleep(0.01)
    assert sorted(ran(storage)) == ["bring up", "serve"]
    held.set()
    assert await command is StopReason.EXITED
    assert ran(storage)[-1] == "mine"
    await storage.workspaces.stop(workspace)
    assert ran(storage)[-1] == "flush"
    await run(storage, workspace, "again")
    assert sorted(ran(storage)[4:]) == ["again", "bring up", "serve"]
    tasks = {row.spec.task for row in storage.journal.state.execs.values()}
    assert tasks == {"", "POST_START up", "POST_START db", "PRE_STOP flush"}


async def test_the_workspace_is_stopped_when_a_start_task_fails(storage: Storage) -> None:
    """With the task's name in the row; the command that waited did not run; CONTINUE goes on."""
    storage.fleet.script("bring up", exit_code=3)
    snapshot = await snapshot_with(storage, START)
    workspace = (await storage.workspaces.create(snapshot.id)).id
    with pytest.raises(WorkspaceError, match="task up ended with status 3"):
        await run(storage, workspace, "mine")
    with pytest.raises(WorkspaceError, match="task up ended with status 3"):
        await storage.workspaces.start(workspace)
    row = storage.workspaces.get(workspace)
    assert (row.state, row.trouble) == (
        WorkspaceState.STOPPED,
        "task: task up ended with status 3",
    )
    assert "mine" not in ran(storage)
    assert await storage.fleet.running() == ()
    lenient = await snapshot_with(storage, replace(START, on_failure=OnFailure.CONTINUE))
    other = (await storage.workspaces.create(lenient.id)).id
    assert await run(storage, other, "mine") is StopReason.EXITED


async def test_a_waiting_command_can_be_killed_and_its_workspace_deleted(storage: Storage) -> None:
    """Nothing waits for a start task that never ends."""
    storage.fleet.script("bring up", held=asyncio.Event())
    snapshot = await snapshot_with(storage, START)
    workspace, exec_id = (await storage.workspaces.create(snapshot.id)).id, new_exec_id()
    waiting = asyncio.create_task(
        storage.workspaces.exec(workspace, ["/bin/sh", "-c", "mine"], exec_id=exec_id)
    )
    async with asyncio.timeout(5):
        while "bring up" not in ran(storage):
            await asyncio.sleep(0.01)
        await storage.workspaces.kill_exec(workspace, exec_id)
        done = await waiting
        assert done.result is not None
        assert done.result.stop_reason is StopReason.KILLED
        await storage.workspaces.delete(workspace)
    assert "mine" not in ran(storage)
    states = {row.state for row in storage.journal.state.execs.values()}
    assert states == {ExecState.ENDED}


async def test_evaluations_run_only_the_tasks_that_say_so(storage: Storage) -> None:
    """What judges a candidate is not changed by what helps an agent."""
    judged = replace(SERVE, evaluations=True)
    snapshot = await snapshot_with(storage, START, judged, STOP)
    made = await storage.workspaces.create(snapshot.id, is_evaluation=True)
    assert made.environment.tasks == (judged,)


async def test_no_task_runs_twice_when_the_server_restarts(storage: Storage) -> None:
    """One sandbox, one start: the next server waits for what was begun."""
    held = asyncio.Event()
    storage.fleet.script("bring up", held=held)
    snapshot = await snapshot_with(storage, START)
    workspace = (await storage.workspaces.create(snapshot.id)).id
    starting = asyncio.create_task(storage.workspaces.start(workspace))
    async with asyncio.timeout(5):
        while "bring up" not in ran(storage):
            await asyncio.sleep(0.01)
    await storage.workspaces.close(patience_seconds=0.1)
    await asyncio.gather(starting, return_exceptions=True)
    following = storage.restart()
    await following.recover()
    held.set()
    async with asyncio.timeout(5):
        await run(following, workspace, "mine")
    assert ran(following) == ["bring up", "mine"]
    await following.workspaces.close()
    following.journal.close()
