"""Where ext4 puts the folders of workspaces and layers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.base.placement import spread_folders
from forkyard.config import Layout
from forkyard.workspace.layers import Layers

GROUPS = 8
FOLDERS = 24


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Path]:
    """Mount a fresh ext4 of eight block groups, none of which flex_bg joins."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    for command in (
        ["truncate", "-s", f"{GROUPS * 128}M", str(image)],
        ["mkfs.ext4", "-q", "-O", "^flex_bg", str(image)],
        ["mount", "-o", "loop", str(image), str(folder)],
    ):
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    yield folder
    subprocess.run(["umount", str(folder)], check=True, stdin=subprocess.DEVNULL)


def groups_of(parent: Path) -> set[int]:
    """Make folders below a parent, a file in each, and name the block groups of the files."""
    by_group = os.statvfs(parent).f_files // GROUPS
    found = set()
    for number in range(FOLDERS):
        (parent / str(number)).mkdir()
        file = parent / str(number) / "file"
        file.touch()
        found.add((file.stat().st_ino - 1) // by_group)
    return found


def test_workspaces_and_layers_begin_in_parts_of_the_disk_of_their_own(ext4: Path) -> None:
    """Both of them do, and the trash, which nobody told, does not."""
    layout = Layout(ext4)
    Layers(layout).prepare()
    assert len(groups_of(layout.workspaces)) > 1
    assert len(groups_of(layout.layers)) > 1
    assert len(groups_of(layout.trash)) == 1


def test_it_may_be_said_twice(ext4: Path) -> None:
    """As every start of a server does."""
    spread_folders(ext4)
    spread_folders(ext4)
    assert len(groups_of(ext4)) > 1


def test_a_file_system_that_knows_no_parts_is_left_as_it_is() -> None:
    """Nothing is raised there."""
    spread_folders(Path("/dev/shm"))
