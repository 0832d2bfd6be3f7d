"""Looking through layers without a mount: whiteouts, opaque folders, links in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkyard.config import Layout
from forkyard.model.ids import LayerId
from forkyard.workspace.layers import OPAQUE, Layers

TOP, LOW = LayerId("lay_aaaaaaaaaaaa"), LayerId("lay_bbbbbbbbbbbb")


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    """Give two layers, the lower one holding pkg/old and kept."""
    layout = Layout(tmp_path)
    made = Layers(layout)
    made.prepare()
    (layout.layer(TOP) / "pkg").mkdir(parents=True)
    (layout.layer(LOW) / "pkg").mkdir(parents=True)
    (layout.layer(LOW) / "pkg/old").write_text("old")
    (layout.layer(LOW) / "kept").write_text("kept")
    return made


def test_the_lower_file_is_found_when_nothing_hides_it(layers: Layers) -> None:
    """Folders merge."""
    found = layers.lookup((TOP, LOW), "/pkg/old")
    assert found is not None
    assert found.layer == LOW
    folder = layers.lookup((TOP, LOW), "pkg")
    assert folder is not None
    assert (folder.layer, folder.is_directory) == (TOP, True)
    assert layers.lookup((TOP, LOW), "/absent") is None


def test_nothing_is_found_when_a_whiteout_stands_there(layers: Layers, tmp_path: Path) -> None:
    """A character device 0:0 marks a deletion, of a file or of a folder above it."""
    os.mknod(Layout(tmp_path).layer(TOP) / "kept", 0o020000, 0)
    assert layers.lookup((TOP, LOW), "kept") is None
    (Layout(tmp_path).layer(TOP) / "pkg").rmdir()
    os.mknod(Layout(tmp_path).layer(TOP) / "pkg", 0o020000, 0)
    assert layers.lookup((TOP, LOW), "pkg/old") is None


def test_lower_files_are_hidden_when_a_folder_is_opaque(layers: Layers, tmp_path: Path) -> None:
    """What the folder itself holds is found, what lies below it is not."""
    folder = Layout(tmp_path).layer(TOP) / "pkg"
    (folder / "new").write_text("new")
    os.setxattr(folder, OPAQUE, b"y")
    assert layers.lookup((TOP, LOW), "pkg/old") is None
    assert layers.lookup((TOP, LOW), "pkg/new") is not None


def test_a_link_is_not_followed_when_it_stands_in_the_way(layers: Layers, tmp_path: Path) -> None:
    """It is found as what it is, and nothing beyond it."""
    (Layout(tmp_path).layer(TOP) / "pkg").rmdir()
    (Layout(tmp_path).layer(TOP) / "pkg").symlink_to("/etc")
    found = layers.lookup((TOP, LOW), "pkg")
    assert found is not None
    assert not found.is_directory
    assert layers.lookup((TOP, LOW), "pkg/passwd") is None
