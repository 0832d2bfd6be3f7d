"""Connections to the providers: fixed addresses, verified TLS, no redirects, no proxy of anybody's.

A silent provider is found by a look once a second over all exchanges that are under way, not by a
timer per chunk: at thousands of events a second timers cost more than passing the bytes on.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import aiohttp
from yarl import URL

from forkyard.gateway.interface import Provider
from forkyard.gateway.keys import Key
from forkyard.gateway.protocols.interface import ModelProtocol, Rebuilt
from forkyard.model.ids import WorkspaceId

CONNECT_SECONDS = 10.0
_KEPT_SECONDS = 20.0
"""Providers keep an idle connection for longer than this, so one that is used again lives."""
_LOOK_SECONDS = 1.0
_READ_BYTES = 64 * 1024
_MOST_FIELD_BYTES = 32 * 1024


class Stalled(Exception):  # noqa: N818 - an event of the exchange, not an error of ours
    """The provider was silent for longer than its patience."""


class Patience:
    """Watches one exchange; `heard` is all that a chunk costs."""

    __slots__ = (
        "_deadline",
        "_loop",
        "_ping_seconds",
        "_said",
        "_task",
        "has_ended",
        "is_late",
        "limit_seconds",
        "since",
    )

    def __init__(self, limit_seconds: float, most_seconds: float) -> None:
        """Begin to count now, for the task that runs."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.limit_seconds = limit_seconds
        self.since = self._said = self._loop.time()
        self._ping_seconds = 0.0
        self._deadline = self.since + most_seconds
        self.has_ended = False
        """It has interrupted its task, or is over."""
        self.is_late = False
        """What it interrupted had taken too long, silent or not."""

    def heard(self) -> None:
        """Begin to count again: something was said."""
        self.since = self._said = self._loop.time()

    def pinged(self) -> None:
        """Begin to count again, unless nothing but this has come for too long."""
        now = self._loop.time()
        if now - self._said < self._ping_seconds:
            self.since = now

    def wait_longer(self, limit_seconds: float, ping_seconds: float) -> None:
        """Change how much silence is borne from now on, and how much of nothing but pings."""
        self.limit_seconds, self._ping_seconds = limit_seconds, ping_seconds
        self.heard()

    def absorb(self) -> None:
        """Take the interruption back: it was understood where it arrived."""
        if self._task is not None:
            self._task.uncancel()

    def look(self, now: float) -> None:
        """Interrupt the exchange where it has been silent or under way for too long."""
        if self.has_ended or self._task is None:
            return
        self.is_late = now > self._deadline
        if self.is_late or now - self.since > self.limit_seconds:
            self.has_ended = True
            self._task.cancel()


class Upstream:
    """The HTTP clients of this process: connections are used again, but by the same workspace."""

    def __init__(self) -> None:
        """Load the certificates; nothing is opened yet."""
        self._tls = ssl.create_default_context()
        self._sessions: dict[WorkspaceId, aiohttp.ClientSession] = {}
        self._watched: set[Patience] = set()
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Be ready to send."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cut what is under way."""
        if self._watcher is not None:
            self._watcher.cancel()
        for workspace in tuple(self._sessions):
            await self.forget(workspace)

    async def forget(self, workspace: WorkspaceId) -> None:
        """Close the connections of a workspace. Idempotent."""
        session = self._sessions.pop(workspace, None)
        if session is not None:
            await session.close()

    def _session(self, workspace: WorkspaceId) -> aiohttp.ClientSession:
        found = self._sessions.get(workspace)
        if found is None:
            found = self._sessions[workspace] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    ssl=self._tls,
                    keepalive_timeout=_KEPT_SECONDS,
                    ttl_dns_cache=60,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                raise_for_status=False,
                read_bufsize=_READ_BYTES,
                max_field_size=_MOST_FIELD_BYTES,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            )
        return found

    @asynccontextmanager
    async def patience(self, limit_seconds: float, most_seconds: float) -> AsyncIterator[Patience]:
        """Bear so much silence within the block, and so much time in all.

        Raises:
            Stalled: There was more of it; raised in place of what the wait was interrupted by.
        """
        patience = Patience(limit_seconds, most_seconds)
        self._watched.add(patience)
        try:
            yield patience
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if patience.has_ended and task is not None and task.uncancel() == 0:
                raise Stalled from None
            raise
        finally:
            patience.has_ended = True
            self._watched.discard(patience)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = loop.time()
            for patience in tuple(self._watched):
                patience.look(now)

    async def send(
        self,
        workspace: WorkspaceId,
        provider: Provider,
        protocol: ModelProtocol,
        rebuilt: Rebuilt,
        key: Key | None,
    ) -> aiohttp.ClientResponse:
        """Send one rebuilt request and wait for the head of its answer.

        Raises:
            aiohttp.ClientError: It could not be reached, or broke off.
        """
        headers = list(rebuilt.headers)
        if key is not None:
            headers += protocol.key_headers(key.reveal())
        return await self._session(workspace).request(
            rebuilt.method,
            URL(provider.base_url.rstrip("/") + rebuilt.path, encoded=True),
            data=io.BytesIO(rebuilt.body) if rebuilt.body else None,  # written piece by piece
            headers=headers,
            allow_redirects=False,
        )
