"""One image layer's tar stream, laid out as a layer of ours; every name in it is a stranger's.

Each entry is reached by descriptor from the layer's root, one folder after the other, and no link
is ever followed: a layer that wants to be is refused whole. Deletions become what overlayfs takes
for deletions. No device is made, no capability of a file is kept, no id outside the sandbox's own
range appears. Standard library only: this runs in a helper that has shut itself in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

NOBODY = 65534
LONGEST_NAME = 4095
LARGEST_XATTR_BYTES = 65536
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_RESERVED = ".wh..wh."
_XATTR = "SCHILY.xattr."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1024**2


class Refused(Exception):  # noqa: N818 - reads as the sentence it carries
    """The layer is not taken; one clause for a person."""


@dataclass(slots=True, kw_only=True)
class Layer:
    """One layer being laid out."""

    root: int
    """Descriptor of its empty folder."""
    storage_id: Callable[[int], int]
    """Says who owns on disk what belongs to an id inside; ValueError where no sandbox has it."""
    opaque: str
    """The attribute that makes overlayfs hide what lies below a folder."""
    entries_most: int
    bytes_most: int
    entries: int = 0
    size_bytes: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    """What was left out or changed, and how often."""
    _times: dict[str, int] = field(default_factory=dict)
    _deleted: set[str] = field(default_factory=set)
    _parent: tuple[str, int] | None = None

    def take(self, stream: BinaryIO) -> None:
        """Lay out a whole tar stream.

        Raises:
            Refused: Something in it cannot be taken.
            OSError: The disk refused.
        """
        with tarfile.open(
            fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for member in archive:
                vars(archive)["members"].clear()  # it would keep every one
                self.entries += 1
                if self.entries > self.entries_most:
                    raise Refused(f"it has more than {self.entries_most} entries")
                self._entry(archive, member)
        self._forget_parent()
        for path, time in self._times.items():
            with contextlib.suppress(OSError, Refused):
                self._with_folder(path, time)

    def _entry(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = split(member.name)
        if not parts:
            if member.isdir():
                self._finish(self.root, member)
            return
        folder = self._open_parent(parts)
        name = parts[-1]
        if name.startswith(_WHITEOUT):
            self._whiteout(folder, parts, name)
        elif member.isdir():
            self._folder(folder, parts, member)
        elif member.isreg():
            self._file(archive, folder, name, member)
        elif member.issym():
            self._link(folder, name, member)
        elif member.islnk():
            self._hard_link(folder, name, member)
        elif member.isfifo():
            self._clear(folder, name)
            os.mkfifo(name, 0o600, dir_fd=folder)
            os.chown(name, *self._owner(member), dir_fd=folder, follow_symlinks=False)
            os.chmod(name, member.mode & 0o777, dir_fd=folder)
        elif member.isdev():
            self.notes["device left out"] += 1
        else:
            raise Refused(f"{shown(member.name)} is of an unknown kind {member.type!r}")

    # -- entries -----------------------------------------------------------------------------

    def _whiteout(self, folder: int, parts: list[str], name: str) -> None:
        if name == _OPAQUE:
            os.setxattr(folder, self.opaque, b"y")
            return
        if name.startswith(_RESERVED):
            return  # bookkeeping of another storage driver
        hidden = name.removeprefix(_WHITEOUT)
        if hidden in ("", ".", ".."):
            raise Refused(f"{shown('/'.join(parts))} deletes nothing that could exist")
        self._deleted.add("/".join((*parts[:-1], hidden)))
        found = _look(folder, hidden)
        if found is None:
            os.mknod(hidden, stat.S_IFCHR, 0, dir_fd=folder)
        elif stat.S_ISDIR(found.st_mode):
            # It deletes what lies below only: what this layer has there is new.
            self._hide_below(folder, hidden)

    def _folder(self, folder: int, parts: list[str], member: tarfile.TarInfo) -> None:
        descriptor = self._enter(folder, parts)
        try:
            self._finish(descriptor, member)
        finally:
            os.close(descriptor)
        self._times["/".join(parts)] = _nanoseconds(member)

    def _file(
        self, archive: tarfile.TarFile, folder: int, name: str, member: tarfile.TarInfo
    ) -> None:
        self.size_bytes += member.size
        if member.size < 0 or self.size_bytes > self.bytes_most:
            raise Refused(f"its files take more than {self.bytes_most} bytes")
        content = archive.extractfile(member)
        self._clear(folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            left = member.size
            while content is not None and left:
                chunk = content.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    raise Refused(f"{shown(member.name)} ends early")
                left -= len(chunk)
                _write(descriptor, chunk)
            self._finish(descriptor, member)
        finally:
            os.close(descriptor)

    def _link(self, folder: int, name: str, member: tarfile.TarInfo) -> None:
        if not 0 < len(os.fsencode(member.linkname)) <= LONGEST_NAME:
            raise Refused(f"link {shown(member.name)} has no usable target")
        self._clear(folder, name)
        os.symlink(member.linkname, name, dir_fd=folder)
        os.chown(name, *self._owner(member), dir_fd=folder, follow_symlinks=False)
        with contextlib.suppress(OSError):
            time = _nanoseconds(member)
            os.utime(name, ns=(time, time), dir_fd=folder, follow_symlinks=False)

    def _hard_link(self, folder: int, name: str, member: tarfile.TarInfo) -> None:
        target = split(member.linkname)
        told = f"hard link {shown(member.name)} to {shown(member.linkname)}"
        if not target:
            raise Refused(f"{told}, which is no file")
        place = self._walk(target[:-1])
        try:
            found = None if place is None else _look(place, target[-1])
            if place is None or found is None or not _is_linkable(found.st_mode):
                raise Refused(f"{told}, which this layer does not hold")
            same = _look(folder, name)
            if same is not None and (same.st_dev, same.st_ino) == (found.st_dev, found.st_ino):
                return
            self._clear(folder, name)
            os.link(target[-1], name, src_dir_fd=place, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            if place is not None:
                os.close(place)

    # -- what they have in common --------------------------------------------------------------

    def _finish(self, descriptor: int, member: tarfile.TarInfo) -> None:
        os.fchown(descriptor, *self._owner(member))  # before the mode, whose bits it would clear
        os.fchmod(descriptor, member.mode & 0o7777)
        for key, value in member.pax_headers.items():
            if key.startswith(_XATTR):
                self._attribute(descriptor, key.removeprefix(_XATTR), value)
        time = _nanoseconds(member)
        with contextlib.suppress(OSError, OverflowError):
            os.utime(descriptor, ns=(time, time))

    def _attribute(self, descriptor: int, name: str, value: str) -> None:
        raw = value.encode("utf-8", "surrogateescape")
        is_harmless = name.startswith("user.") and not name.startswith("user.overlay.")
        if not is_harmless or len(raw) > LARGEST_XATTR_BYTES:
            self.notes[f"attribute {shown(name.partition('.')[0])}.* left out"] += 1
            return
        with contextlib.suppress(OSError, ValueError):
            os.setxattr(descriptor, name, raw)

    def _owner(self, member: tarfile.TarInfo) -> tuple[int, int]:
        ids = []
        for number in (member.uid, member.gid):
            try:
                ids.append(self.storage_id(number))
            except ValueError:
                self.notes[f"owner that no sandbox has made {NOBODY}"] += 1
                ids.append(self.storage_id(NOBODY))
        return ids[0], ids[1]

    def _clear(self, folder: int, name: str) -> None:
        """Make place for what is no folder: the last entry of a name counts."""
        found = _look(folder, name)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            raise Refused(f"{shown(name)} is a folder and something else as well")
        os.unlink(name, dir_fd=folder)

    def _enter(self, folder: int, parts: list[str]) -> int:
        """Open a folder, made where it is missing or was only deleted so far."""
        name, path = parts[-1], "/".join(parts)
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            found = _look(folder, name)
            if found is None or stat.S_ISLNK(found.st_mode):
                raise Refused(f"{shown(path)} is a link, and a folder as well") from error
            os.unlink(name, dir_fd=folder)
        os.mkdir(name, 0o755, dir_fd=folder)
        descriptor = os.open(name, _FOLDER, dir_fd=folder)
        os.fchown(descriptor, self.storage_id(0), self.storage_id(0))
        os.fchmod(descriptor, 0o755)
        if path in self._deleted:
            os.setxattr(descriptor, self.opaque, b"y")
        return descriptor

    def _hide_below(self, folder: int, name: str) -> None:
        descriptor = os.open(name, _FOLDER, dir_fd=folder)
        try:
            os.setxattr(descriptor, self.opaque, b"y")
        finally:
            os.close(descriptor)

    def _open_parent(self, parts: list[str]) -> int:
        path = "/".join(parts[:-1])
        if self._parent is not None and self._parent[0] == path:
            return self._parent[1]
        self._forget_parent()
        current = os.dup(self.root)
        for depth in range(1, len(parts)):
            try:
                below = self._enter(current, parts[:depth])
            finally:
                os.close(current)
            current = below
        self._parent = (path, current)
        return current

    def _forget_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _walk(self, parts: list[str]) -> int | None:
        """Open a folder that must exist; None where it does not, or a link stands in the way."""
        current = os.dup(self.root)
        for part in parts:
            try:
                below = os.open(part, _FOLDER, dir_fd=current)
            except OSError:
                return None
            finally:
                os.close(current)
            current = below
        return current

    def _with_folder(self, path: str, time: int) -> None:
        descriptor = self._walk(path.split("/"))
        if descriptor is not None:
            try:
                os.utime(descriptor, ns=(time, time))
            finally:
                os.close(descriptor)


def split(name: str) -> list[str]:
    """Take a name apart; the root itself has no part.

    Raises:
        Refused: It leads up, or no file system could hold it.
    """
    if "\0" in name or len(os.fsencode(name)) > LONGEST_NAME:
        raise Refused(f"{shown(name)} is no usable name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Refused(f"{shown(name)} leads out of the layer")
    return parts


def shown(name: str) -> str:
    """Give a stranger's name as it may be printed."""
    return ascii(name[:120])


def _look(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_linkable(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISFIFO(mode)


def _nanoseconds(member: tarfile.TarInfo) -> int:
    return int(min(max(float(member.mtime), 0.0), 2.0**33) * 1_000_000_000)


def _write(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
