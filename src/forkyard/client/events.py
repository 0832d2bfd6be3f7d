"""The event stream in the SDK: resumes exactly where it broke off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from forkyard.client.connection import TRIES, Connection
from forkyard.client.http import LostError
from forkyard.errors import StoreError
from forkyard.wire.schema import EventInfo


class Events:
    """Changes of the journal, as they happen."""

    def __init__(self, connection: Connection, revive: Callable[[], Awaitable[None]]) -> None:
        """Keep the connection and what makes a server listen again."""
        self._connection = connection
        self._revive = revive

    async def follow(
        self, *, after: int | None = None, run: str | None = None
    ) -> AsyncIterator[EventInfo]:
        """Give every event after a sequence number (by default from now on), without end.

        A lost connection is opened again at the event after the last one that was given.
        """
        async for event in self.changes(after=after, run=run):
            if event is not None:
                yield event

    async def changes(
        self, *, after: int | None = None, run: str | None = None
    ) -> AsyncIterator[EventInfo | None]:
        """Do the same, and give None each time the stream stands (again)."""
        position = after
        failures = 0
        while True:
            query = {"after": "now" if position is None else str(position)}
            if run is not None:
                query["run"] = run
            try:
                async with self._connection.open("/v1/events", query) as answer:
                    async for line in answer.lines():
                        failures = 0
                        if line.startswith(": from "):
                            position = int(line.removeprefix(": from "))
                            yield None
                        elif line.startswith("data: "):
                            event = EventInfo.model_validate_json(line.removeprefix("data: "))
                            position = event.sequence
                            yield event
            except LostError as error:
                failures += 1
                if failures == TRIES:
                    raise StoreError(
                        "cannot follow the server's events: it went away",
                        hint="Look at server.log in the state directory.",
                    ) from error
            self._connection.close()
            await self._revive()
