"""Memory for bodies, of the whole process: taken before one comes, given back when it was sent."""

from __future__ import annotations

import asyncio
from collections import Counter

from aiohttp import web

from forkyard.model.ids import WorkspaceId

MOST_BYTES = 512 * 1024**2
MOST_BYTES_EACH = 128 * 1024**2
"""Of one workspace, so that it takes four of them to keep everybody waiting."""
WAIT_SECONDS = 30.0


class RoomError(Exception):
    """There was no room for a body for as long as one may wait for it."""


class Room:
    """So many bytes, shared by all workspaces."""

    def __init__(
        self,
        *,
        most_bytes: int = MOST_BYTES,
        most_bytes_each: int = MOST_BYTES_EACH,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Begin empty."""
        self._most = most_bytes
        self._most_each = most_bytes_each
        self._wait_seconds = wait_seconds
        self._held: Counter[WorkspaceId] = Counter()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def held_bytes(self) -> int:
        """How much is taken."""
        return self._held.total()

    def place(self, workspace: WorkspaceId) -> Place:
        """Give one body a place, of no size yet."""
        return Place(self, workspace)

    async def take(self, workspace: WorkspaceId, more: int) -> None:
        """Take bytes; wait where there are too few.

        Raises:
            RoomError: There were too few for too long.

        Cancellation:
            Nothing is taken.
        """
        if not self._fits(workspace, more):
            try:
                async with asyncio.timeout(self._wait_seconds):
                    while not self._fits(workspace, more):
                        await self._freed()
            except TimeoutError:
                raise RoomError from None
        self._held[workspace] += more

    def give_back(self, workspace: WorkspaceId, fewer: int) -> None:
        """Give bytes back."""
        self._held[workspace] -= fewer
        if not self._held[workspace]:
            del self._held[workspace]
        for one in self._waiting:
            if not one.done():
                one.set_result(None)

    def _fits(self, workspace: WorkspaceId, more: int) -> bool:
        is_fair = self._held[workspace] + more <= self._most_each
        return is_fair and self._held.total() + more <= self._most

    async def _freed(self) -> None:
        freed = asyncio.get_running_loop().create_future()
        self._waiting.add(freed)
        try:
            await freed
        finally:
            self._waiting.discard(freed)


class Place:
    """What one body takes."""

    def __init__(self, room: Room, workspace: WorkspaceId) -> None:
        """Take nothing yet."""
        self._room = room
        self._workspace = workspace
        self._bytes = 0

    async def hold(self, size: int) -> None:
        """Be as large as this from now on.

        Raises:
            RoomError: There is no room for it; it stays as large as it was.
        """
        if size > self._bytes:
            await self._room.take(self._workspace, size - self._bytes)
            self._bytes = size
        elif size < self._bytes:
            self._room.give_back(self._workspace, self._bytes - size)
            self._bytes = size

    def leave(self) -> None:
        """Give all of it back. Idempotent."""
        if self._bytes:
            self._room.give_back(self._workspace, self._bytes)
            self._bytes = 0

    def __del__(self) -> None:
        """Be given back with its request, where nobody did it before."""
        self.leave()


PLACE = web.RequestKey("place", Place)
"""Where a request carries its body's place, from who read it to who sends it."""
