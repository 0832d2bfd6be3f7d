"""The gateway's HTTP servers: one per listening socket that a shim handed over.

Who connects to a socket is the workspace it was made for; nothing in a request can say otherwise.
The parser is aiohttp's strict one: two lengths, a length beside chunks, folded or nameless headers
never reach a handler. Upgrades are told to the handler like any other request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from forkyard.model.ids import WorkspaceId

MOST_CONNECTIONS = 256
"""Of one listening socket; agents use a handful."""
KEEPALIVE_SECONDS = 75.0
"""For the next request, and for the first head of a connection to be whole."""
_MOST_HEADERS = 100
_MOST_FIELD_BYTES = 16 * 1024
_MOST_LINE_BYTES = 8 * 1024
_READ_BYTES = 256 * 1024
_CUT_SECONDS = 5.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Listener:
    """One listening socket of one workspace for one provider."""

    def __init__(self, listener: socket.socket, workspace: WorkspaceId, provider: str) -> None:
        """Keep the socket; nothing is accepted before `open`, connections wait in its queue."""
        listener.settimeout(0)
        self.workspace = workspace
        self.provider = provider
        self._socket = listener
        self._web: web.Server | None = None
        self._server: asyncio.Server | None = None
        self._is_discarded = False
        self._turn = asyncio.Lock()
        """A close that comes while it opens would find nothing to close."""

    async def open(self, handler: Handler) -> None:
        """Begin to accept. Idempotent, and nothing once it is discarded."""
        async with self._turn:
            if self._web is None and not self._is_discarded:
                await self._open(handler)

    async def _open(self, handler: Handler) -> None:
        served = _Server(
            handler,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            max_line_size=_MOST_LINE_BYTES,
            max_field_size=_MOST_FIELD_BYTES,
            max_headers=_MOST_HEADERS,
            read_bufsize=_READ_BYTES,
            lingering_time=1.0,
            auto_decompress=False,
        )
        # Closing a server closes its socket; ours has to stay, for the next grant.
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(served, sock=self._socket.dup(), backlog=1024)
        self._web = served

    async def close(self) -> None:
        """Stop accepting and cut every connection; the socket stays. Idempotent."""
        async with self._turn:
            await self._close()

    async def _close(self) -> None:
        server, self._server = self._server, None
        served, self._web = self._web, None
        if server is None or served is None:
            return
        server.close()
        for connection in served.connections:
            # Cancels what answers it: that settles, reading on where it is worth it.
            if connection.transport is not None:
                connection.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CUT_SECONDS):
                await served.shutdown(_CUT_SECONDS)

    async def discard(self) -> None:
        """Close it for good. Idempotent."""
        self._is_discarded = True
        await self.close()
        self._socket.close()


class _Server(web.Server):
    """Refuses connections past a limit."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection, or end it at once."""
        super().connection_made(handler, transport)
        if len(self._connections) > MOST_CONNECTIONS:
            transport.abort()
