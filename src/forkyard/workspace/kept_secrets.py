"""Looking for secrets in what the tasks of a build wrote: it would be in every fork.

Found is what masking finds in a log: the value and its usual codings, also in names and in what
links say, and in extended attributes. Not found is what was compressed or encrypted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from forkyard.base.masking import Masker
from forkyard.errors import WorkspaceError

_CHUNK_BYTES = 1024**2
_MOST_TOLD = 5


def find_secrets(upper: Path, values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Search a stopped workspace's upper directory.

    Args:
        upper: Nothing writes to it any more; no link in it is followed.
        values: Name of a secret -> its value.

    Returns:
        Name and path inside (secrets in it masked), the first few.

    Raises:
        WorkspaceError: Something could not be looked at.
    """
    try:
        return _found(upper, values)
    except (OSError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error.strerror
        raise WorkspaceError(
            f"cannot look for secrets in what the tasks wrote: {reason}",
            hint="Have the tasks that use secrets leave less behind, then build again.",
        ) from error


def _found(upper: Path, values: Mapping[str, str]) -> list[tuple[str, str]]:
    masker = Masker(values)
    found: list[tuple[str, str]] = []
    for folder, folders, files, descriptor in os.fwalk(
        upper, follow_symlinks=False, onerror=_refuse
    ):
        below = os.path.relpath(folder, upper)
        inside = "" if below == "." else f"/{below}"
        for name in (*folders, *files):
            path = f"{inside}/{name}"
            names = masker.names_in(_contents(name, descriptor))
            # A path may hold the secret itself, and is told in logs and in the journal.
            found += [(secret, masker.mask_text(path)) for secret in names]
            if len(found) >= _MOST_TOLD:
                return found
    return found


def _refuse(error: OSError) -> None:
    raise error


def _contents(name: str, folder: int) -> Iterator[bytes]:
    """Give a name, and what a file holds or a link says."""
    yield name.encode(errors="surrogateescape") + b"\n"
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(facts.st_mode):
        yield os.readlink(name, dir_fd=folder).encode(errors="surrogateescape")
    if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        for attribute in os.listxattr(descriptor):
            yield attribute.encode(errors="surrogateescape") + b"\n"
            yield os.getxattr(descriptor, attribute) + b"\n"
        while stat.S_ISREG(facts.st_mode) and (chunk := os.read(descriptor, _CHUNK_BYTES)):
            yield chunk
    finally:
        os.close(descriptor)
