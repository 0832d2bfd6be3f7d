"""Removal of hostile trees: deep, unreadable, full of links and mount points."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkyard.base.removal import empty_trash, move_to_trash, remove_tree


def _deep_tree(root: Path, depth: int) -> None:
    root.mkdir()
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for level in range(depth):
        os.close(os.open(f"file-{level}", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        os.mkdir("down", dir_fd=descriptor)
        inner = os.open("down", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


def test_everything_goes_when_tree_is_deeper_than_a_path_may_be_long(tmp_path: Path) -> None:
    """A 1500-deep tree with long names costs no recursion and no descriptors."""
    tree = tmp_path / "tree"
    _deep_tree(tree, 1500)
    remove_tree(tree, tmp_path / "trash")
    assert not tree.exists()
    assert list((tmp_path / "trash").iterdir()) == []


def test_link_targets_stay_when_tree_links_out(tmp_path: Path) -> None:
    """Symbolic and hard links out of the tree are removed, what they name is not."""
    outside = tmp_path / "outside"
    outside.mkdir()
    sentinel = outside / "sentinel"
    sentinel.write_text("alive")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "to-directory").symlink_to(outside)
    (tree / "to-file").symlink_to(sentinel)
    (tree / "dangling").symlink_to("nowhere")
    os.link(sentinel, tree / "hard")
    os.mkfifo(tree / "fifo")
    remove_tree(tree, tmp_path / "trash")
    assert sentinel.read_text() == "alive"
    assert list(outside.iterdir()) == [sentinel]
    assert list((tmp_path / "trash").iterdir()) == []


def test_link_itself_goes_when_path_is_a_link(tmp_path: Path) -> None:
    """A directory that was replaced by a link is not followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "sentinel").write_text("alive")
    link = tmp_path / "link"
    link.symlink_to(outside)
    remove_tree(link, tmp_path / "trash")
    assert not link.is_symlink()
    assert (outside / "sentinel").read_text() == "alive"


def test_everything_goes_when_directories_have_no_permissions(tmp_path: Path) -> None:
    """Mode 000 directories and files are no obstacle."""
    tree = tmp_path / "tree"
    (tree / "shut" / "inner").mkdir(parents=True)
    (tree / "shut" / "inner" / "file").write_text("x")
    (tree / "shut" / "inner").chmod(0)
    (tree / "shut").chmod(0)
    remove_tree(tree, tmp_path / "trash")
    assert list((tmp_path / "trash").iterdir()) == []


def test_nothing_happens_when_path_is_absent(tmp_path: Path) -> None:
    """Removing what is not there is success."""
    assert move_to_trash(tmp_path / "absent", tmp_path / "trash") is None
    remove_tree(tmp_path / "absent", tmp_path / "trash")
    assert empty_trash(tmp_path / "no-trash") == ()


@pytest.mark.parametrize("name", ["-rf", "a\nb", "\udcff\udcfe", "x" * 255])
def test_names_do_not_matter_when_they_are_hostile(tmp_path: Path, name: str) -> None:
    """Names that confuse shells, terminals and encodings are only names."""
    tree = tmp_path / "tree"
    (tree / name).mkdir(parents=True)
    (tree / name / name).write_text("x")
    remove_tree(tree, tmp_path / "trash")
    assert list((tmp_path / "trash").iterdir()) == []
