"""The gateway's state in one process, over a real ledger and real sockets, without any model."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from forkyard.errors import StoreError
from forkyard.gateway.app import Listener
from forkyard.gateway.control import Control
from forkyard.gateway.hub import Hub
from forkyard.gateway.keys import KeyRing
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.upstream import Upstream
from forkyard.model.ids import new_workspace_id
from gateways import CANARY, grant_for, settings_for

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


def listening() -> tuple[socket.socket, socket.socket]:
    """Listen as a shim does; a second descriptor of the socket stays the test's."""
    made = socket.create_server(("127.0.0.1", 0))
    return made, made.dup()


async def is_accepted_by_another(ours: socket.socket) -> bool:
    """Connect, give everything that accepts its turn, and see whether the connection waits."""
    with socket.create_connection(ours.getsockname()):
        for _ in range(10):
            await asyncio.sleep(0)
        ours.settimeout(0)
        try:
            accepted, _ = ours.accept()
        except BlockingIOError:
            return True
        accepted.close()
        return False


def test_workspace_is_out_when_it_is_revoked_while_its_grant_is_written(tmp_path: Path) -> None:
    """What was asked for last is what holds."""

    async def scene() -> None:
        given, ours = listening()
        async with opened(tmp_path) as hub:
            await hub.configure(settings_for("http://127.0.0.1:1"), {})
            grant = grant_for()
            await hub.hand_over(grant.workspace, {"anthropic": given})
            granting = asyncio.create_task(hub.grant(grant))
            revoking = asyncio.create_task(hub.revoke(grant.workspace))
            await asyncio.gather(granting, revoking)
            assert not await is_accepted_by_another(ours)
            await hub.grant(grant)
            assert await is_accepted_by_another(ours)
            await hub.close()
        ours.close()

    run(scene)


def test_listener_is_closed_when_that_is_asked_while_it_opens() -> None:
    """Nothing goes on accepting that nobody can close any more."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    async def scene() -> None:
        given, ours = listening()
        listener = Listener(given, new_workspace_id(), "anthropic")
        opening = asyncio.create_task(listener.open(answer))
        closing = asyncio.create_task(listener.close())
        await asyncio.gather(opening, closing)
        assert not await is_accepted_by_another(ours)
        await listener.discard()
        ours.close()

    run(scene)


def test_all_workspaces_are_cut_together_when_the_gateway_ends(tmp_path: Path) -> None:
    """One after another, many would take longer than a gateway is given."""
    body = json.dumps(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 10,
            "messages": [{"role": "user", "content": "hi"}],
        }
    )
    request = (
        f"POST /v1/messages HTTP/1.1\r\nHost: anthropic\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    workspaces = 12

    async def scene() -> None:
        reached = asyncio.Semaphore(0)

        async def hang(_: web.Request) -> web.StreamResponse:
            reached.release()
            await asyncio.Event().wait()
            return web.Response()

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", hang)
        async with TestServer(application) as server, opened(tmp_path) as hub:
            await hub.configure(settings_for(str(server.make_url("/"))), {"MODEL_KEY": CANARY})
            writers = []
            for _ in range(workspaces):
                given, ours = listening()
                grant = grant_for()
                await hub.hand_over(grant.workspace, {"anthropic": given})
                await hub.grant(grant)
                _, writer = await asyncio.open_connection(*ours.getsockname())
                ours.close()
                writer.write(request.encode())
                writers.append(writer)
            for _ in range(workspaces):
                await reached.acquire()
            await hub.close()
            entries = await hub.entries_after(0, 100)
            assert len(entries) == workspaces
            for writer in writers:
                writer.close()

    run(scene)
