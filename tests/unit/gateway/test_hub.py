"""The gateway's state in one process, over a real ledger and real sockets, without any model."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from forkyard.errors import StoreError
from forkyard.gateway.control import Control
from forkyard.gateway.hub import Hub
from forkyard.gateway.keys import KeyRing
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.upstream import Upstream
from gateways import grant_for

PATIENCE = 20.0


def run(scene: Callable[[], Awaitable[None]]) -> None:
    """Tell a scene."""

    async def told() -> None:
        async with asyncio.timeout(PATIENCE):
            await scene()

    asyncio.run(told())


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Hub]:
    """Have a hub within the block."""
    ledger = await Ledger.open(folder / "ledger.db", allow_volatile=True)
    try:
        async with Upstream() as upstream:
            yield Hub(KeyRing(), ledger, upstream)
    finally:
        await ledger.close()


@contextmanager
def no_room() -> Iterator[None]:
    """Have the kernel refuse every write to a file of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_gateway_ends_when_its_ledger_cannot_be_written_any_more(tmp_path: Path) -> None:
    """Another process can open the file anew; this one never could again."""

    async def scene() -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.settimeout(0)
        async with opened(tmp_path) as hub:
            control = Control(hub, listener, os.getuid())
            serving = asyncio.create_task(control.serve())
            with no_room(), pytest.raises(StoreError):
                await hub.grant(grant_for())
            await serving
            assert control.quitting.is_set()
        async with opened(tmp_path) as anew:
            await anew.grant(grant_for())

    run(scene)
