"""Small parts of passing an answer on: the stream to the agent, and how much silence is borne."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from aiohttp import HttpVersion11, web

from forkyard.gateway.answers import Headers
from forkyard.gateway.interface import Provider
from forkyard.gateway.protocols.interface import Reading


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
    """An answer that is passed on while it comes."""

    def __init__(self, request: web.BaseRequest, headers: Headers) -> None:
        super().__init__(status=200, headers=headers)
        self._agent = request
        self._has_begun = False
        self.is_broken = False

    async def send(self, chunk: bytes) -> None:
        """Write some of it; waits only where the agent reads more slowly than it comes.

        Raises:
            ConnectionError: The agent is gone.
        """
        if not self._has_begun:
            await self._begin()
        await self.write(chunk)

    async def _begin(self) -> None:
        self._has_begun = True
        if self._agent.version >= HttpVersion11:
            self.enable_chunked_encoding()
        await self.prepare(self._agent)

    async def finish(self) -> None:
        """End it, or cut it where it is not whole."""
        with contextlib.suppress(ConnectionError):
            if self.is_broken and self._agent.transport is not None:
                self._agent.transport.abort()
            elif not self._has_begun:
                await self._begin()
