"""Routes whose request and answer stream at the same time: an attached exec, a port inside.

The answer begins as soon as the way inside stands; the request's body goes in while the answer's
comes out, and each side waits for the other as a pipe does. Nothing is kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from forkyard.base.masking import Masker
from forkyard.model.ids import ExecId
from forkyard.server.execs import find_exec
from forkyard.server.finding import find_workspace
from forkyard.server.table import Call, bad_query
from forkyard.wire.frames import END, ERROR_OUTPUT, OUTPUT, FrameBuffer, frame
from forkyard.workspace.interface import Line

CHUNK_BYTES = 256 * 1024
QUIET_SECONDS = 0.05
"""What may be the beginning of a secret is held back; on a terminal no longer than this."""

MOST_PORT = 65535

Pump = Callable[["Body"], Awaitable[None]]


class _GoneError(Exception):
    """The client went away."""


class Body:
    """A request's body, as it comes."""

    def __init__(self, receive: Receive) -> None:
        """Read nothing yet."""
        self._receive = receive

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give it piece by piece.

        It ends with an exception of ours where the client goes away.
        """
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def gone(self) -> None:
        """Wait until the client is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            continue


class Duplex(Response):
    """An answer whose content comes while the request's is still being taken."""

    def __init__(self, source: AsyncIterator[bytes], sink: Pump, close: Callable[[], None]) -> None:
        """Keep both ways; neither is begun.

        Args:
            source: What the client gets, to its end.
            sink: Takes the request's body.
            close: Lets go of what is behind both.
        """
        super().__init__(media_type="application/octet-stream")
        self._source, self._sink, self._close = source, sink, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Serve both ways until the answer is over or the client gone."""
        body = Body(receive)
        headers = [(b"content-type", b"application/octet-stream"), (b"connection", b"close")]
        start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        incoming = asyncio.ensure_future(self._take(body))
        outgoing = asyncio.ensure_future(self._give(send))
        try:
            await send(start)
            await asyncio.wait({incoming, outgoing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (incoming, outgoing):
                task.cancel()
            await asyncio.gather(incoming, outgoing, return_exceptions=True)
            # Not before: the number of a closed descriptor may be another connection's by then.
            self._close()

    async def _take(self, body: Body) -> None:
        """Take the body, then only watch whether the client is there."""
        with contextlib.suppress(_GoneError):
            # What takes no more may still have something to say.
            with contextlib.suppress(OSError):
                await self._sink(body)
            await body.gone()

    async def _give(self, send: Send) -> None:
        with contextlib.suppress(ConnectionError):
            async for chunk in self._source:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# -- execs -----------------------------------------------------------------------------------


async def attach(call: Call) -> Response:
    """Attach to an exec that runs, or is just being asked for."""
    services = call.services
    text = call.parameters["id"]
    identity = ExecId(text)
    if identity not in services.journal.state.execs and not _is_whole(text):
        identity = find_exec(services, text).id
    line = await services.workspaces.attach_exec(identity)
    if line is None:
        return Response(frame(END), media_type="application/octet-stream")
    row = services.journal.state.execs[identity]
    release = services.presence.hold(row.workspace)

    def close() -> None:
        release()
        line.writer.close()

    async def sink(body: Body) -> None:
        async for chunk in body.chunks():
            line.writer.write(chunk)
            await line.writer.drain()

    # A file that is copied comes as it is; its copy would be damaged, not made safe.
    masker = services.masker if row.spec.copy is None else Masker()
    output = masked(line, masker, is_terminal=row.spec.terminal is not None)
    return Duplex(output, sink, close)


def _is_whole(text: str) -> bool:
    return text.startswith("exec_") and len(text) >= len("exec_") + 12


async def masked(line: Line, masker: Masker, *, is_terminal: bool) -> AsyncIterator[bytes]:
    """Give an exec's frames, secrets masked in each stream of its output."""
    if masker.is_idle:
        while chunk := await line.reader.read(CHUNK_BYTES):
            yield chunk
        return
    output = _MaskedFrames(masker)
    chunk = b"."
    while chunk:
        reading = asyncio.ensure_future(line.reader.read(CHUNK_BYTES))
        try:
            if is_terminal:
                await asyncio.wait({reading}, timeout=QUIET_SECONDS)
            if is_terminal and not reading.done() and (held := output.rest()):
                yield held
            chunk = await reading
        finally:
            reading.cancel()
        given = output.feed(chunk) if chunk else output.rest()
        if given:
            yield given


class _MaskedFrames:
    """Frames with the secrets in their streams masked."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._buffer = FrameBuffer()
        self._streams = {kind: masker.stream() for kind in (OUTPUT, ERROR_OUTPUT)}

    def feed(self, chunk: bytes) -> bytes:
        given: list[bytes] = []
        for kind, content in self._buffer.feed(chunk):
            if kind not in self._streams:
                given += (self.rest(), frame(kind, content))
            elif certain := self._streams[kind].feed(content):
                given.append(frame(kind, certain))
        return b"".join(given)

    def rest(self) -> bytes:
        """Give what was held back; the streams begin anew."""
        given: list[bytes] = []
        for kind, stream in self._streams.items():
            if held := stream.finish():
                given.append(frame(kind, held))
            self._streams[kind] = self._masker.stream()
        return b"".join(given)


# -- ports -----------------------------------------------------------------------------------


async def connect(call: Call) -> Response:
    """Connect to a port inside a workspace, which is started where it does not run."""
    services = call.services
    port = call.number("port", 0)
    if not 1 <= port <= MOST_PORT:
        raise bad_query("port", f"must be 1 to {MOST_PORT}, not {port}")
    workspace = find_workspace(services, call.parameters["id"])
    made = await services.workspaces.connect(workspace.id, port)
    release = services.presence.hold(workspace.id)
    loop = asyncio.get_running_loop()

    def close() -> None:
        release()
        made.close()

    async def sink(body: Body) -> None:
        async for chunk in body.chunks():
            await loop.sock_sendall(made, chunk)
        made.shutdown(socket.SHUT_WR)

    async def source() -> AsyncIterator[bytes]:
        while chunk := await loop.sock_recv(made, CHUNK_BYTES):
            yield chunk

    return Duplex(source(), sink, close)
