"""Reading files of a hostile tree by descriptor. Standard library only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from forkyard.candidate.trees import LINK
from forkyard.shim import kernel

CHUNK_BYTES = 1024**2
LOOK = os.O_PATH | os.O_NOFOLLOW
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def read_file(directory: int, path: bytes, expected: os.stat_result) -> Iterator[bytes]:
    """Give a regular file's bytes, after making sure that it is the one that was looked at.

    Raises:
        OSError: ESTALE, the tree changed under us; it must be of a stopped workspace.
    """
    descriptor = kernel.open_beneath(directory, path, READ)
    try:
        status = os.fstat(descriptor)
        same = (
            status.st_ino == expected.st_ino
            and status.st_dev == expected.st_dev
            and status.st_size == expected.st_size
            and stat.S_ISREG(status.st_mode)
        )
        if not same:
            raise OSError(errno.ESTALE, "the file changed while it was read")
        left = expected.st_size
        while left:
            chunk = os.read(descriptor, min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError(errno.ESTALE, "the file became shorter while it was read")
            left -= len(chunk)
            yield chunk
    finally:
        os.close(descriptor)


def read_blob(root: int, path: bytes, mode: int) -> tuple[int, Iterator[bytes]]:
    """Give the size and bytes of a file or link by its path below a repository."""
    descriptor = kernel.open_beneath(root, path, LOOK)
    try:
        status = os.fstat(descriptor)
        if mode == LINK:
            target = os.readlink(b"", dir_fd=descriptor)
            return len(target), iter((target,))
        return status.st_size, read_file(root, path, status)
    finally:
        os.close(descriptor)
