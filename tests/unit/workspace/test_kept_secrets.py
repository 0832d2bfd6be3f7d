"""Looking for secrets in what tasks wrote: wherever they may lie, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkyard.base.removal import empty_trash, move_to_trash
from forkyard.errors import WorkspaceError
from forkyard.workspace.kept_secrets import find_secrets

VALUE = "vK3-99-x0-secret-of-nothing"
SECRETS = {"token": VALUE}


def test_a_secret_is_found_in_contents_names_links_and_attributes(tmp_path: Path) -> None:
    """Each with where it is; in a hidden folder, too."""
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "settings").write_text(f"password={VALUE}\n")
    (tmp_path / "link").symlink_to(VALUE)
    (tmp_path / "marked").write_text("")
    os.setxattr(tmp_path / "marked", "user.note", VALUE.encode())
    (tmp_path / VALUE).mkdir()

    assert sorted(find_secrets(tmp_path, SECRETS)) == [
        ("token", "/.config/settings"),
        ("token", "/[secret token]"),
        ("token", "/link"),
        ("token", "/marked"),
    ]


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    """Other contents, a pipe, a link to elsewhere."""
    (tmp_path / "f").write_text("harmless")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")

    assert find_secrets(tmp_path, SECRETS) == []


def test_it_is_refused_when_folders_are_too_deep_to_be_looked_through(tmp_path: Path) -> None:
    """What was not looked at is not taken for clean."""
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)

    with pytest.raises(WorkspaceError, match=r"cannot look for secrets .* nested too deep"):
        find_secrets(top, SECRETS)

    trash = tmp_path / "trash"
    trash.mkdir()
    move_to_trash(top, trash)
    empty_trash(trash)
