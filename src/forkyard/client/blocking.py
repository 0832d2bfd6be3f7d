"""The same client without async: one background thread runs the event loop, calls wait for it.

Nothing is written twice: a blocking object stands before an async one and translates each call.
Coroutines become calls, async iterators become iterators, async context managers become plain
ones, and SDK objects that come back are wrapped alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from forkyard.client.agents import Agents
from forkyard.client.candidates import Candidates
from forkyard.client.client import Client
from forkyard.client.events import Events
from forkyard.client.resources import Runs, Snapshots, Templates
from forkyard.client.secrets import Secrets
from forkyard.client.workspaces import Workspace, Workspaces

T = TypeVar("T")

_WRAPPED = (Events, Templates, Snapshots, Runs, Candidates, Workspaces, Workspace, Secrets, Agents)


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forkyard", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there; an interrupt here cancels it there and waits for its clean-up."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                with contextlib.suppress(BaseException):
                    asyncio.run_coroutine_threadsafe(_settle(), self._loop).result()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _settle() -> None:
    """Wait until whatever was cancelled on this loop is over; its clean-ups are bounded."""
    current = asyncio.current_task()
    others = [one for one in asyncio.all_tasks() if one is not current and one.cancelling()]
    if others:
        await asyncio.wait(others)


class Blocking:
    """One SDK object, seen without async. Attributes are those of the object it stands for."""

    def __init__(self, loop: _Loop, target: object) -> None:
        """Stand before an async object."""
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for whatever is behind
        """Give the attribute, translated."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._target, name)
        if callable(value) and not inspect.isclass(value):
            return self._translated(value)
        return self._wrapped(value)

    def __repr__(self) -> str:
        """Say what it stands for."""
        return f"Blocking({self._target!r})"

    def _translated(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            answer = function(*arguments, **options)
            if inspect.iscoroutine(answer):
                return self._wrapped(self._loop.wait(answer))
            if isinstance(answer, AbstractAsyncContextManager):
                return self._managed(answer)
            if isinstance(answer, AsyncIterator):
                return self._iterated(answer)
            return self._wrapped(answer)

        call.__doc__ = function.__doc__
        return call

    def _wrapped(self, value: object) -> object:
        return Blocking(self._loop, value) if isinstance(value, _WRAPPED) else value

    def _iterated(self, source: AsyncIterator[object]) -> Iterator[object]:
        end = object()

        async def following() -> object:
            return await anext(source, end)

        async def closing() -> None:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()

        try:
            while (value := self._loop.wait(following())) is not end:
                yield self._wrapped(value)
        finally:
            self._loop.wait(closing())

    @contextlib.contextmanager
    def _managed(self, manager: AbstractAsyncContextManager[object]) -> Iterator[object]:
        async def entering() -> object:
            return await manager.__aenter__()

        async def leaving(
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> bool | None:
            return await manager.__aexit__(kind, error, traceback)

        value = self._loop.wait(entering())
        try:
            yield self._wrapped(value)
        except BaseException as error:
            if not self._loop.wait(leaving(type(error), error, error.__traceback__)):
                raise
        else:
            self._loop.wait(leaving(None, None, None))


class BlockingClient(Blocking):
    """`Client` without async. Use it as a context manager; from any one thread at a time.

    Example:
        >>> with forkyard.connect_blocking() as fy:
        ...     with fy.workspaces.run(snapshot="issue-1842") as workspace:
        ...         outcome = workspace.exec("pytest -q")
    """

    def __init__(self, home: str | Path | None = None) -> None:
        """Make a client of its own; see `Client`."""
        self._client = Client(home)
        super().__init__(_Loop(), self._client)

    def __enter__(self) -> Self:
        """Make sure that a server of our version answers."""
        try:
            self._loop.wait(self._client.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection and end the thread; the server goes on."""
        try:
            self._loop.wait(self._client.close())
        finally:
            self._loop.close()


def connect_blocking(home: str | Path | None = None) -> BlockingClient:
    """Give a blocking client for ``with``; a server is started where none runs."""
    return BlockingClient(home)
