"""Being there: a stream that is kept open, so that the server knows when this client is gone."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable

from forkyard.client.connection import Connection
from forkyard.client.http import LostError
from forkyard.errors import ForkyardError

PAUSE_SECONDS = 0.5


class Session:
    """Begun with the first ephemeral workspace; ends with the client, however that ends."""

    def __init__(self, connection: Connection, revive: Callable[[], Awaitable[None]]) -> None:
        """Keep the collaborators; nothing is opened yet."""
        self.id = uuid.uuid4().hex
        self._connection = connection
        self._revive = revive
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Open the stream, and keep it open, in the background. Twice is fine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stay())

    async def end(self) -> None:
        """Close the stream."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _stay(self) -> None:
        while True:
            try:
                async with self._connection.open(f"/v1/sessions/{self.id}") as answer:
                    async for _ in answer.chunks:
                        pass
            except (LostError, ForkyardError):
                await asyncio.sleep(PAUSE_SECONDS)
            with contextlib.suppress(ForkyardError):
                await self._revive()
