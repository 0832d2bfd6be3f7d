"""Output that is kept: the same file where nothing is masked, a masked one otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.base.masked_files import keep_masked
from forkyard.base.masking import Masker

SECRET = "sk-test-0123456789"  # noqa: S105 - a test's own


def test_file_is_renamed_when_it_holds_no_secret(tmp_path: Path) -> None:
    """The inode stays, so a follower keeps reading, with and without secrets to look for."""
    for masker in (Masker(), Masker({"KEY": SECRET})):
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(b"sk-test-01234567 nothing\n")
        inode = source.stat().st_ino

        keep_masked(source, target, masker)

        assert target.stat().st_ino == inode
        assert not source.exists()


def test_only_the_masked_file_is_left_when_it_holds_a_secret(tmp_path: Path) -> None:
    """Nothing with the value stays on the disk, and a second time is told as for a rename."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 300_000 + SECRET.encode() + b"y" * 300_000)

    keep_masked(source, target, Masker({"KEY": SECRET}))

    assert target.read_bytes() == b"x" * 300_000 + b"[secret KEY]" + b"y" * 300_000
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    with pytest.raises(FileNotFoundError):
        keep_masked(source, target, Masker({"KEY": SECRET}))
