"""Keeping our own program within reach of a user who may not enter the folders it lies in.

Python, the packages and we may be installed below a folder that is closed to others, such as
root's home. What the gateway needs of it is shown at the same place, on an otherwise empty folder:
modules that are imported late are found, and nothing else of that folder is there any more.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from forkyard.shim import kernel

_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV


def show() -> None:
    """Replace each closed folder on the way to our program by one that holds the program alone.

    Needs a mount namespace of its own.
    """
    closed: dict[Path, set[Path]] = {}
    for folder in _needed():
        if (first := _first_closed(folder)) is not None:
            closed.setdefault(first, set()).add(folder)
    for first, folders in closed.items():
        trees = [(folder, _tree(folder)) for folder in sorted(folders)]
        kernel.mount("tmpfs", str(first), "tmpfs", _QUIET, "mode=0755,size=1m")
        for folder, tree in trees:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            kernel.attach(tree, str(folder))
            os.close(tree)


def _needed() -> set[Path]:
    package = Path(__file__).resolve().parents[2]
    named = {package, *map(Path, (sys.prefix, sys.base_prefix, *sys.path))}
    return {folder.resolve() for folder in named if folder.is_absolute() and folder.is_dir()}


def _first_closed(folder: Path) -> Path | None:
    """Give the topmost folder on the way that others may not enter."""
    for one in reversed(folder.parents):
        if not one.stat().st_mode & stat.S_IXOTH:
            return one
    return None


def _tree(folder: Path) -> int:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return kernel.clone_tree(descriptor, readonly=True)
    finally:
        os.close(descriptor)
