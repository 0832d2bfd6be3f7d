"""Writing into a hostile tree by descriptor. Standard library only.

Every component is opened below an open directory by openat2, so nothing is ever written through
a link. What stands in the way of a file that must be written is removed: the trees written to
are forks of ours, and what they should hold is known.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable

from forkyard.candidate.reading import LIST
from forkyard.candidate.trees import LINK
from forkyard.shim import kernel

_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.ELOOP})
_TEMPORARY = b".forkyard-writing"


class TreeWriter:
    """Writes and removes paths below one open directory."""

    def __init__(self, root: int) -> None:
        """Keep the directory's descriptor."""
        self._root = root
        self.replaced: list[bytes] = []
        """What stood in the way and was removed."""

    def directory(self, path: bytes) -> int:
        """Open a directory, made where there is none, whatever stood in the way."""
        opened = self._open(_parts(path), create=True)
        if opened is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return opened

    def remove(self, path: bytes) -> bool:
        """Remove a file or link, and the directories that become empty by it.

        Returns:
            Whether there was something to remove.
        """
        *parents, name = _parts(path)
        opened = self._open(parents, create=False)
        if opened is None:
            return False
        try:
            status = os.stat(name, dir_fd=opened, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                return False
            os.unlink(name, dir_fd=opened)
        except FileNotFoundError:
            return False
        finally:
            os.close(opened)
        self._prune(parents)
        return True

    def write(self, path: bytes, mode: int, permissions: int, chunks: Iterable[bytes]) -> None:
        """Put a file or link at a path, whatever stood there or above it."""
        *parents, name = _parts(path)
        directory = self._open(parents, create=True)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    self.replaced.append(path)
                    _remove_tree(directory, name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_TEMPORARY, dir_fd=directory)
            if mode == LINK:
                os.symlink(b"".join(chunks), _TEMPORARY, dir_fd=directory)
            else:
                self._write_file(directory, permissions, chunks)
            os.rename(_TEMPORARY, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(directory)

    @staticmethod
    def _write_file(directory: int, permissions: int, chunks: Iterable[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = kernel.open_beneath(directory, _TEMPORARY, flags, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.writelines(chunks)
            os.fchmod(file.fileno(), permissions)

    def _open(self, parents: list[bytes], *, create: bool) -> int | None:
        directory = os.dup(self._root)
        walked: list[bytes] = []
        for name in parents:
            walked.append(name)
            try:
                deeper = self._enter(directory, name, walked, create=create)
            finally:
                os.close(directory)
            if deeper is None:
                return None
            directory = deeper
        return directory

    def _enter(
        self, directory: int, name: bytes, walked: list[bytes], *, create: bool
    ) -> int | None:
        try:
            return kernel.open_beneath(directory, name, LIST)
        except FileNotFoundError:
            if not create:
                return None
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
            if not create:
                return None
            self.replaced.append(b"/".join(walked))
            os.unlink(name, dir_fd=directory)
        os.mkdir(name, 0o755, dir_fd=directory)
        return kernel.open_beneath(directory, name, LIST)

    def _prune(self, parents: list[bytes]) -> None:
        for count in range(len(parents), 0, -1):
            above = self._open(parents[: count - 1], create=False)
            if above is None:
                return
            try:
                os.rmdir(parents[count - 1], dir_fd=above)
            except OSError:
                return  # it holds something, as most do
            finally:
                os.close(above)


def _parts(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    if any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts):
        raise ValueError(f"{path!r} is no path that a candidate may write")
    return parts


def _remove_tree(directory: int, name: bytes) -> None:
    opened = kernel.open_beneath(directory, name, LIST)
    try:
        for listed in os.listdir(opened):  # noqa: PTH208 - a descriptor
            child = os.fsencode(listed)
            status = os.stat(child, dir_fd=opened, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                _remove_tree(opened, child)
            else:
                os.unlink(child, dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=directory)
