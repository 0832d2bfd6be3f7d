"""Secrets that a candidate carries: found by value in what is new, told by name, never altered.

The patch stays as it is, since it must replay to the same tree; who reviews it is told.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from forkyard.base.masking import Masker
from forkyard.candidate.answers import Changed
from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.walker_main import text
from forkyard.errors import WorkspaceError
from forkyard.model.candidate import SecretFinding

_CHUNK = 256 * 1024


async def find_secrets(
    store: ObjectStore, changes: Sequence[Changed], masker: Masker
) -> tuple[SecretFinding, ...]:
    """Look for the values of secrets, in all codings, in new contents and names.

    Raises:
        WorkspaceError: The store cannot give a blob.
    """
    if masker.is_idle:
        return ()
    paths: dict[str, list[bytes]] = defaultdict(list)
    found: set[tuple[bytes, str]] = set()
    for change in changes:
        found.update((change.path, name) for name in masker.names_in([change.path]))
        is_new = change.new is not None and (change.old is None or change.old.oid != change.new.oid)
        if change.new is not None and is_new:
            paths[change.new.oid.hex()].append(change.path)
    if paths:
        async with store.scratch() as scratch:
            with (scratch / "contents").open("w+b") as contents:
                asked = "".join(f"{blob}\n" for blob in paths).encode()
                await store.check(["cat-file", "--batch"], stdin=asked, output=contents.fileno())
                contents.seek(0)
                for blob, names in await asyncio.to_thread(_look, contents, masker):
                    found.update((path, name) for path in paths[blob] for name in names)
    return tuple(
        SecretFinding(path=masker.mask_text(text(path)), secret=name)
        for path, name in sorted(found)
    )


def _look(contents: BinaryIO, masker: Masker) -> list[tuple[str, tuple[str, ...]]]:
    found = []
    while head := contents.readline():
        words = head.split()
        if len(words) != 3:  # noqa: PLR2004 - blob, kind and size
            raise WorkspaceError(f"cannot look for secrets: git gave {head[:80]!r}")
        names = masker.names_in(_content(contents, int(words[2])))
        if names:
            found.append((words[0].decode(), names))
    return found


def _content(contents: BinaryIO, left: int) -> Iterator[bytes]:
    while left:
        chunk = contents.read(min(_CHUNK, left))
        if not chunk:
            raise WorkspaceError("cannot look for secrets: git gave less than it said")
        left -= len(chunk)
        yield chunk
    contents.read(1)
