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

import contextlib
import errno
import json
import os
import signal
import stat
import struct
from collections.abc import Callable, Iterator
from typing import Any

HEADER = struct.Struct("!cQ")
ENTRY, DATA, HOLE, FILE_END = b"E", b"D", b"H", b"F"
CHUNK_BYTES = 256 * 1024
LARGEST_ENTRY_BYTES = 64 * 1024
DEEPEST = 900
"""Of folders: each is a descriptor while one is inside it."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LARGEST = 2**63 - 1

Entry = dict[str, Any]


class CopyError(Exception):
    """The copy cannot go on; one clause for a person."""


def record(kind: bytes, content: bytes) -> bytes:
    """Write one record that has content."""
    return HEADER.pack(kind, len(content)) + content


def entry_record(entry: Entry) -> bytes:
    """Write an entry; undecodable bytes of names travel as lone surrogates."""
    return record(ENTRY, json.dumps(entry, separators=(",", ":")).encode())


def left_out(path: str, reason: str) -> Entry:
    """Say that something is not copied, and why."""
    return {"kind": "note", "path": path, "reason": reason}


# -- reading ---------------------------------------------------------------------------------


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
            flags = _FOLDER & ~os.O_NOFOLLOW if is_followed else _FOLDER
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
                inside = os.open(name, _FOLDER, dir_fd=folder)
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
        yield entry_record(left_out(path, "no file, folder or link"))


def _read_file(folder: int, name: str, path: str) -> Iterator[bytes]:
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            yield entry_record(left_out(path, "no file, folder or link"))
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


# -- writing ---------------------------------------------------------------------------------


class TreeWriter:
    """Writes what a stream of records says, below one folder or in its place."""

    def __init__(
        self,
        folder: int,
        name: str | None,
        *,
        note: Callable[[str, str], None],
        keeps_links_inside: bool,
        most_bytes: int = _LARGEST,
    ) -> None:
        """Write nothing yet.

        Args:
            folder: Where the top goes; stays open.
            name: Of the top in it; None: the top is that folder itself.
            note: Told of everything that is left out: path and reason.
            keeps_links_inside: Whether links that lead out of the copied tree are left out.
            most_bytes: Of content, in all.
        """
        self._folder, self._name = folder, name
        self._note = note
        self._keeps_links_inside = keeps_links_inside
        self._left_bytes = most_bytes
        self._rest = bytearray()
        self._open: list[tuple[str, int]] = []
        self._file: _File | None = None
        self.files = 0
        self.size_bytes = 0
        self.is_over = False
        """Whether the end was read: all before it is written."""

    def feed(self, chunk: bytes) -> None:
        """Take records in.

        Raises:
            CopyError: The copy cannot go on: a limit, a full disk, a stream that makes no sense.
        """
        self._rest += chunk
        position = 0
        while len(self._rest) - position >= HEADER.size:
            kind, size = HEADER.unpack_from(self._rest, position)
            follows = 0 if kind == HOLE else size
            if follows > max(LARGEST_ENTRY_BYTES, 4 * CHUNK_BYTES):
                raise CopyError("what comes is no copy of a tree")
            start = position + HEADER.size
            if len(self._rest) < start + follows:
                break
            content = bytes(memoryview(self._rest)[start : start + follows])
            position = start + follows
            self._take(kind, size, content)
        del self._rest[:position]

    def close(self) -> None:
        """Let go of everything; a file that is not whole is removed."""
        if self._file is not None:
            self._file.drop()
            self._file = None
        while self._open:
            os.close(self._open.pop()[1])

    def _take(self, kind: bytes, size: int, content: bytes) -> None:
        if self.is_over:
            raise CopyError("what comes goes on after its end")
        if kind == ENTRY:
            self._drop_file()
            self._enter(_parse(content))
        elif kind in (DATA, HOLE):
            self._left_bytes -= size if kind == DATA else 0
            if self._left_bytes < 0:
                raise CopyError("it is larger than the limit of this copy")
            if self._file is not None:
                self._put(size, content)
        elif kind == FILE_END:
            self._finish_file()
        else:
            raise CopyError("what comes is no copy of a tree")

    def _put(self, size: int, content: bytes) -> None:
        assert self._file is not None  # noqa: S101 - the caller looked
        try:
            self._file.put(size, content)
        except OSError as error:
            self._refused(self._file.path, error)
            self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.drop()
            self._file = None

    def _finish_file(self) -> None:
        if self._file is None:
            return
        try:
            self._file.finish()
        except OSError as error:
            self._refused(self._file.path, error)
            self._drop_file()
        else:
            self.files += 1
            self.size_bytes += self._file.position
            self._file = None

    def _refused(self, path: str, error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        if error.errno in _FULL:
            raise CopyError(f"{path or 'it'}: {reason}") from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            reason = "a link or file is in its way"
        elif error.errno == errno.EFBIG:
            reason = "larger than a file may be there"
        self._note(path, reason)

    def _enter(self, entry: Entry) -> None:
        path, kind = entry.get("path", ""), entry.get("kind")
        if not isinstance(path, str):
            raise CopyError("what comes is no copy of a tree")
        if kind == "end":
            self.is_over = True
            return
        if kind == "note":
            self._note(path, str(entry.get("reason", ""))[:200])
            return
        parts = path.split("/") if path else []
        if not all(_is_name(part) for part in parts):
            self._note(path, "no path below the copied folder")
            return
        try:
            self._make(parts, path, str(kind), entry)
        except OSError as error:
            self._refused(path, error)
        except (ValueError, OverflowError):
            self._note(path, "its name or time makes no sense here")

    def _make(self, parts: list[str], path: str, kind: str, entry: Entry) -> None:
        if not parts and self._name is None:
            if kind != "folder":
                raise CopyError("it is no folder, and a folder's place is where it should go")
            return
        folder = self._folder_of(parts)
        name = parts[-1] if parts else self._name or ""
        mode = int(entry.get("mode", 0o644)) & 0o777
        if kind == "folder":
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, mode | 0o700, dir_fd=folder)
            os.close(os.open(name, _FOLDER, dir_fd=folder))
        elif kind == "file":
            self._file = _File(folder, name, path, mode, int(entry.get("mtime", 0)))
        elif kind == "link":
            self._link(folder, name, parts, path, str(entry.get("target", "")))
        else:
            self._note(path, "no file, folder or link")

    def _link(self, folder: int, name: str, parts: list[str], path: str, target: str) -> None:
        if self._keeps_links_inside and not stays_inside(
            target, max(0, len(parts) - 1), is_top=not parts
        ):
            self._note(path, f"a link out of what is copied, to {target[:200]!r}")
            return
        temporary = _temporary_name()
        os.symlink(target, temporary, dir_fd=folder)
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise

    def _folder_of(self, parts: list[str]) -> int:
        """Open the folder that a path lies in; those on the way stay open for the next."""
        if not parts:
            return self._folder
        wanted = ([] if self._name is None else [self._name]) + parts[:-1]
        common = 0
        while (
            common < len(self._open)
            and common < len(wanted)
            and self._open[common][0] == wanted[common]
        ):
            common += 1
        while len(self._open) > common:
            os.close(self._open.pop()[1])
        for part in wanted[common:]:
            if len(self._open) >= DEEPEST + 1:
                raise OSError(errno.ENAMETOOLONG, f"nested over {DEEPEST} folders deep")
            above = self._open[-1][1] if self._open else self._folder
            self._open.append((part, os.open(part, _FOLDER, dir_fd=above)))
        return self._open[-1][1] if self._open else self._folder


class _File:
    """One file being written beside its place, into which it is moved whole."""

    def __init__(self, folder: int, name: str, path: str, mode: int, mtime: int) -> None:
        self._folder = os.dup(folder)
        self._name, self.path = name, path
        self._mode, self._mtime = mode, mtime
        self._temporary = _temporary_name()
        self.position = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._temporary, flags, 0o600, dir_fd=self._folder)
        except OSError:
            os.close(self._folder)
            raise

    def put(self, size: int, content: bytes) -> None:
        if not content:
            if self.position + size > _LARGEST:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            self.position += size
            return
        view = memoryview(content)
        while view:
            written = os.pwrite(self._descriptor, view, self.position)
            self.position += written
            view = view[written:]

    def finish(self) -> None:
        os.ftruncate(self._descriptor, self.position)
        os.fchmod(self._descriptor, self._mode)
        os.utime(self._descriptor, ns=(self._mtime, self._mtime))
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._close()

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._temporary, dir_fd=self._folder)
        self._close()

    def _close(self) -> None:
        os.close(self._descriptor)
        os.close(self._folder)


def _temporary_name() -> str:
    return f".forkyard-copy-{os.getpid()}-{os.urandom(6).hex()}"


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part


def stays_inside(target: str, depth: int, *, is_top: bool = False) -> bool:
    """Say whether a link in a folder so deep below the top stays below it, whatever lies there.

    Only `..` before everything else: behind a name, which may be a link itself, one cannot tell
    where it leads.
    """
    if is_top or not target or target.startswith("/"):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    return climbs <= depth and ".." not in parts[climbs:]


def _parse(content: bytes) -> Entry:
    try:
        entry = json.loads(content)
    except ValueError as error:
        raise CopyError("what comes is no copy of a tree") from error
    if not isinstance(entry, dict):
        raise CopyError("what comes is no copy of a tree")
    return entry


# -- inside ----------------------------------------------------------------------------------


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
