"""Where a file system puts what is made below a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

_GET_FLAGS, _SET_FLAGS = 0x8008_6601, 0x4008_6602
_LONG = struct.Struct("@l")
TOP_DIRECTORY = 0x0002_0000


def spread_folders(path: Path) -> None:
    """Have each folder made in this one begin in a part of the disk of its own, where ext4 can.

    ext4 puts a folder near its parent, and does not use the inode of a deleted file again for one
    to five minutes: it looks at each such inode on the way to one that it may use
    (`recently_deleted` in fs/ext4/ialloc.c). So work in one workspace was twice as slow after many
    others had been deleted beside it. Other file systems have no such flag, and need none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            (flags,) = _LONG.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(_LONG.size)))
            if not flags & TOP_DIRECTORY:
                fcntl.ioctl(descriptor, _SET_FLAGS, _LONG.pack(flags | TOP_DIRECTORY))
    finally:
        os.close(descriptor)
