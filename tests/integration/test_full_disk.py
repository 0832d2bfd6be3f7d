"""A state directory on a disk that fills up: one clear sentence, nothing half-made."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import projects
from forkyard.base.clock import SystemClock
from forkyard.errors import StoreError, WorkspaceError
from forkyard.model.ids import TemplateId
from forkyard.model.workspace import RepositorySource, Template, TemplateSpec, TemplateState
from forkyard.store.journal import Journal
from forkyard.store.reserve import Reserve
from leftovers import stop_all
from station import make_repository, station

pytestmark = pytest.mark.anyio


def _unmount(home: Path) -> None:
    """Take the disk away; what was told to go may hold it for an instant longer."""
    deadline = time.monotonic() + 20
    while True:
        done = subprocess.run(
            ["umount", str(home)], check=False, stdin=subprocess.DEVNULL, capture_output=True
        )
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.1)


@contextlib.contextmanager
def disk(home: Path, image: Path, size: str) -> Iterator[Path]:
    """Put the state directory on a file system of its own."""
    for command in (
        ["truncate", "-s", size, str(image)],
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(home)],
    ):
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (home / "lost+found").rmdir()
    yield home
    stop_all(home)
    _unmount(home)


@pytest.fixture
def small_disk(home: Path, tmp_path: Path) -> Iterator[Path]:
    """Put the state directory on a file system of 60 MiB."""
    with disk(home, tmp_path / "image", "60M"):
        yield home


@pytest.fixture
def disk_of_runs(home: Path, tmp_path: Path) -> Iterator[Path]:
    """Put the state directory on a file system on which runs may start."""
    with disk(home, tmp_path / "image", "1600M"):
        yield home


def fill(folder: Path) -> Path:
    """Leave not one block free, also none of those kept for root, nor of those given back late."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        before = -1
        while os.fstat(file.fileno()).st_size > before:
            before = os.fstat(file.fileno()).st_size
            for chunk in (64 * 1024**2, 1024**2, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, chunk)
            os.sync()  # what was removed just before is free only then
    return filler


async def test_the_journal_is_written_when_the_disk_fills_while_it_is_open(
    small_disk: Path,
) -> None:
    """The room kept for it is given up, once; what comes past it is refused and not half there."""
    reserve = Reserve(small_disk / "reserve")
    journal = Journal.open(small_disk / "state.db", SystemClock(), reserve=reserve)
    assert reserve.keep()
    assert (small_disk / "reserve").stat().st_blocks * 512 >= 1024**2
    filler = fill(small_disk)
    written = 0
    refused: StoreError | None = None
    while refused is None:
        try:
            await journal.append(_template(written))
            written += 1
        except StoreError as error:
            refused = error
    assert "the disk is full" in refused.message
    assert written >= 2
    assert not reserve.is_there
    journal.close()
    filler.unlink()
    again = Journal.open(small_disk / "state.db", SystemClock(), reserve=reserve)
    assert len(again.state.templates) == written
    again.close()


def _template(number: int) -> Template:
    return Template(
        id=TemplateId(f"tmpl_{number:012x}"),
        name="x" * 200_000,
        spec=TemplateSpec(),
        state=TemplateState.APPLIED,
        created_at="",
    )


async def test_no_room_is_kept_where_there_is_little(small_disk: Path) -> None:
    """It is made when twice its size is free, and not before."""
    reserve = Reserve(small_disk / "reserve")
    filler = fill(small_disk)
    assert not reserve.keep()
    assert "is full" in (reserve.trouble() or "")
    assert not list(small_disk.glob(".reserve*"))
    filler.unlink()
    assert reserve.trouble() is None
    assert reserve.is_there


def test_a_user_can_cancel_and_collect_when_the_disk_is_full(
    disk_of_runs: Path, tmp_path: Path
) -> None:
    """The server starts on a full disk, says so, cancels the run, and gives room back."""
    repository = projects.make_repository(tmp_path / "repo")
    (repository / "data").write_bytes(os.urandom(4 * 1024**2))
    quick = ["-a", "a=true", "--check", "true", "--json"]
    done = projects.forkyard("run", "one", *quick, directory=repository)
    assert done.returncode in {0, 1}, done.stderr
    slow = ["run", "two", "-a", "a=sleep 31416001", "--check", "true", "--detach", "--json"]
    run = projects.run_result(projects.forkyard(*slow, directory=repository))["id"]
    deadline = time.monotonic() + 60
    while not projects.alive("31416001"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (disk_of_runs / "reserve").exists()
    assert projects.forkyard("serve", "--stop", directory=repository).returncode == 0
    filler = fill(disk_of_runs)

    told = projects.forkyard("doctor", directory=repository)
    cancelled = projects.forkyard("cancel", run, directory=repository)
    watched = projects.forkyard("watch", run, directory=repository)
    refused = projects.forkyard("run", "three", *quick, directory=repository)

    assert told.returncode == 10, told.stderr
    assert "is full" in told.stdout
    assert not (disk_of_runs / "reserve").exists()
    assert cancelled.returncode == 0, cancelled.stderr
    assert "cancelled" in watched.stdout
    assert projects.alive("31416001") == []
    assert refused.returncode in {10, 15}, refused.stdout
    freed = projects.forkyard("gc", "--older-than", "0.001s", "--json", directory=repository)
    assert freed.returncode == 0, freed.stderr
    assert json.loads(freed.stdout)["size_bytes"] > 4 * 1024**2
    filler.unlink()
    assert projects.forkyard("doctor", directory=repository).returncode == 0
    assert (disk_of_runs / "reserve").exists()
    again = projects.forkyard("run", "four", *quick, directory=repository)
    assert again.returncode in {0, 1}, again.stderr


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
