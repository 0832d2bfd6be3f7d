"""The floor of free disk below which nothing is started: work must not end in a full disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FLOOR_BYTES = 1024**3
FLOOR_INODES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFloor:
    """What must stay free where the state lies."""

    directory: Path
    free_bytes: int = FLOOR_BYTES
    free_inodes: int = FLOOR_INODES

    def trouble(self) -> str | None:
        """Say what there is too little of; None when there is enough of both."""
        try:
            found = os.statvfs(self.directory)
        except OSError as error:
            return f"cannot look at the disk of {self.directory}: {error.strerror or error}"
        free = found.f_bavail * found.f_frsize
        if free < self.free_bytes:
            return (
                f"disk full (bytes): {_gibibytes(free)} free, {_gibibytes(self.free_bytes)} needed"
            )
        # file systems that make inodes as they go report none at all
        if found.f_files and found.f_favail < self.free_inodes:
            return f"disk full (inodes): {found.f_favail} free, {self.free_inodes} needed"
        return None


def _gibibytes(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB"
