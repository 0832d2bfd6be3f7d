"""Output on its way to where it is kept for good: moved as it is, or anew without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from forkyard.base.masking import Masker

CHUNK_BYTES = 256 * 1024


def keep_masked(source: Path, target: Path, masker: Masker) -> None:
    """Move an output file to its place on the same file system; secrets in it are masked.

    Without any secret in it this is a rename, and whoever follows the file keeps reading. With
    one, a follower reads the old file, whose name is gone, to its end. Doing so again after a
    crash is fine.

    Raises:
        FileNotFoundError: It is not there (any more).

    Durability:
        The content is on disk when this returns; the directory is the caller's to sync.
    """
    if masker.is_idle or not masker.names_in(_chunks(source)):
        source.rename(target)
        return
    temporary = target.with_name(f".{target.name}.new")
    stream = masker.stream()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in _chunks(source):
            file.write(stream.feed(chunk))
        file.write(stream.finish())
        file.flush()
        os.fsync(descriptor)
    temporary.rename(target)
    source.unlink()


def _chunks(path: Path) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
