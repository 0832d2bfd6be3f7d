"""Copying what a frozen workspace wrote, exactly, in a process of its own.

Standard input: one JSON object with `source` and `target`, two folders of which the second is
empty. Standard output: one JSON object, the report. Nothing writes to the source meanwhile. All
that an overlay's upper folder can hold is carried: owners, modes, times, extended attributes (the
overlay's marks among them), hard links, holes, links, whiteouts, fifos and sockets. Every name is
reached by descriptor from the folder above it and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import stat
import sys
from dataclasses import dataclass, field

from forkyard.workspace.tree_copy import copy_content

_FICLONE = 0x4004_9409
_SMALL_BYTES = 128 * 1024
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEEPEST = 1800
"""Of folders; the kernel's longest path allows for about this many."""
_NO_SHARING = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS})


class CannotCopy(Exception):  # noqa: N818 - reads as the sentence it carries
    """One clause for a person."""


@dataclass(slots=True)
class Copier:
    """One copy under way."""

    top: int
    """The target, open: hard links are made from there."""
    shares: bool = True
    """Whether the file system may share extents; found out at the first file."""
    linked: dict[tuple[int, int], str] = field(default_factory=dict)
    """Where a file of several names was copied to first."""
    files: int = 0
    size_bytes: int = 0

    def folder(self, source: int, target: int, path: str, depth: int) -> None:
        """Copy what a folder holds, then give the copy the folder's own facts."""
        if depth > DEEPEST:
            raise CannotCopy(f"{path[:80]}... is nested more than {DEEPEST} folders deep")
        with os.scandir(source) as entries:
            found = list(entries)
        for entry in found:
            self.entry(source, target, entry, f"{path}{entry.name}", depth)
        copy_facts(source, target)

    def entry(
        self, source: int, target: int, entry: os.DirEntry[str], path: str, depth: int
    ) -> None:
        """Copy one name."""
        name, facts = entry.name, entry.stat(follow_symlinks=False)
        kind = stat.S_IFMT(facts.st_mode)
        if kind == stat.S_IFDIR:
            self.subfolder(source, target, name, path, depth)
            return
        if facts.st_nlink > 1 and self.link(target, name, path, facts):
            return
        if kind == stat.S_IFREG:
            self.file(source, target, name, facts)
            return
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        else:
            os.mknod(name, facts.st_mode, facts.st_rdev, dir_fd=target)
        os.chown(name, facts.st_uid, facts.st_gid, dir_fd=target, follow_symlinks=False)
        if kind != stat.S_IFLNK:
            os.chmod(name, stat.S_IMODE(facts.st_mode), dir_fd=target)
        times = (facts.st_atime_ns, facts.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)

    def link(self, target: int, name: str, path: str, facts: os.stat_result) -> bool:
        """Make another name of what was copied already; False where there is no such thing yet."""
        identity = (facts.st_dev, facts.st_ino)
        first = self.linked.setdefault(identity, path)
        if first == path:
            return False
        with contextlib.suppress(OSError):  # too many names, or too long a path: a copy then
            os.link(first, name, src_dir_fd=self.top, dst_dir_fd=target, follow_symlinks=False)
            return True
        return False

    def subfolder(self, source: int, target: int, name: str, path: str, depth: int) -> None:
        """Copy one folder inside another."""
        os.mkdir(name, 0o700, dir_fd=target)
        below, into = os.open(name, FOLDER, dir_fd=source), os.open(name, FOLDER, dir_fd=target)
        try:
            self.folder(below, into, f"{path}/", depth + 1)
        finally:
            os.close(below)
            os.close(into)

    def file(self, source: int, target: int, name: str, facts: os.stat_result) -> None:
        """Copy one file."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        reading = os.open(name, os.O_RDONLY | os.O_NOATIME | flags, dir_fd=source)
        try:
            writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600,
                              dir_fd=target)  # fmt: skip
            try:
                self.content(reading, writing, facts)
                copy_facts(reading, writing)
            finally:
                os.close(writing)
        finally:
            os.close(reading)
        self.files += 1
        self.size_bytes += facts.st_size

    def content(self, reading: int, writing: int, facts: os.stat_result) -> None:
        """Copy a file's bytes and holes."""
        if facts.st_size == 0:
            return
        if self.shares:
            try:
                fcntl.ioctl(writing, _FICLONE, reading)
            except OSError as error:
                if error.errno not in _NO_SHARING:
                    raise
                self.shares = False
            else:
                return
        if facts.st_size <= _SMALL_BYTES and facts.st_blocks * 512 >= facts.st_size:
            os.write(writing, os.read(reading, facts.st_size))
        else:
            copy_content(reading, writing, facts.st_size)


def copy_facts(source: int, target: int, *, without: str = "") -> None:
    """Give a file or folder another one's attributes (but one), owner, mode and times."""
    facts = os.fstat(source)
    for name in os.listxattr(source):
        if name != without:
            os.setxattr(target, name, os.getxattr(source, name))
    os.fchown(target, facts.st_uid, facts.st_gid)
    os.fchmod(target, stat.S_IMODE(facts.st_mode))
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def main() -> None:
    """Do what standard input asks for and report."""
    sys.setrecursionlimit(4 * DEEPEST)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asked = json.load(sys.stdin)
    report: dict[str, object] = {"error": None, "full": False}
    source, target = os.open(asked["source"], FOLDER), os.open(asked["target"], FOLDER)
    copier = Copier(top=target)
    try:
        copier.folder(source, target, "", 0)
    except CannotCopy as error:
        report["error"] = str(error)
    except OSError as error:
        reason = error.strerror or str(error)
        report["error"] = f"{error.filename}: {reason}" if error.filename else reason
        report["full"] = error.errno in (errno.ENOSPC, errno.EDQUOT)
    json.dump(report | {"files": copier.files, "size_bytes": copier.size_bytes}, sys.stdout)


if __name__ == "__main__":
    main()
