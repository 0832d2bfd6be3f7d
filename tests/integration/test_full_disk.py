"""A state directory on a disk that fills up: one clear sentence, nothing half-made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.errors import WorkspaceError
from forkyard.model.workspace import RepositorySource, TemplateState
from leftovers import stop_all
from station import make_repository, station

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk(home: Path, tmp_path: Path) -> Iterator[Path]:
    """Put the state directory on a file system of 60 MiB."""
    image = tmp_path / "image"
    for command in (
        ["truncate", "-s", "60M", str(image)],
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(home)],
    ):
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (home / "lost+found").rmdir()
    yield home
    stop_all(home)
    subprocess.run(["umount", str(home)], check=True, stdin=subprocess.DEVNULL)


async def test_nothing_is_left_when_a_repository_does_not_fit(
    small_disk: Path, tmp_path: Path
) -> None:
    """The build fails with the reason and what to do; a smaller one works at once."""
    source = make_repository(tmp_path / "src")
    (source / "big").write_bytes(os.urandom(80 * 1024**2))
    async with station(small_disk) as here:
        asked = RepositorySource(path=str(source), include_uncommitted=True)
        with pytest.raises(WorkspaceError, match="No space left on device") as refused:
            await here.snapshot_of(asked)
        assert "Free space" in (refused.value.hint or "")
        row = here.templates.get("t")
        assert row.state is TemplateState.FAILED
        assert (row.trouble or "").startswith("clone: ")
        assert here.left() == {"layers": [], "workspaces": [], "trash": []}
        (source / "big").unlink()
        snapshot = await here.snapshot_of(asked)
        fork = (await here.workspaces.create(snapshot.id)).id
        assert await here.run(fork, "cat a.txt") == "two\n"
