"""Recipes and builds over a fake fleet."""

from __future__ import annotations

import asyncio

import pytest

from fakes.storage import Storage
from forkyard.errors import ConfigError, ConflictError, NotFoundError, WorkspaceError
from forkyard.model.workspace import (
    NetworkPolicy,
    OnFailure,
    SnapshotState,
    TemplateSpec,
    TemplateState,
    TemplateTask,
    WorkspaceState,
)

pytestmark = pytest.mark.anyio

TASK = TemplateTask(name="deps", run="make deps", working_directory="/workspace")


async def test_tasks_run_in_order_and_in_the_open_when_a_template_is_built(
    storage: Storage,
) -> None:
    """With the template's variables; what they print is in the log and in files of their own."""
    storage.fleet.script("make deps", stdout=b"fetched\n")
    spec = TemplateSpec(tasks=(TASK, TemplateTask(name="two", run="true")), variables={"A": "1"})
    await storage.templates.apply("t", spec)
    built = await storage.templates.build("t")
    assert built.state is TemplateState.READY
    assert built.snapshot is not None
    snapshot = storage.journal.state.snapshots[built.snapshot]
    assert (snapshot.state, snapshot.name) == (SnapshotState.READY, "t@1")
    assert snapshot.environment.variables == {"A": "1"}
    assert [spec.network for spec in storage.fleet.started] == [NetworkPolicy.OPEN]
    assert [spec.argv[2] for spec in storage.fleet.executed[:2]] == ["make deps", "true"]
    assert storage.fleet.executed[0].variables["A"] == "1"
    log = storage.templates.log(built)
    lines = log.read_text().splitlines()
    assert lines.index("fetched") > lines.index("task deps: make deps")
    assert any("network: open" in line for line in lines)
    assert (log.parent / "task-1.stdout").read_bytes() == b"fetched\n"
    assert await storage.fleet.running() == ()
    assert list(storage.layout.workspaces.iterdir()) == []


async def test_no_sandbox_is_started_when_there_is_nothing_to_run(storage: Storage) -> None:
    """A template without tasks and repository is its base layer."""
    await storage.templates.apply("t", TemplateSpec())
    await storage.templates.build("t")
    assert storage.fleet.started == []


async def test_the_build_goes_on_when_a_task_may_fail(storage: Storage) -> None:
    """ON_FAILURE_CONTINUE is said in the log; ON_FAILURE_ABORT ends the build."""
    storage.fleet.script("make deps", exit_code=2)
    lenient = TemplateTask(name="deps", run="make deps", on_failure=OnFailure.CONTINUE)
    await storage.templates.apply("t", TemplateSpec(tasks=(lenient,)))
    built = await storage.templates.build("t")
    assert "ended with status 2" in storage.templates.log(built).read_text()
    await storage.templates.apply("t", TemplateSpec(tasks=(TASK,)))
    with pytest.raises(WorkspaceError, match="task deps ended with status 2"):
        await storage.templates.build("t")
    failed = storage.templates.get("t")
    assert failed.state is TemplateState.FAILED
    assert failed.snapshot == built.snapshot


async def test_each_build_has_its_own_snapshot_when_built_again(storage: Storage) -> None:
    """The earlier one stays for whoever uses it."""
    await storage.templates.apply("t", TemplateSpec())
    first = await storage.templates.build("t")
    second = await storage.templates.build("t")
    states = storage.journal.state.snapshots
    assert first.snapshot is not None
    assert second.snapshot is not None
    assert [states[s].name for s in (first.snapshot, second.snapshot)] == ["t@1", "t@2"]
    assert states[first.snapshot].state is SnapshotState.READY


async def test_only_one_build_runs_when_two_are_asked_for(storage: Storage) -> None:
    """The second is refused; neither apply nor delete come in between."""
    held = asyncio.Event()
    storage.fleet.script("make deps", held=held)
    await storage.templates.apply("t", TemplateSpec(tasks=(TASK,)))
    building = asyncio.create_task(storage.templates.build("t"))
    async with asyncio.timeout(5):
        while storage.templates.get("t").state is not TemplateState.BUILDING:
            await storage.journal.wait_for_change(storage.journal.sequence)
    for refused in (
        storage.templates.build("t"),
        storage.templates.delete("t"),
        storage.templates.apply("t", TemplateSpec()),
    ):
        with pytest.raises(ConflictError, match="it is being built"):
            await refused
    held.set()
    assert (await building).state is TemplateState.READY


async def test_a_build_is_interrupted_when_the_server_closes(storage: Storage) -> None:
    """It says so, and the next server finds nothing of it."""
    storage.fleet.script("make deps", held=asyncio.Event())
    await storage.templates.apply("t", TemplateSpec(tasks=(TASK,)))
    building = asyncio.create_task(storage.templates.build("t"))
    async with asyncio.timeout(5):
        while not storage.fleet.executed:
            await asyncio.sleep(0.01)
    await storage.workspaces.close(patience_seconds=5)
    with pytest.raises(asyncio.CancelledError):
        await building
    assert storage.templates.get("t").trouble == "interrupted: the server ended during the build"
    following = storage.restart()
    await following.recover()
    rows = following.journal.state.workspaces.values()
    assert {row.state for row in rows} == {WorkspaceState.DELETED}
    assert list(following.layout.layers.iterdir()) == []
    assert await following.fleet.running() == ()
    following.journal.close()


async def test_a_recipe_is_kept_when_it_is_applied_twice(storage: Storage) -> None:
    """The same one changes nothing, another one replaces it; names are checked; delete forgets."""
    first = await storage.templates.apply("t", TemplateSpec())
    assert await storage.templates.apply("t", TemplateSpec()) == first
    built = await storage.templates.build("t")
    changed = await storage.templates.apply("t", TemplateSpec(variables={"A": "1"}))
    assert (changed.id, changed.state) == (first.id, TemplateState.APPLIED)
    for name in ("", "a b", "-x", "x@1"):
        with pytest.raises(ConfigError):
            await storage.templates.apply(name, TemplateSpec())
    await storage.templates.delete("t")
    assert built.snapshot is not None
    assert storage.journal.state.snapshots[built.snapshot].state is SnapshotState.DELETED
    assert not storage.layout.build(first.id).exists()
    with pytest.raises(NotFoundError):
        storage.templates.get("t")
