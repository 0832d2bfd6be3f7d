"""Looking at a repository on this machine for what it is, without executing anything of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from forkyard.wire.detection import READ_FILES, Detected, Listing, detect

_MOST_BYTES = 1024**2
_MOST_NAMES = 10_000


INSTALLED = frozenset({".venv", "deps", "node_modules", "venv"})
"""Folders of installed dependencies, which nobody commits."""


def look_at(folder: Path, *, committed: bool = False) -> tuple[Detected, ...]:
    """Say what the repository in a folder is, the most telling reading first.

    A file that is a link, no ordinary file, or larger than 1 MiB is passed over.

    Args:
        folder: Its root.
        committed: Only what is committed will be there: installed dependencies are not.

    Returns:
        Nothing where nothing is known, or the folder cannot be read.
    """
    names: set[str] = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.add(entry.name)
                if len(names) >= _MOST_NAMES:
                    break
    except OSError:
        return ()
    if committed:
        names -= INSTALLED
    texts = {name: text for name in READ_FILES if (text := read_plain(folder / name)) is not None}
    return detect(Listing(names=names, texts=texts))


def read_plain(path: Path) -> str | None:
    """Read a small ordinary file as text; None where it is anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST_BYTES:
            return None
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
