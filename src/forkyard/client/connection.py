"""Conversation with the server: errors as exceptions, and waits that survive the server.

Each request is tried again after a lost connection only where asking twice is harmless: reading,
deleting, stopping, and running an exec by its id.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from forkyard.client.http import (
    DuplexAnswer,
    Http,
    LostError,
    NotReachedError,
    StreamedAnswer,
    target_of,
)
from forkyard.errors import InternalError, StoreError
from forkyard.wire.errors import from_wire

TRIES = 5

M = TypeVar("M", bound=BaseModel)


class Connection:
    """One installation's server, wherever it is just now. Not thread-safe."""

    def __init__(self, socket: Path, revive: Callable[[], Awaitable[None]]) -> None:
        """Keep where the socket is; nothing is opened until the first request.

        Args:
            socket: Path of the unix socket, of any length.
            revive: Makes sure that a server listens; called after a connection was lost.
        """
        self._http = Http(socket)
        self._revive = revive

    def close(self) -> None:
        """Close what is open; the next request opens it again."""
        self._http.close()

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
        target = target_of(path, query)
        for attempt in range(1, TRIES + 1):
            try:
                answer = await self._http.request(method, target, content, timeout_seconds)
            except TimeoutError as error:
                raise StoreError(
                    f"cannot get an answer to {method} {path}: nothing for {timeout_seconds:g} s",
                    hint="Look at server.log in the state directory.",
                ) from error
            except LostError as error:
                self.close()
                never_sent = isinstance(error, NotReachedError)
                if attempt == TRIES or not (repeat or never_sent):
                    raise lost(method, path, error) from error
                await self._revive()
                continue
            if answer.is_success:
                return answer.body
            raise from_wire(answer.body, status=answer.status)
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
                async with self.open(path, parameters) as answer:
                    async for chunk in answer.chunks:
                        offset += len(chunk)
                        failures = 0
                        yield chunk
            except LostError as error:
                failures += 1
                if failures == TRIES:
                    raise lost("GET", path, error) from error
                parameters["offset"] = str(offset)
                self.close()
                await self._revive()
                continue
            return

    @asynccontextmanager
    async def open(
        self, path: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamedAnswer]:
        """Open an answer that is read piece by piece.

        Raises:
            ForkyardError: Whatever the server raised.
            LostError: The server went away; the caller knows how to go on.
        """
        async with self._http.stream(target_of(path, query)) as answer:
            if not answer.is_success:
                raise from_wire(await answer.read(), status=answer.status)
            yield answer

    @asynccontextmanager
    async def duplex(
        self, path: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[DuplexAnswer]:
        """Open a request and its answer that stream at the same time.

        Raises:
            ForkyardError: Whatever the server raised.
            LostError: The server went away; what was under way goes on without us.
        """
        target = target_of(path, query)
        async with AsyncExitStack() as stack:
            answer = await self._both_ways(stack, target)
            if not answer.is_success:
                raise from_wire(await answer.read(), status=answer.status)
            yield answer

    async def _both_ways(self, stack: AsyncExitStack, target: str) -> DuplexAnswer:
        for _ in range(1, TRIES):
            # Nothing is said yet but where to: that may be asked of the next server.
            with contextlib.suppress(LostError):
                return await stack.enter_async_context(self._http.duplex(target))
            await self._revive()
        return await stack.enter_async_context(self._http.duplex(target))


def lost(method: str, path: str, error: LostError) -> StoreError:
    """Say that the server went away."""
    return StoreError(
        f"cannot finish {method} {path}: the server went away ({error})",
        hint="Ask again; look at server.log in the state directory if it happens twice.",
    )


def _unreadable(method: str, path: str) -> InternalError:
    return InternalError(
        f"cannot read the answer to {method} {path}: it is not what this version expects",
        hint="Use the same version of Forkyard everywhere.",
    )
