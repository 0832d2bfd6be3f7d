"""Work that goes on to its end when whoever asked for it stops waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

_Result = TypeVar("_Result")


class Background:
    """Keeps running work until it is over."""

    def __init__(self) -> None:
        """Start with none."""
        self._tasks: set[asyncio.Task[object]] = set()

    async def finish(self, work: Coroutine[object, object, _Result]) -> _Result:
        """Wait for work that goes on when the waiting is cancelled."""
        return await asyncio.shield(self.spawn(work))

    def spawn(self, work: Coroutine[object, object, _Result]) -> asyncio.Task[_Result]:
        """Start work and keep it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def close(self, patience_seconds: float) -> None:
        """Let what runs come to its end for a while, then cancel it."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _forget(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody else needs to be told twice
