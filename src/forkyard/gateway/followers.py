"""Telling whoever follows that something of a run has changed, without ever waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from forkyard.model.ids import RunId


class Followers:
    """Those who follow; each learns of each changed run once, however often it changed."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._all: set[_Follower] = set()

    def touched(self, run: RunId) -> None:
        """Say that a run has changed."""
        for follower in self._all:
            follower.runs.add(run)
            follower.event.set()

    async def follow(self, known: Iterable[RunId]) -> AsyncIterator[RunId]:
        """Give the runs that are known, then each one that changes, until the caller stops."""
        follower = _Follower(known)
        self._all.add(follower)
        try:
            while True:
                await follower.event.wait()
                follower.event.clear()
                while follower.runs:
                    yield follower.runs.pop()
        finally:
            self._all.discard(follower)


class _Follower:
    def __init__(self, known: Iterable[RunId]) -> None:
        self.runs = set(known)
        self.event = asyncio.Event()
        self.event.set()
