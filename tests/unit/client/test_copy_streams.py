"""What a workspace's end of a copy says is hostile: archives, reports, names without end."""

from __future__ import annotations

import io
import tarfile

import pytest

from forkyard.client.copy import MOST_NAMED, Copied, IncomingTar, report_of
from forkyard.errors import WorkspaceError
from forkyard.shim import tree_records as records
from forkyard.shim.tree_records import entry_record, record

FILE = record(records.DATA, b"abc") + records.HEADER.pack(records.FILE_END, 0)
TOP = entry_record({"path": "", "kind": "folder", "mode": 0o755, "mtime": 1})


def archived(*pieces: bytes, most_bytes: int = 1000) -> tuple[dict[str, bytes | None], Copied]:
    """Write what comes into an archive; give its members, and what was copied."""
    stream = io.BytesIO()
    incoming = IncomingTar(stream, "top", most_bytes)
    for piece in (*pieces, entry_record({"kind": "end"})):
        incoming.feed(piece)
    copied = incoming.close()
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        found = {
            member.name: None if (file := archive.extractfile(member)) is None else file.read()
            for member in archive
            if not member.issym()
        }
    return found, copied


def entry(path: object, kind: str, **more: object) -> bytes:
    """Write one entry."""
    return entry_record({"path": path, "kind": kind, "mode": 0o4644, "mtime": 1, **more})


@pytest.mark.parametrize("target", ["/etc", "../../x", "a/../../.."])
def test_an_archive_has_no_link_that_leads_out(target: str) -> None:
    """Such as one through which the next file would be written."""
    found, copied = archived(
        TOP,
        entry("l", "link", target=target),
        entry("l/passwd", "file", size=3) + FILE,
    )

    assert found == {"top": None, "top/l/passwd": b"abc"}
    assert copied.left_out == [("top/l", records.OUTWARD_LINK)]


@pytest.mark.parametrize(
    "piece",
    [
        record(records.ENTRY, b"[" * 60_000),
        record(records.ENTRY, b"[]"),
        record(records.ENTRY, b"\xff"),
        entry(5, "file"),
        entry("a", "file", size=[1]),
        entry("a", "file", size="5"),
        entry("a", "file", mode=None),
        entry("a", "link", target={}),
        entry("a", "note", reason=7),
        record(b"?", b"x"),
        records.HEADER.pack(records.DATA, 1 << 60),
    ],
)
def test_a_stream_that_makes_no_sense_is_one_sentence(piece: bytes) -> None:
    """And no exception of another kind."""
    with pytest.raises(WorkspaceError, match=r"^cannot copy top: what comes is no copy of a tree$"):
        IncomingTar(io.BytesIO(), "top", 1000).feed(TOP + piece)


def test_a_report_that_makes_no_sense_is_one_sentence() -> None:
    """It comes from inside, too."""
    for piece in (record(records.ENTRY, b"[" * 60_000), entry_record({"files": "many"})):
        with pytest.raises(WorkspaceError, match=r"^cannot copy to w:/x: the workspace's end"):
            report_of(piece, "w:/x")


def test_a_file_is_as_long_as_it_said_when_more_or_less_comes() -> None:
    """The archive stays one."""
    found, copied = archived(
        TOP,
        entry("long", "file", size=2) + FILE,
        entry("short", "file", size=5) + FILE,
        entry("hole", "file", size=4) + records.HEADER.pack(records.HOLE, 1 << 62),
    )

    assert found == {
        "top": None,
        "top/long": b"ab",
        "top/short": b"abc\0\0",
        "top/hole": bytes(4),
    }
    assert copied.has_failed


def test_names_left_out_are_kept_up_to_a_limit_and_counted_beyond() -> None:
    """A workspace could send them for ever."""
    copied = Copied()
    for number in range(MOST_NAMED + 5):
        copied.note(f"{number}", records.NO_KIND)
    assert (len(copied.left_out), copied.left_out_more, copied.has_failed) == (MOST_NAMED, 5, False)

    copied.note("more", "permission denied")

    assert copied.has_failed
