"""A file that holds room on the disk for the journal, given up when there is none left.

On a full disk a server could neither start nor write that a run was cancelled, and the user could
not ask it to remove anything. So some room is taken while there is plenty. It is made again when
there is plenty again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

MOST_BYTES = 64 * 1024**2
LEAST_BYTES = 1024**2
SHARE = 50
"""Of the file system, on small ones: one fiftieth."""

FULL_BYTES = 2 * 1024**2
"""With less than this, opening a journal may fail half way."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger(__name__)


class Reserve:
    """One reserve file; every call looks at the disk anew."""

    def __init__(self, path: Path) -> None:
        """Know where it lies; nothing is made yet."""
        self._path = path

    @property
    def is_there(self) -> bool:
        """Whether it holds room now."""
        return self._path.exists()

    def wanted_bytes(self) -> int:
        """Say how much room it holds on this file system."""
        found = os.statvfs(self._path.parent)
        return max(LEAST_BYTES, min(MOST_BYTES, found.f_blocks * found.f_frsize // SHARE))

    def keep(self) -> bool:
        """Make it where it is missing and twice its size is free; say whether it is there.

        Durability:
            Its blocks are taken when this returns.
        """
        if self.is_there:
            return True
        making = self._path.with_name(f".{self._path.name}.new")
        try:
            size = self.wanted_bytes()
            found = os.statvfs(self._path.parent)
            if found.f_bavail * found.f_frsize < 2 * size:
                return False
            _allocate(making, size)
            making.rename(self._path)
        except OSError as error:
            _log.warning("Cannot keep room for the journal: %s", error.strerror or error)
            with contextlib.suppress(OSError):
                making.unlink()
            return False
        return True

    def release(self) -> bool:
        """Give the room up; say whether there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        _log.warning("The disk is full: the room kept for the journal was given up")
        return True

    def release_when_full(self) -> bool:
        """Give the room up where hardly anything else is free.

        It is tried: what is counted as free is not all to be had, and root may have more of it.
        """
        probe = self._path.with_name(f".{self._path.name}.probe")
        try:
            _allocate(probe, FULL_BYTES)
        except OSError as error:
            return error.errno in _NO_ROOM and self.release()
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return False

    def trouble(self) -> str | None:
        """Say that it was given up and what that means; None where it is there or could be."""
        if self.keep():
            return None
        found = os.statvfs(self._path.parent)
        free = found.f_bavail * found.f_frsize
        return (
            f"the disk of {self._path.parent} is full: {free / 1024**2:.1f} MiB are free, and the"
            " room kept for the journal was given up; nothing new is started. Free space, or run"
            " `forkyard gc`"
        )


def _allocate(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
