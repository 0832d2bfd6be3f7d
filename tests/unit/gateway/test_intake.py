"""Reading requests: room for their bodies, and whose large ones are rebuilt when."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from fakes.ledger_scene import grant_of
from forkyard.gateway import intake
from forkyard.gateway.admission import Admission
from forkyard.gateway.intake import Accepted, Intake
from forkyard.gateway.interface import Api, Provider
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.protocols.interface import Rebuilt
from forkyard.gateway.room import PLACE, Room

PROVIDER = Provider(name="anthropic", api=Api.ANTHROPIC, base_url="http://p")
MESSAGE = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x" * 3000}]}


def test_a_body_has_its_place_until_it_is_sent_and_is_refused_when_there_is_none(
    tmp_path: Path,
) -> None:
    """503 in the API's form, with or without a length; a wrong request leaves its place."""
    grant = grant_of(1)

    async def scene() -> None:
        ledger = await Ledger.open(tmp_path / "ledger.db", allow_volatile=True)
        admission = Admission(ledger)
        await admission.grant(grant)
        room = Room(most_bytes=2**21, most_bytes_each=2**21, wait_seconds=0.01)

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            found = await Intake(grant, PROVIDER, admission, room=room).read(request)
            if not isinstance(found, Accepted):
                return found
            held = room.held_bytes
            request[PLACE].leave()
            return web.json_response({"held": held, "sent": len(found.rebuilt.body)})

        async with RawTestServer(answer) as server, aiohttp.ClientSession() as client:
            address = server.make_url("/v1/messages")
            async with client.post(address, json=MESSAGE) as told:
                held = await told.json()
                assert held["held"] == held["sent"] > 3000
            async with client.post(address, data=b"{") as told:
                assert told.status == 400
            assert room.held_bytes == 0
            other = room.place(grant.workspace)
            await other.hold(2**21 - 1000)

            async def pieces() -> AsyncIterator[bytes]:
                yield json.dumps(MESSAGE).encode()

            for data in (json.dumps(MESSAGE).encode(), pieces()):
                async with client.post(address, data=data) as told:
                    assert told.status == 503
                    assert "retry-after" in told.headers
                    assert (await told.json())["error"]["type"] == "overloaded_error"
            assert room.held_bytes == 2**21 - 1000
        await ledger.close()

    asyncio.run(scene())


def test_large_bodies_of_one_workspace_take_turns_when_their_agent_goes_away() -> None:
    """What is left behind keeps the turn until its thread is done; others are not kept."""
    mine, other = grant_of(1).workspace, grant_of(2).workspace
    rebuilt = Rebuilt.__new__(Rebuilt)

    async def scene() -> None:
        go, begun = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> Rebuilt:
            loop.call_soon_threadsafe(begun.set)
            go.wait(20)
            return rebuilt

        try:
            left = asyncio.create_task(intake._apart(mine, slow))
            await begun.wait()
            left.cancel()
            await asyncio.wait([left])
            later = asyncio.create_task(intake._apart(mine, lambda: rebuilt))
            assert await intake._apart(other, lambda: rebuilt) is rebuilt
            assert not later.done()
        finally:
            go.set()
        assert await later is rebuilt

    asyncio.run(scene())
