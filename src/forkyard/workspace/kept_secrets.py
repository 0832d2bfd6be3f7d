"""Looking for secrets in what the tasks of a build wrote: it would be in every fork.

Found is what masking finds in a log: the value and its usual codings, also in names and in what
links say. Not found is what was compressed or encrypted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from forkyard.base.masking import Masker

_CHUNK_BYTES = 1024**2
_MOST_TOLD = 5


def find_secrets(upper: Path, values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Search a stopped workspace's upper directory.

    Args:
        upper: Nothing writes to it any more; no link in it is followed.
        values: Name of a secret -> its value.

    Returns:
        Name and path inside (secrets in it masked), the first few.
    """
    masker = Masker(values)
    found: list[tuple[str, str]] = []
    for folder, folders, files, descriptor in os.fwalk(upper, follow_symlinks=False):
        inside = f"/{os.path.relpath(folder, upper)}".replace("/.", "", 1).rstrip("/")
        for name in (*folders, *files):
            path = f"{inside}/{name}"
            names = masker.names_in(_contents(name, descriptor))
            # A path may hold the secret itself, and is told in logs and in the journal.
            found += [(secret, masker.mask_text(path)) for secret in names]
            if len(found) >= _MOST_TOLD:
                return found
    return found


def _contents(name: str, folder: int) -> Iterator[bytes]:
    """Give a name, and what a file holds or a link says."""
    yield name.encode(errors="surrogateescape") + b"\n"
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(facts.st_mode):
        yield os.readlink(name, dir_fd=folder).encode(errors="surrogateescape")
    if not stat.S_ISREG(facts.st_mode):
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
