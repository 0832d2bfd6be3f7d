"""Reading contents out of the store of candidate trees."""

from __future__ import annotations

from collections.abc import Sequence

from forkyard.candidate.objects import ObjectStore
from forkyard.errors import WorkspaceError


class StoredContents:
    """The bare git store that collections fill."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def read(self, blobs: Sequence[str]) -> dict[str, bytes]:
        """Give the bytes of blobs, each checked by git against its name.

        Raises:
            WorkspaceError: One is missing or damaged.
        """
        if not blobs:
            return {}
        asked = "".join(f"{blob}\n" for blob in blobs).encode()
        output = await self._store.check(["cat-file", "--batch"], stdin=asked)
        found: dict[str, bytes] = {}
        place = 0
        for blob in blobs:
            end = output.find(b"\n", place)
            words = output[place:end].split(b" ")
            if end < 0 or words[:2] != [blob.encode(), b"blob"]:
                raise WorkspaceError(
                    f"cannot read content {blob}: the object store does not have it",
                    hint="Check the disk and run `forkyard doctor`.",
                )
            start, size = end + 1, int(words[2])
            found[blob] = output[start : start + size]
            place = start + size + 1
        return found
