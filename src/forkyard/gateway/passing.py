"""Small parts of passing an answer on: the stream to the agent, and how much silence is borne."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from aiohttp import HttpVersion11, web

from forkyard.gateway.answers import Headers
from forkyard.gateway.interface import Provider
from forkyard.gateway.protocols.interface import Reading

MOST_ANSWER_BYTES = 64 * 1024**2
"""Of an answer that is no stream."""
MOST_STREAM_BYTES = 256 * 1024**2
"""Of a stream, also when it is decoded: the longest answers have a few megabytes."""
_MOST_UNREAD_BYTES = 64 * 1024
_MOST_PING_BYTES = 96
"""What a model says comes in larger events, so most of them are not looked into."""


class TooLargeError(Exception):
    """An answer has more bytes than we take."""


def is_life(chunk: bytes) -> bool:
    """Say whether a chunk says more than that the connection is still there."""
    if len(chunk) > _MOST_PING_BYTES:
        return True
    if b'"ping"' in chunk or b'"keepalive"' in chunk:
        return False
    said = chunk.strip()
    if said.startswith(b":"):
        return b"data:" in said
    return bool(said) and not said.startswith((b"event: ping", b"event:ping"))


@dataclass(slots=True, kw_only=True)
class Stalls:
    """How often in a row a provider fell silent on one workspace; less is borne each time."""

    in_a_row: int = 0

    def bear(self, provider: Provider, *, is_streaming: bool) -> float:
        """Give how much silence is borne now: agents try again, and that must end too."""
        usual = provider.idle_seconds if is_streaming else provider.answer_seconds
        if self.in_a_row == 0:
            return usual
        return min(usual, provider.idle_seconds / (6 if is_streaming else 2))


class Free:
    """The meter of what costs nothing."""

    def feed(self, chunk: bytes) -> None:
        """Count nothing."""

    def end(self) -> None:
        """Count nothing."""

    def reading(self) -> Reading:
        """Say that all is well."""
        return Reading(is_final=True, has_ended=True)


class Stream(web.StreamResponse):
    """An answer that is passed on while it comes.

    Chunks go straight to the transport: at thousands of events a second the layers above it cost
    more than the bytes.
    """

    def __init__(self, request: web.BaseRequest, headers: Headers) -> None:
        """Keep where it goes; nothing is written yet."""
        super().__init__(status=200, headers=headers)
        self._agent = request
        self._transport: asyncio.Transport | None = None
        self.is_broken = False

    @property
    def has_begun(self) -> bool:
        """Say whether anything was written."""
        return self._transport is not None

    async def begin(self) -> bool:
        """Write the head; False: the agent is gone."""
        if self._agent.version >= HttpVersion11:
            self.enable_chunked_encoding()
        with contextlib.suppress(ConnectionError):
            writer = await self.prepare(self._agent)
            if writer is not None and self._agent.transport is not None:
                writer.send_headers()
                self._transport = self._agent.transport
                return True
        return False

    def put(self, chunk: bytes) -> bool:
        """Write some of the body, after `begin`.

        Returns:
            Whether `drain` must be awaited before the next one.

        Raises:
            ConnectionError: The agent is gone.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self.chunked else chunk)
        return transport.get_write_buffer_size() > _MOST_UNREAD_BYTES

    async def drain(self) -> None:
        """Wait until the agent has read most of what was written.

        Raises:
            ConnectionError: The agent is gone.
        """
        await self._agent.protocol._drain_helper()  # noqa: SLF001 - it has no public name

    async def finish(self) -> None:
        """End it, or cut it where it is not whole."""
        with contextlib.suppress(ConnectionError):
            if self.is_broken and self._agent.transport is not None:
                self._agent.transport.abort()

    def response(self) -> web.StreamResponse:
        """Give what the agent gets where nothing came."""
        return self


class Whole:
    """An answer that is passed on once it is there."""

    def __init__(self, headers: Headers) -> None:
        """Begin empty."""
        self._headers = headers
        self._body = bytearray()

    async def begin(self) -> bool:
        """Do nothing: the head goes with the body."""
        return True

    def put(self, chunk: bytes) -> bool:
        """Keep some of the body.

        Raises:
            TooLargeError: It is more than is kept.
        """
        self._body += chunk
        if len(self._body) > MOST_ANSWER_BYTES:
            raise TooLargeError
        return False

    async def drain(self) -> None:
        """Do nothing: nobody reads yet."""

    def response(self) -> web.StreamResponse:
        """Give the answer."""
        return web.Response(status=200, headers=self._headers, body=bytes(self._body))
