"""A provider that takes down exactly what is sent to it, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

ANSWER = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "ok"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
)


@dataclass(frozen=True)
class Sent:
    """One request as it came."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Give every value of a header."""
        return [value for one, value in self.headers if one == name]


@dataclass
class Recorder:
    """What came, and what is answered."""

    url: str = ""
    sent: list[Sent] = field(default_factory=list)
    status: str = "200 OK"
    more_headers: str = ""
    raw: tuple[bytes, ...] = ()
    """The whole answer instead, byte for byte; its last piece comes again and again."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        self.writers.append(writer)
        with contextlib.suppress(OSError, EOFError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").split("\r\n")[:-2]
                headers = tuple(
                    (name.lower(), value.strip())
                    for name, _, value in (line.partition(":") for line in lines)
                )
                length = next((int(v) for name, v in headers if name == "content-length"), 0)
                self.sent.append(Sent(first, headers, await reader.readexactly(length)))
                if self.raw:
                    await self._say(writer)
                    break
                writer.write(
                    f"HTTP/1.1 {self.status}\r\ncontent-type: application/json\r\n"
                    f"{self.more_headers}content-length: {len(ANSWER)}\r\n\r\n{ANSWER}".encode()
                )
                await writer.drain()
        writer.close()

    async def _say(self, writer: asyncio.StreamWriter) -> None:
        writer.writelines(self.raw[:-1])
        while self.raw[-1]:
            writer.write(self.raw[-1])
            await writer.drain()
            await asyncio.sleep(0.1)

    def taken(self) -> list[Sent]:
        """Give what came since the last time."""
        taken, self.sent = self.sent, []
        return taken


@asynccontextmanager
async def recording() -> AsyncIterator[Recorder]:
    """Run one on loopback."""
    recorder = Recorder()
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0, limit=2**26)
    recorder.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield recorder
    finally:
        server.close()
        for writer in recorder.writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # until each has noticed
