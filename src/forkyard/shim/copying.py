"""Copying in a command's place: inside a sandbox, with a command's rights and limits.

Nothing of the sandbox's is executed for it, so it works whatever is, or is not, installed there.
"""

from __future__ import annotations

import json
import os
import signal

from forkyard.shim.tree_reader import read_tree
from forkyard.shim.tree_records import CHUNK_BYTES, CopyError, Entry, entry_record, left_out
from forkyard.shim.tree_writer import TreeWriter


def serve(direction: str, path: str) -> int:
    """Copy out of this file system to descriptor 1, or into it from 0; give the exit status."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # EFBIG instead, which can be told
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        if direction == "out":
            _serve_out(path)
        else:
            _serve_in(path)
    except (CopyError, OSError) as error:
        reason = str(error) if isinstance(error, CopyError) else error.strerror or str(error)
        os.write(2, f"{reason.lower()}\n".encode(errors="backslashreplace"))
        return 1
    return 0


def _serve_out(path: str) -> None:
    is_followed = path.endswith(("/", "/."))
    head, tail = os.path.split(path.rstrip("/") or "/")
    folder = os.open(head or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for piece in read_tree(folder, tail or ".", is_followed=is_followed or not tail):
        view = memoryview(piece)
        while view:
            view = view[os.write(1, view) :]


def _serve_in(path: str) -> None:
    """Write what descriptor 0 gives; the first line of it is the name that the source has."""
    line = b""
    while not line.endswith(b"\n"):
        one = os.read(0, 1)
        if not one:
            raise CopyError("nothing came")
        line += one
    name = json.loads(line)["name"]
    folder, name = place(path, name)
    notes: list[Entry] = []
    writer = TreeWriter(
        folder,
        name,
        note=lambda where, reason: notes.append(left_out(where, reason)),
        keeps_links_inside=False,
    )
    try:
        while chunk := os.read(0, CHUNK_BYTES):
            writer.feed(chunk)
            if writer.is_over:
                break
        if not writer.is_over:
            raise CopyError("it was cut short")
    finally:
        writer.close()
    for entry in notes:
        os.write(1, entry_record(entry))
    os.write(1, entry_record({"kind": "end", "files": writer.files, "size": writer.size_bytes}))


def place(path: str, name: str | None) -> tuple[int, str | None]:
    """Say where something of this name goes when it is copied to a path, as cp does.

    Args:
        path: Of a folder that is there, into which it goes; or else the name that it gets.
        name: What it is called; None: it is a folder's contents, which go into `path` itself.

    Returns:
        An open folder, and the name in it; None: that folder itself.

    Raises:
        CopyError: There is no such folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        if name is None or os.path.isdir(path):
            return os.open(path, flags), name
        if path.endswith("/"):
            raise CopyError(f"there is no folder {path}")
        head, tail = os.path.split(path)
        return os.open(head or ".", flags), tail
    except OSError as error:
        raise CopyError(f"{path}: {(error.strerror or str(error)).lower()}") from error
