"""Writing a tree from records (tree_records.py), by descriptor and through no link."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from forkyard.shim.tree_records import (
    CHUNK_BYTES,
    DATA,
    DEEPEST,
    ENTRY,
    FILE_END,
    FOLDER,
    HEADER,
    HOLE,
    LARGEST_ENTRY_BYTES,
    MOST_ENTRIES,
    NO_COPY,
    NO_KIND,
    NO_NAME,
    OUTWARD_LINK,
    CopyError,
    Entry,
    is_name,
    parse_entry,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LARGEST = 2**63 - 1


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
        self._left_entries = MOST_ENTRIES
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
                raise CopyError(NO_COPY)
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
            self._enter(parse_entry(content))
        elif kind in (DATA, HOLE):
            self._left_bytes -= size if kind == DATA else 0
            if self._left_bytes < 0:
                raise CopyError("it is larger than the limit of this copy")
            if self._file is not None:
                self._put(size, content)
        elif kind == FILE_END:
            self._finish_file()
        else:
            raise CopyError(NO_COPY)

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
        except OverflowError:
            self._note(self._file.path, "its time makes no sense here")
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
        self._left_entries -= 1
        if self._left_entries < 0:
            raise CopyError(f"it has more than {MOST_ENTRIES:,} entries")
        if kind == "end":
            self.is_over = True
            return
        if kind == "note":
            self._note(path, str(entry.get("reason", ""))[:200])
            return
        parts = path.split("/") if path else []
        if not all(is_name(part) for part in parts):
            self._note(path, NO_NAME)
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
            os.close(os.open(name, FOLDER, dir_fd=folder))
        elif kind == "file":
            self._file = _File(folder, name, path, mode, int(entry.get("mtime", 0)))
        elif kind == "link":
            self._link(folder, name, parts, path, str(entry.get("target", "")))
        else:
            self._note(path, NO_KIND)

    def _link(self, folder: int, name: str, parts: list[str], path: str, target: str) -> None:
        if self._keeps_links_inside and not stays_inside(
            target, max(0, len(parts) - 1), is_top=not parts
        ):
            self._note(path, f"{OUTWARD_LINK}, to {target[:200]!r}")
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
            self._open.append((part, os.open(part, FOLDER, dir_fd=above)))
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
