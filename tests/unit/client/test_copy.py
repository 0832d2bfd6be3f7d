"""A copy out of a workspace as a tar archive, and the report of one into it: both hostile."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest

from forkyard.client.copy import IncomingTar, report_of
from forkyard.errors import WorkspaceError
from forkyard.shim import tree_records as records
from forkyard.shim.tree_records import entry_record

END = entry_record({"kind": "end"})
WHOLE = records.HEADER.pack(records.FILE_END, 0)


def entry(path: str, kind: str = "file", **more: object) -> bytes:
    """Write one entry."""
    return entry_record({"path": path, "kind": kind, **more})


def archived(*pieces: bytes, most_bytes: int = 1000) -> tuple[bytes, list[tuple[str, str]]]:
    """Write an archive; give it with what was left out."""
    stream = io.BytesIO()
    incoming = IncomingTar(stream, "t", most_bytes)
    try:
        for piece in pieces:
            incoming.feed(piece)
    finally:
        copied = incoming.close()
    return stream.getvalue(), copied.left_out


def members(content: bytes) -> list[str]:
    """Unpack an archive with GNU tar, which must find it whole, and give its members' names."""
    done = subprocess.run(["tar", "-tf", "-"], input=content, capture_output=True, check=False)
    if done.returncode != 0:
        raise tarfile.ReadError(done.stderr.decode())
    return [name.rstrip("/") for name in done.stdout.decode().splitlines()]


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/x", "a//x", "./x", "a\0b"])
def test_a_member_is_left_out_when_its_path_is_none(path: str) -> None:
    """Whatever unpacks the archive is given no name that leads out."""
    content, left_out = archived(entry("", "folder"), entry(path, size=0), WHOLE, entry("f"), END)

    assert members(content) == ["t", "t/f"]
    assert [one for one, _ in left_out] == [path]


@pytest.mark.parametrize(
    "stream",
    [
        records.record(records.ENTRY, b"no json"),
        records.record(records.ENTRY, b"[" * 200_000),
        entry("f", size="many"),
        entry("f", size=[]),
        entry("f", size=600) + entry("g", size=600),
        entry("f", size=1001),
    ],
)
def test_an_archive_has_no_end_when_what_comes_is_senseless_or_too_much(stream: bytes) -> None:
    """What is announced counts, whether it comes or not; an error is told, not a traceback."""
    kept = io.BytesIO()
    incoming = IncomingTar(kept, "t", 1000)
    with pytest.raises(WorkspaceError):
        incoming.feed(entry("", "folder") + stream)
    incoming.close()
    with pytest.raises(tarfile.ReadError):
        members(kept.getvalue())


def test_a_hole_ends_with_its_file_when_it_claims_to_be_endless() -> None:
    """It costs nothing but the file's own length."""
    hole = records.HEADER.pack(records.HOLE, 2**63)
    content, _ = archived(entry("f", size=10), hole, hole, WHOLE, END)
    assert members(content) == ["t/f"]


@pytest.mark.parametrize("pieces", [(), (entry("f", size=600), records.record(b"D", b"half"))])
def test_an_archive_is_not_taken_for_a_whole_one_when_the_copy_was_cut_short(
    pieces: tuple[bytes, ...],
) -> None:
    """Neither between two files nor within one, which is not filled up."""
    content, _ = archived(entry("", "folder"), entry("g", size=0), WHOLE, *pieces)
    with pytest.raises(tarfile.ReadError):
        members(content)


@pytest.mark.parametrize(
    "report",
    [b"[]", b"no json", b'{"files": [], "size": 1}', b'{"kind": "note", "path": 1}'],
)
def test_an_error_is_told_when_a_report_makes_no_sense(report: bytes) -> None:
    """It comes from inside."""
    with pytest.raises(WorkspaceError, match="says nonsense"):
        report_of(records.record(records.ENTRY, report), "/x")
