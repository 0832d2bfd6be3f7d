"""Copying a user's working tree as it lies, in a process of its own.

Standard input: one JSON object with `source`, `target`, `owner` and `skip` (folders by device and
inode), `skip_top` (names) and `only` where single files are wanted (paths below the source, beside
what the target has). Standard output: one JSON object, the report. Every name is reached by
descriptor from the folder above it and no link is followed. The tree may be edited meanwhile:
passes over the source repeat until one finds nothing changed since it was copied, so that what was
taken existed, whole, between the last two passes. Nothing is ever written to the source, access
times included.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
from dataclasses import dataclass, field

PASSES = 6
_FICLONE = 0x4004_9409
_CHUNK_BYTES = 8 * 1024**2
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 1800
"""Of folders; the kernel's longest path allows for about this many."""

Signature = tuple[int, ...]


class CannotCopy(Exception):  # noqa: N818 - reads as the sentence it carries
    """One clause for a person."""


@dataclass(slots=True)
class Copier:
    """One copy under way."""

    owner: int
    skip: set[tuple[int, int]]
    skip_top: frozenset[str] = frozenset()
    """Names in the source's top folder that are passed over."""
    known: dict[str, Signature] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0

    def run(self, source: str, target: str) -> None:
        """Copy until a pass finds nothing to do."""
        for _ in range(PASSES):
            self.changed = []
            from_folder = os.open(source, _FOLDER)
            to_folder = os.open(target, _FOLDER)
            try:
                self.folder(from_folder, to_folder, "", 0)
            finally:
                os.close(from_folder)
                os.close(to_folder)
            if not self.changed:
                return
        names = ", ".join(sorted(set(self.changed))[:3])
        raise CannotCopy(f"{names} keeps changing while it is copied")

    def run_only(self, source: str, target: str, paths: list[str]) -> None:
        """Copy single files, each once, into a target that may hold others; past no link."""
        for path in paths:
            *above, name = path.split("/")
            from_folder, to_folder = os.open(source, _FOLDER), os.open(target, _FOLDER)
            try:
                for part in above:
                    from_folder, last = os.open(part, _FOLDER, dir_fd=from_folder), from_folder
                    os.close(last)
                    to_folder, last = self.made(to_folder, part), to_folder
                    os.close(last)
                if _exists(to_folder, name):
                    self.notes[path] = "the commit has it; passed over"
                else:
                    self.entry(from_folder, to_folder, name, path, len(above))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                self.notes[path] = "is gone, or lies behind a link; passed over"
            finally:
                os.close(from_folder)
                os.close(to_folder)

    def made(self, folder: int, name: str) -> int:
        """Open a folder of the target, which is made where it is missing."""
        if not _exists(folder, name):
            os.mkdir(name, 0o755, dir_fd=folder)
            os.chown(name, self.owner, self.owner, dir_fd=folder, follow_symlinks=False)
        return os.open(name, _FOLDER, dir_fd=folder)

    def folder(self, source: int, target: int, path: str, depth: int) -> None:
        """Make one folder equal, then give it owner, mode and time."""
        if depth > _DEEPEST:
            raise CannotCopy(f"{path[:80]}… is nested more than {_DEEPEST} folders deep")
        before = os.fstat(source)
        names = sorted(os.listdir(source))
        if not path:
            names = [name for name in names if name not in self.skip_top]
        for name in set(os.listdir(target)) - set(names):
            self.touched(f"{path}{name}")
            _remove(target, name)
        for name in names:
            try:
                self.entry(source, target, name, f"{path}{name}", depth)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                self.touched(f"{path}{name}")  # it became something else meanwhile
        os.fchown(target, self.owner, self.owner)
        os.fchmod(target, stat.S_IMODE(before.st_mode) & 0o777 | 0o700)
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))

    def entry(self, source: int, target: int, name: str, path: str, depth: int) -> None:
        """Make one name equal."""
        facts = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            self.subfolder(source, target, name, path, depth)
            return
        signature = _signature(facts)
        if self.known.get(path) == signature:
            return
        if path in self.known or _exists(target, name):
            _remove(target, name)
        self.touched(path)
        if path in {".git/index.lock", ".git/HEAD.lock", ".git/config.lock"}:
            self.notes[path] = "a git command is at work; its lock is not taken over"
        elif stat.S_ISLNK(facts.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            os.chown(name, self.owner, self.owner, dir_fd=target, follow_symlinks=False)
            os.utime(
                name,
                ns=(facts.st_atime_ns, facts.st_mtime_ns),
                dir_fd=target,
                follow_symlinks=False,
            )
        elif stat.S_ISREG(facts.st_mode):
            signature = self.file(source, target, name, facts)
        else:
            self.notes[path] = "no file, folder or link; passed over"
        self.known[path] = signature

    def subfolder(self, source: int, target: int, name: str, path: str, depth: int) -> None:
        """Make one folder inside another equal."""
        below = os.open(name, _FOLDER, dir_fd=source)
        try:
            facts = os.fstat(below)
            if (facts.st_dev, facts.st_ino) in self.skip:
                self.notes[path] = "holds Forkyard's own state; passed over"
                return
            if not _is_folder(target, name):
                if _exists(target, name):
                    _remove(target, name)
                self.touched(path)
                os.mkdir(name, 0o700, dir_fd=target)
            into = os.open(name, _FOLDER, dir_fd=target)
            try:
                self.folder(below, into, f"{path}/", depth + 1)
            finally:
                os.close(into)
        finally:
            os.close(below)

    def file(self, source: int, target: int, name: str, facts: os.stat_result) -> Signature:
        """Copy one file; give the signature it had when the copying began."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            reading = os.open(name, flags | os.O_NOATIME, dir_fd=source)
        except PermissionError:
            reading = os.open(name, flags, dir_fd=source)
        try:
            opened = os.fstat(reading)
            if not stat.S_ISREG(opened.st_mode):
                raise FileNotFoundError(errno.ENOENT, name)
            writing = os.open(
                name,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=target,
            )
            try:
                copy_content(reading, writing, opened.st_size)
                os.fchown(writing, self.owner, self.owner)
                os.fchmod(writing, stat.S_IMODE(opened.st_mode) & 0o777 | 0o400)
                os.utime(writing, ns=(opened.st_atime_ns, opened.st_mtime_ns))
            finally:
                os.close(writing)
        finally:
            os.close(reading)
        self.files += 1
        self.size_bytes += facts.st_size
        return _signature(opened)

    def touched(self, path: str) -> None:
        """Note that this pass had something to do."""
        self.changed.append(path)


def _signature(facts: os.stat_result) -> Signature:
    return (
        facts.st_mode,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
        facts.st_ino,
        facts.st_dev,
    )


def copy_content(reading: int, writing: int, size: int) -> None:
    """Fill an empty file with another one's content: shared extents, or a copy with its holes."""
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError:
        pass  # no shared extents on this file system: copy
    else:
        return
    position = 0
    while position < size:
        try:
            start = os.lseek(reading, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                break
            raise
        end = os.lseek(reading, start, os.SEEK_HOLE)
        _copy_range(reading, writing, start, end)
        position = end
    os.ftruncate(writing, size)


def _copy_range(reading: int, writing: int, start: int, end: int) -> None:
    while start < end:
        wanted = min(end - start, _CHUNK_BYTES)
        try:
            done = os.copy_file_range(reading, writing, wanted, start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            done = os.pwrite(writing, os.pread(reading, wanted, start), start)
        if done == 0:
            return  # it became shorter meanwhile; the next pass sees that
        start += done


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove(folder: int, name: str) -> None:
    """Remove what we copied ourselves."""
    if not _is_folder(folder, name):
        os.unlink(name, dir_fd=folder)
        return
    below = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for entry in os.listdir(below):  # noqa: PTH208 - by descriptor
            _remove(below, entry)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=folder)


def main() -> None:
    """Do what standard input asks for and report."""
    sys.setrecursionlimit(4 * _DEEPEST)
    asked = json.load(sys.stdin)
    copier = Copier(
        owner=asked["owner"],
        skip={(dev, ino) for dev, ino in asked["skip"]},
        skip_top=frozenset(asked.get("skip_top", ())),
    )
    report: dict[str, object] = {"error": None, "full": False}
    try:
        if "only" in asked:
            copier.run_only(asked["source"], asked["target"], asked["only"])
        else:
            copier.run(asked["source"], asked["target"])
    except CannotCopy as error:
        report["error"] = str(error)
    except OSError as error:
        reason = error.strerror or str(error)
        report["error"] = f"{error.filename}: {reason}" if error.filename else reason
        report["full"] = error.errno in (errno.ENOSPC, errno.EDQUOT)
    report |= {
        "files": copier.files,
        "size_bytes": copier.size_bytes,
        "notes": sorted(copier.notes.items()),
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
