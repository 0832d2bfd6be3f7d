"""What people name: files that can be read, and names that can be asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkyard.client.resources import MOST_FILE_BYTES, part, read_text
from forkyard.errors import ConfigError, NotFoundError


def test_a_file_is_read_whole_when_it_is_text(tmp_path: Path) -> None:
    """As it lies, through a link too."""
    (tmp_path / "task.yaml").write_text("name: café\n", encoding="utf-8")
    (tmp_path / "link.yaml").symlink_to("task.yaml")

    assert read_text(tmp_path / "link.yaml") == "name: café\n"


def test_a_file_is_refused_at_once_when_reading_it_would_never_end(tmp_path: Path) -> None:
    """A pipe without a writer, a device without an end."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")

    for name in ("pipe.yaml", "zero.yaml"):
        with pytest.raises(ConfigError, match=f"{name}: it is no ordinary file"):
            read_text(tmp_path / name)


def test_a_file_is_refused_when_it_is_no_text_of_a_sensible_size(tmp_path: Path) -> None:
    """A folder, bytes, too many of them: each one sentence, with its next step."""
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\x00")
    (tmp_path / "folder.yaml").mkdir()
    with (tmp_path / "huge.yaml").open("wb") as huge:
        huge.truncate(MOST_FILE_BYTES + 1)

    for name, reason in (
        ("bytes.yaml", "not UTF-8"),
        ("folder.yaml", "directory"),
        ("huge.yaml", f"at most {MOST_FILE_BYTES}"),
    ):
        with pytest.raises(ConfigError, match=f"(?i){name}: .*{reason}") as told:
            read_text(tmp_path / name)
        assert told.value.hint is not None


def test_a_file_is_not_found_when_it_is_not_there(tmp_path: Path) -> None:
    """Its exit code says so."""
    with pytest.raises(NotFoundError, match="no such file"):
        read_text(tmp_path / "absent.yaml")


@pytest.mark.parametrize("name", ["", "a/b", "../runs"])
def test_a_name_is_not_found_when_it_would_make_another_route(name: str) -> None:
    """Routes are ours to choose, not the name's."""
    with pytest.raises(NotFoundError, match="cannot find"):
        part(name)
