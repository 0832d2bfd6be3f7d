"""Room for bodies: shared fairly, waited for with an end, and given back whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from forkyard.gateway.room import Room, RoomError
from forkyard.model.ids import WorkspaceId

A, B = WorkspaceId("ws_a"), WorkspaceId("ws_b")


def test_one_waits_when_there_is_no_room_until_another_leaves() -> None:
    """What is given back lets the next one in; all of it is free at the end."""

    async def scene() -> None:
        room = Room(most_bytes=10, most_bytes_each=10)
        first, second = room.place(A), room.place(B)
        await first.hold(8)
        task = asyncio.create_task(second.hold(4))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        await first.hold(6)
        await task
        assert room.held_bytes == 10
        first.leave()
        first.leave()
        assert room.held_bytes == 4
        del task, second
        assert room.held_bytes == 0

    asyncio.run(scene())


def test_a_body_is_refused_when_no_room_comes_free_or_its_workspace_has_its_share() -> None:
    """Nothing of it stays taken, and another workspace has room all the same."""

    async def scene() -> None:
        room = Room(most_bytes=10, most_bytes_each=5, wait_seconds=0.01)
        first, second, other = room.place(A), room.place(A), room.place(B)
        await first.hold(4)
        with pytest.raises(RoomError):
            await second.hold(2)
        await other.hold(5)
        assert room.held_bytes == 9
        task = asyncio.create_task(second.hold(2))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert room.held_bytes == 9

    asyncio.run(scene())
