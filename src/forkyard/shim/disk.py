"""The disk watch of one sandbox, where the file system cannot enforce a quota.

It looks at what the workspace wrote every so often and has its execs ended past the limit:
watched, not enforced, and `doctor` says so. A single file cannot pass the limit (RLIMIT_FSIZE).
"""

from __future__ import annotations

import contextlib
import os
import time

from forkyard.shim.stage import STAGE

_SECTOR_BYTES = 512
_MIN_SECONDS = 0.25
_COST_FACTOR = 20
"""A look that took t seconds is followed by a pause of 20 t: 5 % of one core at most."""


class DiskWatch:
    """How much the upper directory holds, and when to look again."""

    def __init__(self, limit_bytes: int | None, limit_inodes: int | None) -> None:
        """Start with a look soon."""
        self._limit_bytes = limit_bytes
        self._limit_inodes = limit_inodes
        self.next_look = time.monotonic() + _MIN_SECONDS
        self.words = ""

    def look(self, now: float) -> bool:
        """Measure, plan the next look, and say whether a limit is passed."""
        used, inodes = used_by(f"{STAGE}/disk/upper")
        self.next_look = now + max(_MIN_SECONDS, (time.monotonic() - now) * _COST_FACTOR)
        if self._limit_bytes is not None and used > self._limit_bytes:
            self.words = f"the workspace holds {used} bytes, {self._limit_bytes} are allowed"
        elif self._limit_inodes is not None and inodes > self._limit_inodes:
            self.words = f"the workspace holds {inodes} files, {self._limit_inodes} are allowed"
        else:
            return False
        return True


def used_by(top: str) -> tuple[int, int]:
    """Add up allocated bytes and names below a directory, never following a link."""
    total, names = 0, 0
    folders = [top]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                names += 1
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * _SECTOR_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return total, names
