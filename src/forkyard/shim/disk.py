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

    def __init__(self, limit_bytes: int) -> None:
        """Start with a look soon."""
        self._limit = limit_bytes
        self.next_look = time.monotonic() + _MIN_SECONDS
        self.words = ""

    def look(self, now: float) -> bool:
        """Measure, plan the next look, and say whether the limit is passed."""
        used = used_bytes(f"{STAGE}/disk/upper")
        self.next_look = now + max(_MIN_SECONDS, (time.monotonic() - now) * _COST_FACTOR)
        self.words = f"the workspace holds {used} bytes, {self._limit} are allowed"
        return used > self._limit


def used_bytes(top: str) -> int:
    """Add up the allocated bytes below a directory, never following a link."""
    total = 0
    folders = [top]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * _SECTOR_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return total
