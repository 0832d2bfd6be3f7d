"""What an agent does to its own tree must not reach the host at the next start or snapshot."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from forkyard.errors import WorkspaceError
from forkyard.model.workspace import RepositorySource
from station import Station, make_repository, station

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(home: Path) -> AsyncIterator[Station]:
    """Give the services over an empty state directory."""
    async with station(home) as opened:
        yield opened


@pytest.fixture
def source() -> Iterator[Path]:
    """Make a repository that is also shown at its own path: not below /tmp, which is not."""
    folder = Path(tempfile.mkdtemp(prefix="fy-", dir="/srv"))
    folder.chmod(0o755)
    (folder / "secret").mkdir()
    (folder / "secret/host").write_text("of the host")
    yield make_repository(folder / "src")
    shutil.rmtree(folder)


async def test_no_host_folder_appears_when_the_repository_becomes_a_link(
    here: Station, source: Path
) -> None:
    """The second path is not mounted then; restarts, snapshots and forks still work."""
    host = source.parent / "secret"
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    for number, evil in enumerate(
        (
            f"ln -s {host} repo",
            f"ln -s ../../../../../../..{host} repo",
            f"ln -s {host}/../src repo",
            "true",
            "echo file > repo",
            "mkfifo repo",
        )
    ):
        fork = (await here.workspaces.create(snapshot.id)).id
        assert await here.run(fork, f"cat {source}/a.txt") == "two\n"
        await here.run(fork, f"rm -rf repo && {evil}", directory="/workspace")
        await here.workspaces.stop(fork)
        for again in range(2):
            _, text = await here.shell(
                fork,
                f"cat {source}/host repo/host {source}/a.txt; ls {source}; touch {source}/x",
                directory="/workspace",
                timeout_seconds=5,
            )
            assert "of the host" not in text, evil
            assert "two" not in text, evil
            await here.workspaces.stop(fork)
            taken = await here.snapshots.create(f"s{number}.{again}", fork)
            assert taken.base is None
            assert await here.snapshots.sealed(taken) == taken
            fork = (await here.workspaces.create(taken.id)).id
    assert sorted(path.name for path in source.iterdir()) == [".git", ".gitignore", "a.txt", "pkg"]


async def test_no_host_folder_is_written_when_dot_git_is_a_link(
    here: Station, source: Path
) -> None:
    """Sealing writes into a layer of ours only, whatever `.git` became."""
    outside = source.parent / "secret"
    before = sorted(path.name for path in outside.rglob("*"))
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    fork = (await here.workspaces.create(snapshot.id)).id
    await here.run(fork, f"mv .git ../moved && ln -s {outside} .git")
    await here.workspaces.stop(fork)
    taken = await here.snapshots.create("linked", fork)
    try:
        sealed = await here.snapshots.sealed(taken)
    except WorkspaceError as error:
        assert "cannot seal" in error.message  # noqa: PT017 - either is right
    else:
        inside = (await here.workspaces.create(sealed.id)).id
        assert await here.run(inside, "git log --oneline 2>/dev/null | wc -l") == "0\n"
    assert sorted(path.name for path in outside.rglob("*")) == before


async def test_a_workspace_is_deleted_when_its_agent_made_that_hard(
    here: Station, source: Path
) -> None:
    """Folders without permissions, deep nesting and links leave nothing behind or touched."""
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    fork = (await here.workspaces.create(snapshot.id)).id
    await here.run(
        fork,
        "mkdir -p locked/x && chmod -R 000 locked; ln -s / everything;"
        " python3 -c \"import os\nfor _ in range(400): os.mkdir('d'); os.chdir('d')\"",
    )
    await here.workspaces.delete(fork)
    await here.snapshots.delete(snapshot.id)
    assert here.left() == {"layers": [], "workspaces": [], "trash": []}
    assert (source / "a.txt").read_text() == "two\n"
