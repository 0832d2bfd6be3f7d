"""What an installation is doing, for whoever looks on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class Doing:
    """One installation under way."""

    def __init__(self, folder: Path, announce: Callable[[str], None]) -> None:
        """Keep where it works and who else is told."""
        self._folder = folder
        self._announce = announce
        self.what = "beginning"
        """A clause: which archive is fetched, what is unpacked."""

    def tell(self, what: str) -> None:
        """Take note of the next step."""
        self.what = what
        self._announce(what)

    def size_bytes(self) -> int:
        """Add up what it has on disk so far; blocking, and never fails."""
        total = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - many small ones
                except OSError:  # it goes on while we look
                    continue
        return total
