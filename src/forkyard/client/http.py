"""HTTP/1.1 to our own server over a unix socket, as little of it as that takes.

It speaks to one peer, which is ours: status line, content-length or chunks, keep-alive. Measured
against a general library it saves about a millisecond a request and most of the import time; both
are felt, since a whole exec takes only a few (docs/decisions). Not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 60.0
"""Shorter than the server's, so that a request never meets a connection that is being closed."""

MOST_IDLE = 256
CHUNK_BYTES = 64 * 1024
MOST_HEADER_BYTES = 64 * 1024


class LostError(Exception):
    """The server went away, or never was there."""


class NotReachedError(LostError):
    """Not a byte of the request can have been seen."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the request was done."""
        return 200 <= self.status < 300  # noqa: PLR2004 - HTTP: the successes


@dataclass(slots=True)
class _Head:
    status: int
    length: int | None
    """Bytes of the body; None where it comes in chunks."""
    is_kept: bool


@dataclass(slots=True)
class _Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0

    def is_usable(self, now: float) -> bool:
        return (
            now - self.idle_since < KEEP_ALIVE_SECONDS
            and not self.reader.at_eof()
            and not self.writer.is_closing()
            and not self._has_news()
        )

    def _has_news(self) -> bool:
        """Whether the kernel knows of an end (or of bytes nobody asked for) that we have not read.

        The event loop may not have had a turn since; and a request sent into a closed connection
        could not be told from one that was acted on.
        """
        news = select.poll()
        news.register(self.writer.get_extra_info("socket"), select.POLLIN | select.POLLHUP)
        return bool(news.poll(0))


@dataclass(slots=True)
class StreamedAnswer:
    """An answer that is read piece by piece."""

    status: int
    chunks: AsyncIterator[bytes]

    @property
    def is_success(self) -> bool:
        """Whether the request was done."""
        return 200 <= self.status < 300  # noqa: PLR2004 - HTTP: the successes

    async def read(self) -> bytes:
        """Read what is left."""
        return b"".join([chunk async for chunk in self.chunks])

    async def lines(self) -> AsyncIterator[str]:
        """Give the lines of a text answer as they come."""
        waiting = b""
        async for chunk in self.chunks:
            *whole, waiting = (waiting + chunk).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")


@dataclass(slots=True)
class DuplexAnswer(StreamedAnswer):
    """An answer that is read while the request is still being written."""

    writer: asyncio.StreamWriter

    async def write(self, content: bytes) -> None:
        """Send a piece of the request; waits while the server takes no more.

        Raises:
            LostError: The server went away.
        """
        if not content:
            return
        with _lost_otherwise():
            self.writer.writelines((b"%x\r\n" % len(content), content, b"\r\n"))
            await self.writer.drain()

    async def end(self) -> None:
        """Say that the request is whole."""
        with _lost_otherwise():
            self.writer.write(b"0\r\n\r\n")
            await self.writer.drain()


@dataclass(slots=True)
class Http:
    """A pool of connections to one socket, whose path may be of any length."""

    socket: Path
    _directory: int = -1
    _idle: list[_Wire] = field(default_factory=list)

    async def request(
        self, method: str, target: str, body: bytes | None, timeout_seconds: float | None
    ) -> Answer:
        """Send a request and read the whole answer.

        Raises:
            NotReachedError: Nobody listens, so nothing was asked.
            LostError: The server went away before it had answered; it may have acted.
            TimeoutError: No whole answer in time.

        Cancellation:
            Safe; the connection is dropped, the server may still act.
        """
        async with self._exchange(method, target, body, timeout_seconds) as (wire, head):
            content = b"".join([chunk async for chunk in _body(wire, head)])
            self._keep(wire, head)
            return Answer(head.status, content)

    @asynccontextmanager
    async def stream(self, target: str) -> AsyncIterator[StreamedAnswer]:
        """Ask for something that is read piece by piece; raises as `request`."""
        async with self._exchange("GET", target, None, None) as (wire, head):
            yield StreamedAnswer(head.status, _body(wire, head))

    @asynccontextmanager
    async def duplex(self, target: str) -> AsyncIterator[DuplexAnswer]:
        """Ask for something whose request and answer stream at the same time.

        On a connection of its own, which is dropped in the end. Raises as `request`.
        """
        wire = await self._opened()
        try:
            lines = [f"POST {target} HTTP/1.1", "host: forkyard", "transfer-encoding: chunked"]
            with _lost_otherwise():
                wire.writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
                head = _read_head(await wire.reader.readuntil(b"\r\n\r\n"))
            yield DuplexAnswer(head.status, _guarded(_body(wire, head)), wire.writer)
        finally:
            _drop(wire)

    def close(self) -> None:
        """Drop every idle connection; the next request opens another."""
        idle, self._idle = self._idle, []
        for wire in idle:
            _drop(wire)
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)

    @asynccontextmanager
    async def _exchange(
        self, method: str, target: str, body: bytes | None, timeout_seconds: float | None
    ) -> AsyncIterator[tuple[_Wire, _Head]]:
        wire = await self._connected()
        try:
            async with asyncio.timeout(timeout_seconds):
                wire.writer.write(_request(method, target, body))
                head = _read_head(await wire.reader.readuntil(b"\r\n\r\n"))
                yield wire, head
        except (OSError, EOFError, asyncio.LimitOverrunError, _MalformedError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise LostError(str(error) or type(error).__name__) from error
        finally:
            if wire not in self._idle:
                _drop(wire)

    async def _connected(self) -> _Wire:
        now = asyncio.get_running_loop().time()
        while self._idle:
            wire = self._idle.pop()
            if wire.is_usable(now):
                return wire
            _drop(wire)
        return await self._opened()

    async def _opened(self) -> _Wire:
        try:
            if self._directory < 0:
                # A unix socket's address is 107 bytes at most; through a descriptor of its
                # directory the path may be as long as it likes.
                self._directory = os.open(
                    self.socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                )
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(
                    f"/proc/self/fd/{self._directory}/{self.socket.name}",
                    limit=MOST_HEADER_BYTES,
                )
        except OSError as error:
            raise NotReachedError(error.strerror or str(error)) from error
        return _Wire(reader, writer)

    def _keep(self, wire: _Wire, head: _Head) -> None:
        if head.is_kept and len(self._idle) < MOST_IDLE:
            wire.idle_since = asyncio.get_running_loop().time()
            self._idle.append(wire)


class _MalformedError(Exception):
    """What came is not HTTP."""


def target_of(path: str, query: Mapping[str, str] | None = None) -> str:
    """Write a request's target; what people typed cannot end the line or start a query."""
    target = quote(path, safe="/", errors="surrogateescape")
    return f"{target}?{urlencode(query)}" if query else target


def _request(method: str, target: str, body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "host: forkyard"]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    elif method != "GET":
        lines.append("content-length: 0")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


def _read_head(raw: bytes) -> _Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():  # noqa: PLR2004 - version and status
        raise _MalformedError(f"not an answer: {first[:80]!r}")
    headers = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines)
        if colon
    }
    is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    length = headers.get("content-length", "0")
    if not is_chunked and not length.isdigit():
        raise _MalformedError(f"not a length: {length[:80]!r}")
    return _Head(
        status=int(words[1]),
        length=None if is_chunked else int(length),
        is_kept=headers.get("connection", "").lower() != "close",
    )


async def _body(wire: _Wire, head: _Head) -> AsyncIterator[bytes]:
    reader = wire.reader
    if head.length is not None:
        left = head.length
        while left:
            chunk = await reader.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise EOFError("the answer ends too early")
            left -= len(chunk)
            yield chunk
        return
    while True:
        line = await reader.readuntil(b"\r\n")
        try:
            size = int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise _MalformedError(f"not a chunk: {line[:80]!r}") from error
        left = size
        while left:
            chunk = await reader.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise EOFError("the answer ends too early")
            left -= len(chunk)
            yield chunk
        await reader.readexactly(2)
        if size == 0:
            return


@contextlib.contextmanager
def _lost_otherwise() -> Iterator[None]:
    """Say of whatever goes wrong with the connection that the server is lost."""
    try:
        yield
    except (OSError, EOFError, asyncio.LimitOverrunError, _MalformedError) as error:
        raise LostError(str(error) or type(error).__name__) from error


async def _guarded(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        with _lost_otherwise():
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
        yield chunk


def _drop(wire: _Wire) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        wire.writer.transport.abort()
