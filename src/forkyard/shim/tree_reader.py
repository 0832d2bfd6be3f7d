"""Reading a tree into records (tree_records.py), by descriptor and past no link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from forkyard.shim.tree_records import (
    CHUNK_BYTES,
    DATA,
    DEEPEST,
    FILE_END,
    FOLDER,
    HEADER,
    HOLE,
    NO_KIND,
    CopyError,
    Entry,
    entry_record,
    left_out,
    record,
)

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_tree(folder: int, name: str, *, is_followed: bool = False) -> Iterator[bytes]:
    """Give the records of one thing in an open folder, and of all below it.

    Args:
        folder: Where it is.
        name: Of it, without a slash.
        is_followed: Whether it may be a link to a folder: then that folder is meant.

    Raises:
        CopyError: It is not there, or cannot be read.
    """
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=is_followed)
    except OSError as error:
        raise CopyError(error.strerror or str(error)) from error
    if stat.S_ISDIR(facts.st_mode):
        try:
            flags = FOLDER & ~os.O_NOFOLLOW if is_followed else FOLDER
            top = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            raise CopyError(error.strerror or str(error)) from error
        yield entry_record(_entry("", "folder", facts))
        yield from _read_folder(top)
    else:
        yield from _read_other(folder, name, "", facts)
    yield entry_record({"kind": "end"})


def _entry(path: str, kind: str, facts: os.stat_result, **more: object) -> Entry:
    mode = stat.S_IMODE(facts.st_mode) & 0o777
    return {"path": path, "kind": kind, "mode": mode, "mtime": facts.st_mtime_ns, **more}


def _read_folder(top: int) -> Iterator[bytes]:
    # A stack of our own: a hostile tree is deeper than Python's.
    levels: list[tuple[int, str, list[str]]] = [(top, "", sorted(os.listdir(top), reverse=True))]
    try:
        while levels:
            folder, path, names = levels[-1]
            if not names:
                os.close(levels.pop()[0])
                continue
            name = names.pop()
            below = f"{path}{name}"
            try:
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISDIR(facts.st_mode):
                    yield from _read_other(folder, name, below, facts)
                    continue
                if len(levels) >= DEEPEST:
                    yield entry_record(left_out(below, f"nested over {DEEPEST} folders deep"))
                    continue
                inside = os.open(name, FOLDER, dir_fd=folder)
                levels.append((inside, f"{below}/", []))
                levels[-1][2].extend(sorted(os.listdir(inside), reverse=True))
                yield entry_record(_entry(below, "folder", facts))
            except OSError as error:
                yield entry_record(left_out(below, (error.strerror or str(error)).lower()))
    finally:
        for folder, _, _ in levels:
            os.close(folder)


def _read_other(folder: int, name: str, path: str, facts: os.stat_result) -> Iterator[bytes]:
    if stat.S_ISLNK(facts.st_mode):
        target = os.readlink(name, dir_fd=folder)
        yield entry_record(_entry(path, "link", facts, target=target))
    elif stat.S_ISREG(facts.st_mode):
        yield from _read_file(folder, name, path)
    else:
        yield entry_record(left_out(path, NO_KIND))


def _read_file(folder: int, name: str, path: str) -> Iterator[bytes]:
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            yield entry_record(left_out(path, NO_KIND))
            return
        yield entry_record(_entry(path, "file", facts, size=facts.st_size))
        # What is appended meanwhile is not waited for.
        yield from _read_content(descriptor, facts.st_size)
        yield HEADER.pack(FILE_END, 0)
    finally:
        os.close(descriptor)


def _read_content(descriptor: int, size: int) -> Iterator[bytes]:
    position = 0
    while position < size:
        start, end = _next_data(descriptor, position, size)
        if start > position:
            yield HEADER.pack(HOLE, start - position)
        position = start
        while position < end:
            chunk = os.pread(descriptor, min(CHUNK_BYTES, end - position), position)
            if not chunk:
                return  # it became shorter meanwhile
            yield record(DATA, chunk)
            position += len(chunk)


def _next_data(descriptor: int, position: int, size: int) -> tuple[int, int]:
    """Give where the next data begins and ends; both are the size where there is none."""
    try:
        start = min(os.lseek(descriptor, position, os.SEEK_DATA), size)
        end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
    except OSError as error:
        # ENXIO: only a hole is left. Anything else: a file system that knows no holes.
        return (size, size) if error.errno == errno.ENXIO else (position, size)
    return start, max(start, end)
