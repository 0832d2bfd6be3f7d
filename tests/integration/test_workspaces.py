"""Template, build, snapshot, fork, exec, stop and start, snapshot, delete: with real sandboxes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.errors import ConflictError, UserError, WorkspaceError
from forkyard.model.execution import ExecState, StopReason
from forkyard.model.ids import new_exec_id
from forkyard.model.workspace import (
    RepositorySource,
    SnapshotState,
    TemplateState,
    TemplateTask,
    WorkspaceState,
)
from station import Station, git, make_repository, station

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(home: Path) -> AsyncIterator[Station]:
    """Give the services over an empty state directory."""
    async with station(home) as opened:
        yield opened


async def test_the_whole_way_when_a_repository_is_on_disk(here: Station, tmp_path: Path) -> None:
    """Build, fork, run, stop, start, snapshot, fork that, delete; nothing is left in the end."""
    source = make_repository(tmp_path / "src")
    first = await here.snapshot_of(
        RepositorySource(path=str(source), include_uncommitted=True),
        tasks=(TemplateTask(name="note", run="echo built > /workspace/note; echo said"),),
    )
    assert first.base is not None
    assert first.base.commit == git(source, "rev-parse", "HEAD")
    assert not first.base.uncommitted
    log = here.templates.log(here.templates.get("t")).read_text()
    assert "network: open" in log
    assert "\nsaid\n" in log
    assert "task note ended with status 0" in log

    fork = await here.workspaces.create(first.id, display_name="one")
    assert fork.state is WorkspaceState.STOPPED
    said = await here.run(fork.id, "cat a.txt ../note; id -un; echo $HOME; git status --short")
    assert said == "two\nbuilt\nworkspace\n/home/workspace\n"
    assert here.workspaces.get(fork.id).state is WorkspaceState.RUNNING
    await here.run(fork.id, f"cd {source} && echo three > a.txt")
    await here.workspaces.stop(fork.id)
    assert await here.run(fork.id, "cat a.txt") == "three\n"
    assert here.workspaces.get(fork.id).epoch == 2
    assert (source / "a.txt").read_text() == "two\n"

    await here.workspaces.stop(fork.id)
    second = await here.snapshots.create("mine", fork.id)
    assert second.state is SnapshotState.READY
    assert second.base is not None
    assert second.base.uncommitted
    with pytest.raises(ConflictError, match="the name is taken"):
        await here.snapshots.create("mine", fork.id)
    assert await here.run(fork.id, "cat a.txt; echo four > a.txt") == "three\n"
    other = await here.workspaces.create(second.id)
    assert await here.run(other.id, "cat a.txt") == "three\n"

    with pytest.raises(ConflictError, match=r"stands? on it"):
        await here.snapshots.delete("mine")
    await here.workspaces.delete(other.id)
    await here.workspaces.delete(fork.id)
    await here.workspaces.delete(fork.id)
    with pytest.raises(ConflictError, match=r"stands? on it"):
        await here.snapshots.delete(first.id)
    await here.snapshots.delete("mine")
    await here.snapshots.delete(first.id)
    assert here.left() == {"layers": [], "workspaces": [], "trash": []}


async def test_forks_do_not_disturb_each_other_when_sixty_start_at_once(
    here: Station, tmp_path: Path
) -> None:
    """Each has its own slot and its own copy; all are gone afterwards."""
    source = make_repository(tmp_path / "src")
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))

    async def attempt(number: int) -> str:
        fork = await here.workspaces.create(snapshot.id, ephemeral=True)
        try:
            return await here.run(fork.id, f"echo {number} >> a.txt; cat a.txt")
        finally:
            await here.workspaces.delete(fork.id)

    said = await asyncio.gather(*(attempt(number) for number in range(60)))
    assert said == [f"two\n{number}\n" for number in range(60)]
    assert here.left()["workspaces"] == []
    assert await here.fleet.running() == ()


async def test_a_recreated_folder_stays_new_when_forked_twice(
    here: Station, tmp_path: Path
) -> None:
    """Old files of a folder that was removed and made again do not come back."""
    source = make_repository(tmp_path / "src")
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    for step in ("rm -rf pkg && mkdir pkg && echo new > pkg/new.py", "echo more > pkg/more.py"):
        fork = await here.workspaces.create(snapshot.id)
        await here.run(fork.id, step)
        await here.workspaces.stop(fork.id)
        snapshot = await here.snapshots.create(f"s{len(step)}", fork.id)
    last = await here.workspaces.create(snapshot.id)
    assert await here.run(last.id, "ls pkg") == "more.py\nnew.py\n"


async def test_a_snapshot_keeps_its_bytes_when_its_workspace_and_source_change(
    here: Station, tmp_path: Path
) -> None:
    """Neither edits in the user's tree nor in the workspace reach a snapshot."""
    source = make_repository(tmp_path / "src")
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    (source / "a.txt").write_text("edited\n")
    (source / "pkg/old.py").unlink()
    git(source, "checkout", "-qb", "elsewhere")
    fork = await here.workspaces.create(snapshot.id)
    assert await here.run(fork.id, "cat a.txt; ls pkg; git branch --show-current") == (
        "two\nold.py\nmain\n"
    )


async def test_an_exec_is_attached_to_when_its_id_is_known(here: Station) -> None:
    """Asking twice runs once; the end is remembered."""
    snapshot = await here.snapshot_of(None)
    fork = await here.workspaces.create(snapshot.id)
    identity = new_exec_id()
    command = "sleep 0.3; echo x >> /workspace/count; cat /workspace/count"
    one, two = await asyncio.gather(
        here.shell(fork.id, command, directory="/workspace", exec_id=identity),
        here.shell(fork.id, command, directory="/workspace", exec_id=identity),
    )
    assert one[1] == two[1] == "x\n"
    again, _ = await here.shell(fork.id, "false", directory="/workspace", exec_id=identity)
    assert again == one[0]


async def test_a_stop_ends_commands_when_they_still_run(here: Station) -> None:
    """Whoever waits for the command gets its end, and the row has it too."""
    snapshot = await here.snapshot_of(None)
    fork = await here.workspaces.create(snapshot.id)
    await here.workspaces.start(fork.id)
    identity = new_exec_id()
    waiting = asyncio.create_task(
        here.shell(fork.id, "trap '' TERM; sleep 60", directory="/workspace", exec_id=identity)
    )
    while identity not in here.journal.state.execs:
        await here.journal.wait_for_change(here.journal.sequence)
    await here.workspaces.stop(fork.id)
    done, _ = await waiting
    assert done.state is ExecState.ENDED
    assert done.result is not None
    assert done.result.stop_reason in (StopReason.KILLED, StopReason.INTERRUPTED)
    assert here.workspaces.get(fork.id).state is WorkspaceState.STOPPED


async def test_a_build_says_which_step_failed_when_one_does(here: Station, tmp_path: Path) -> None:
    """The word, the task and its status; nothing is left; a corrected recipe builds."""
    source = make_repository(tmp_path / "src")
    with pytest.raises(WorkspaceError, match="task broken ended with status 3"):
        await here.snapshot_of(
            RepositorySource(path=str(source)), tasks=(TemplateTask(name="broken", run="exit 3"),)
        )
    row = here.templates.get("t")
    assert row.state is TemplateState.FAILED
    assert row.trouble is not None
    assert row.trouble.startswith("task: ")
    assert here.left() == {"layers": [], "workspaces": [], "trash": []}
    with pytest.raises(UserError, match="no such folder"):
        await here.snapshot_of(RepositorySource(path=str(tmp_path / "absent")))
    assert (here.templates.get("t").trouble or "").startswith("clone: ")
    assert (await here.snapshot_of(RepositorySource(path=str(source)))).state is SnapshotState.READY


@pytest.mark.parametrize("above", ["/var/tmp", "/tmp", "/srv"])
async def test_a_repository_is_at_its_own_path_wherever_it_lies(here: Station, above: str) -> None:
    """Also below folders that are fresh inside, whose places only the runtime can make."""
    with tempfile.TemporaryDirectory(dir=above, prefix="forkyard-test-") as folder:
        source = make_repository(Path(folder) / "src")
        snapshot = await here.snapshot_of(RepositorySource(path=str(source)))
        fork = await here.workspaces.create(snapshot.id)

        assert await here.run(fork.id, f"cd {source} && pwd && echo x > new") == f"{source}\n"
        assert await here.run(fork.id, "cat /workspace/repo/new") == "x\n"
        assert not (source / "new").exists()
