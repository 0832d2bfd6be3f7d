"""What a server hears of a gateway process: a control socket that answers as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forkyard import __version__
from forkyard.config import Layout
from forkyard.errors import ForkyardError
from forkyard.gateway import messages
from forkyard.gateway.interface import RunStatus
from forkyard.shim import protocol


class FakeProcess:
    """Answers every question with nothing, or with a trouble that a test names for it."""

    def __init__(self) -> None:
        """Begin without connections."""
        self.heard: list[protocol.Message] = []
        self.troubles: dict[str, ForkyardError] = {}
        """By operation."""
        self._writers: list[asyncio.StreamWriter] = []
        self._more = asyncio.Event()

    def count(self, op: str) -> int:
        """Count the questions of a kind."""
        return sum(one.get("op") == op for one in self.heard)

    async def until_heard(self, op: str, times: int) -> list[protocol.Message]:
        """Wait for the nth question of a kind."""
        while len(found := [one for one in self.heard if one.get("op") == op]) < times:
            self._more.clear()
            await self._more.wait()
        return found

    def die(self) -> None:
        """End every connection, as a process does; the next one listens already."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def tell(self, status: RunStatus) -> None:
        """Say what a run spends."""
        for writer in self._writers:
            writer.write(protocol.encode({"op": "status", "run": messages.written(status)}))

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while line := await reader.readline():
                message = messages.message(line)
                self.heard.append(message)
                self._more.set()
                writer.write(protocol.encode(self._answer(message)))
        writer.close()

    def _answer(self, message: protocol.Message) -> protocol.Message:
        op = str(message.get("op"))
        if op == "hello":
            return {"version": __version__, "pid": os.getpid(), "ledger": "led_1"}
        trouble = self.troubles.get(op)
        if trouble is not None:
            return {"id": message["id"], "error": messages.written_error(trouble)}
        return {"id": message["id"], "result": [] if op in {"revoke", "entries"} else None}


@asynccontextmanager
async def fake_process(layout: Layout) -> AsyncIterator[FakeProcess]:
    """Listen in a gateway's place within the block; let go of it before it ends."""
    layout.gateway_socket.parent.mkdir(parents=True, exist_ok=True)
    made = FakeProcess()
    with protocol.short_path(str(layout.gateway_socket)) as path:
        server = await asyncio.start_unix_server(made.converse, path)
    try:
        yield made
    finally:
        made.die()
        server.close()
