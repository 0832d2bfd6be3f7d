"""HTTP over the server's unix socket: errors as exceptions, and waits that survive the server.

Each request is tried again after a lost connection only where asking twice is harmless: reading,
deleting, stopping, and running an exec by its id.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError

from forkyard.errors import InternalError, StoreError
from forkyard.wire.errors import from_wire

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 60.0
"""Shorter than the server's, so that a request never meets a connection that is being closed."""

MOST_CONNECTIONS = 256
TRIES = 5

M = TypeVar("M", bound=BaseModel)

LOST = (httpx2.ConnectError, httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
"""The server went away before it answered."""


class Connection:
    """One installation's server, wherever it is just now. Not thread-safe."""

    def __init__(self, socket: Path, revive: Callable[[], Awaitable[None]]) -> None:
        """Keep where the socket is; nothing is opened until the first request.

        Args:
            socket: Path of the unix socket, of any length.
            revive: Makes sure that a server listens; called after a connection was lost.
        """
        self._socket = socket
        self._revive = revive
        self._directory = -1
        self._http: httpx2.AsyncClient | None = None

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            # A unix socket's address is 107 bytes at most; through a descriptor of its
            # directory the path may be as long as it likes.
            try:
                self._directory = os.open(
                    self._socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                )
            except OSError as error:
                raise httpx2.ConnectError(str(error)) from error
            limits = httpx2.Limits(
                max_connections=MOST_CONNECTIONS,
                max_keepalive_connections=MOST_CONNECTIONS,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
            )
            transport = httpx2.AsyncHTTPTransport(
                uds=f"/proc/self/fd/{self._directory}/{self._socket.name}",
                # No TLS on this socket: an empty context spares reading certificates.
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                trust_env=False,
                limits=limits,
            )
            self._http = httpx2.AsyncClient(
                transport=transport,
                base_url="http://forkyard",
                timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
                trust_env=False,
                limits=limits,
            )
        return self._http

    async def close(self) -> None:
        """Close what is open; the next request opens it again."""
        http, self._http = self._http, None
        directory, self._directory = self._directory, -1
        if http is not None:
            await http.aclose()
        if directory >= 0:
            os.close(directory)

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | None = None,
        query: Mapping[str, str] | None = None,
        may_repeat: bool | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Send one request and give the body of its answer.

        Args:
            method: HTTP method.
            path: Below the server's root.
            body: JSON to send.
            query: Query parameters.
            may_repeat: Whether to ask again after a lost connection; by default reads and
                deletions are.
            timeout_seconds: Bound of the wait for the answer; None: as long as it takes.

        Raises:
            ForkyardError: Whatever the server raised.
            StoreError: The server cannot be reached or went away.
        """
        repeat = may_repeat if may_repeat is not None else method in {"GET", "DELETE"}
        content = None if body is None else body.model_dump_json(exclude_unset=True).encode()
        timeout = httpx2.Timeout(timeout_seconds, connect=CONNECT_SECONDS)
        for attempt in range(1, TRIES + 1):
            try:
                response = await self._client().request(
                    method, path, content=content, params=query, timeout=timeout
                )
            except httpx2.TimeoutException as error:
                raise StoreError(
                    f"cannot get an answer to {method} {path}: nothing for"
                    f" {timeout_seconds or CONNECT_SECONDS:g} s",
                    hint="Look at server.log in the state directory.",
                ) from error
            except LOST as error:
                await self.close()
                never_sent = isinstance(error, httpx2.ConnectError)
                if attempt == TRIES or not (repeat or never_sent):
                    raise _lost(method, path, error) from error
                await self._revive()
                continue
            if response.is_success:
                return response.content
            raise from_wire(response.content, status=response.status_code)
        raise AssertionError  # the loop returns or raises

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[M],
        *,
        body: BaseModel | None = None,
        query: Mapping[str, str] | None = None,
        may_repeat: bool | None = None,
        timeout_seconds: float | None = None,
    ) -> M:
        """Send one request and read its answer as a model; see `send`."""
        content = await self.send(
            method,
            path,
            body=body,
            query=query,
            may_repeat=may_repeat,
            timeout_seconds=timeout_seconds,
        )
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise _unreadable(method, path) from error

    async def ask_list(
        self, path: str, answer: type[M], *, query: Mapping[str, str] | None = None
    ) -> list[M]:
        """Read a list of models; see `send`."""
        content = await self.send("GET", path, query=query)
        try:
            return TypeAdapter(list[answer]).validate_json(content)  # type: ignore[valid-type]
        except ValidationError as error:
            raise _unreadable("GET", path) from error

    async def stream(
        self, path: str, *, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """Give an answer's bytes as they come; a follower goes on after a server's restart.

        The query's `offset` is moved past what was given, so nothing comes twice.
        """
        parameters = dict(query or {})
        offset = int(parameters.get("offset", "0"))
        failures = 0
        while True:
            try:
                async with self.open(path, parameters) as response:
                    async for chunk in response.aiter_bytes():
                        offset += len(chunk)
                        failures = 0
                        yield chunk
            except LOST as error:
                failures += 1
                if failures == TRIES:
                    raise _lost("GET", path, error) from error
                parameters["offset"] = str(offset)
                await self.close()
                await self._revive()
                continue
            return

    @asynccontextmanager
    async def open(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Open an answer that is read piece by piece."""
        async with self._client().stream("GET", path, params=query, headers=headers) as response:
            if not response.is_success:
                raise from_wire(await response.aread(), status=response.status_code)
            yield response


def _lost(method: str, path: str, error: Exception) -> StoreError:
    return StoreError(
        f"cannot finish {method} {path}: the server went away"
        f" ({str(error) or type(error).__name__})",
        hint="Ask again; look at server.log in the state directory if it happens twice.",
    )


def _unreadable(method: str, path: str) -> InternalError:
    return InternalError(
        f"cannot read the answer to {method} {path}: it is not what this version expects",
        hint="Use the same version of Forkyard everywhere.",
    )
