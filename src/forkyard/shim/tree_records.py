"""Trees as a stream of records: read from one place, written in another, either of them hostile.

The same code reads and writes inside a sandbox, in a command's place and with its rights, and on
the host, as the user who copies. Every name is reached by descriptor from the folder above it, and
no link is followed or written through, neither one that was there nor one that came before.

A record is one byte that says which, a number, and what that counts:

    E  bytes of a JSON object: an entry (path below the top, kind, mode, mtime, size, target), a
       note on something that is left out (path, reason), or the end (`kind` end)
    D  bytes of the file that was entered last
    H  bytes of a hole in it; none follow
    F  the file is whole
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

HEADER = struct.Struct("!cQ")
ENTRY, DATA, HOLE, FILE_END = b"E", b"D", b"H", b"F"
CHUNK_BYTES = 256 * 1024
DEEPEST = 900
"""Of folders: each is a descriptor while one is inside it."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

LARGEST_ENTRY_BYTES = 64 * 1024
MOST_ENTRIES = 10_000_000
"""Of one copy: names alone can fill a disk too."""

Entry = dict[str, Any]
_KINDS = {
    **dict.fromkeys(("path", "kind", "reason", "target"), str),
    **dict.fromkeys(("mode", "mtime", "size", "files"), int),
}


class CopyError(Exception):
    """The copy cannot go on; one clause for a person."""


def record(kind: bytes, content: bytes) -> bytes:
    """Write one record that has content."""
    return HEADER.pack(kind, len(content)) + content


def entry_record(entry: Entry) -> bytes:
    """Write an entry; undecodable bytes of names travel as lone surrogates."""
    return record(ENTRY, json.dumps(entry, separators=(",", ":")).encode())


def parse_entry(content: bytes) -> Entry:
    """Read an entry; whoever wrote it may be hostile.

    Raises:
        CopyError: It is none, or one of its values is of another kind than that has.
    """
    try:
        entry = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CopyError(NO_COPY) from error
    if not isinstance(entry, dict) or any(
        type(value) is not _KINDS.get(name, type(value)) for name, value in entry.items()
    ):
        raise CopyError(NO_COPY)
    return entry


def is_name(part: str) -> bool:
    """Say whether it names something in the folder that it is looked up in."""
    return part not in ("", ".", "..") and "\0" not in part


NO_COPY = "what comes is no copy of a tree"
NO_KIND = "no file, folder or link"
OUTWARD_LINK = "a link out of what is copied"
NO_NAME = "no path below the copied folder"


def is_by_rule(reason: str) -> bool:
    """Say whether something is left out as a rule, and not because it failed."""
    return reason.startswith((NO_KIND, OUTWARD_LINK, NO_NAME))


def left_out(path: str, reason: str) -> Entry:
    """Say that something is not copied, and why."""
    return {"kind": "note", "path": path, "reason": reason}
