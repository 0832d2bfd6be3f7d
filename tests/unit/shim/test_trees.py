"""Records of trees: what a hostile stream can make the writer do, which is nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkyard.shim import tree_records as records
from forkyard.shim.tree_reader import read_tree
from forkyard.shim.tree_records import CopyError, entry_record
from forkyard.shim.tree_writer import TreeWriter, stays_inside


@pytest.mark.parametrize(
    ("target", "depth", "stays"),
    [
        ("a", 0, True),
        ("../a", 1, True),
        ("../../a", 1, False),
        ("a/../..", 5, False),
        ("/a", 5, False),
        ("./../b/./c", 1, True),
        ("", 3, False),
    ],
)
def test_a_link_stays_inside_only_where_nothing_can_lead_it_out(
    target: str, depth: int, stays: bool
) -> None:
    """`..` behind a name may be behind a link: that cannot be told."""
    assert stays_inside(target, depth) is stays


def write(folder: Path, *pieces: bytes, most_bytes: int = 1000) -> dict[str, str]:
    """Write records below a folder, as the top `t`; give what was left out."""
    left: dict[str, str] = {}
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    writer = TreeWriter(
        descriptor, "t", note=left.__setitem__, keeps_links_inside=True, most_bytes=most_bytes
    )
    try:
        for piece in pieces:
            for start in range(0, len(piece), 3):  # however it is cut
                writer.feed(piece[start : start + 3])
    finally:
        writer.close()
        os.close(descriptor)
    return left


def entry(path: str, kind: str, **more: object) -> bytes:
    """Write one entry."""
    return entry_record({"path": path, "kind": kind, "mode": 0o4755, "mtime": 1, **more})


FILE = records.record(records.DATA, b"abc") + records.HEADER.pack(records.FILE_END, 0)


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/x", "a//x", "./x", "a\0b"])
def test_a_path_that_is_none_is_left_out(tmp_path: Path, path: str) -> None:
    """And its content goes nowhere."""
    left = write(tmp_path, entry("", "folder"), entry(path, "file"), FILE)

    assert list(left) == [path]
    assert [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*")] == ["t"]


def test_nothing_passes_through_a_link_of_the_same_stream(tmp_path: Path) -> None:
    """A link first, then a file below it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    into = tmp_path / "into"
    into.mkdir()

    left = write(
        into, entry("", "folder"), entry("l", "link", target="sub"),
        entry("sub", "folder"), entry("l/f", "file"), FILE,
    )  # fmt: skip

    assert list(left) == ["l/f"]
    assert not list((into / "t/sub").iterdir())


def test_special_bits_of_modes_are_dropped_and_half_files_are_removed(tmp_path: Path) -> None:
    """No set-user-id file comes out of a workspace."""
    write(tmp_path, entry("", "folder"), entry("f", "file"), FILE, entry("half", "file"),
          records.record(records.DATA, b"abc"))  # fmt: skip

    assert [one.name for one in (tmp_path / "t").iterdir()] == ["f"]
    assert (tmp_path / "t/f").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "stream",
    [
        b"Z" + bytes(8),
        records.HEADER.pack(records.DATA, 1 << 40),
        records.record(records.ENTRY, b"no json"),
        records.record(records.ENTRY, b"[]"),
        records.record(records.ENTRY, b"[" * 200_000),
        records.record(records.ENTRY, b'{"path": 7, "kind": "file"}'),
        entry("", "end") + entry("", "folder"),
        entry("f", "file") + records.record(records.DATA, bytes(1001)),
    ],
)
def test_a_stream_that_makes_no_sense_or_too_much_ends_the_copy(
    tmp_path: Path, stream: bytes
) -> None:
    """With one clause, and nothing half written left."""
    with pytest.raises(CopyError):
        write(tmp_path, entry("", "folder"), stream)


def test_a_file_is_left_out_when_its_time_makes_no_sense(tmp_path: Path) -> None:
    """The next one is written all the same."""
    odd = entry_record({"path": "odd", "kind": "file", "mtime": 10**40})

    left = write(tmp_path, entry("", "folder"), odd, FILE, entry("f", "file"), FILE)

    assert list(left) == ["odd"]
    assert [one.name for one in (tmp_path / "t").iterdir()] == ["f"]


@pytest.mark.parametrize("facts", [{"mtime": []}, {"mode": {}}, {"mode": "x"}, {"path": 5}])
def test_a_copy_ends_when_an_entry_has_what_none_has(
    tmp_path: Path, facts: dict[str, object]
) -> None:
    """Nothing of ours wrote that."""
    odd = entry_record({"path": "odd", "kind": "file", **facts})

    with pytest.raises(CopyError, match="no copy of a tree"):
        write(tmp_path, entry("", "folder"), odd, FILE)


def test_a_tree_that_was_read_is_written_equal(tmp_path: Path) -> None:
    """Holes too."""
    source = tmp_path / "s"
    (source / "d").mkdir(parents=True)
    (source / "d" / "f").write_bytes(b"x" * 700)
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    pieces = list(read_tree(descriptor, "s"))
    os.close(descriptor)

    assert write(tmp_path, *pieces) == {}
    assert (tmp_path / "t/d/f").read_bytes() == b"x" * 700
    assert (tmp_path / "t/sparse").stat().st_size == 1 << 30
    assert (tmp_path / "t/sparse").stat().st_blocks == 0
