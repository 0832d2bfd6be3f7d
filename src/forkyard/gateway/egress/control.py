"""The proxy's control socket: shims hand over listening sockets, the server asks when all is said.

A shim's line, with one listening socket as SCM_RIGHTS, and the answer to it:

    {"op": "listen", "workspace": W, "providers": ["egress"], "allow": [ENTRY, ...]}
    {"op": "listening", "workspace": W}

The server's, and the answers:

    {"op": "hello"}                              {"version": V, "pid": N}
    {"id": N, "op": "settled", "workspace": W}   {"id": N}   its last record is written
    {"id": N, "op": "quit"}                      {"id": N}   then it ends
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from forkyard import __version__
from forkyard.gateway.channel import Channel, is_of
from forkyard.gateway.egress.hub import Hub
from forkyard.model.hosts import MOST_ENTRIES, HostRule, read_rule, rule_problem
from forkyard.model.ids import WorkspaceId, is_id
from forkyard.shim.protocol import Message

IDLE_SECONDS = 30.0
"""Without a server and without any sandbox it ends by itself after this long."""
_MOST_CONNECTIONS = 8192
_log = logging.getLogger("forkyard.egress")


class Control:
    """Answers the control socket for one hub."""

    def __init__(self, hub: Hub, listener: socket.socket, owner: int) -> None:
        """Keep whose processes are listened to."""
        self._hub = hub
        self._listener = listener
        self._owner = owner
        self._servers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.quitting = asyncio.Event()

    async def serve(self) -> None:
        """Answer until told to quit, or until nobody needs a proxy any more."""
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(self._accept())
        idle_since = loop.time()
        try:
            while not self.quitting.is_set():
                if self._servers or self._hub.is_needed:
                    idle_since = loop.time()
                elif loop.time() - idle_since > IDLE_SECONDS:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self.quitting.wait()
        finally:
            accepting.cancel()
            self._listener.close()
            await self._hub.close()
            for task in tuple(self._tasks):
                task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(0.1)  # out of descriptors: others are let go in the meantime
                continue
            if not is_of(connection, self._owner) or len(self._tasks) >= _MOST_CONNECTIONS:
                connection.close()
                continue
            task = loop.create_task(self._converse(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        channel = Channel(connection)
        try:
            first = await channel.read()
            if first is not None and first.get("op") == "hello":
                await self._serve_server(channel)
            elif first is not None and first.get("op") == "listen":
                await self._serve_shim(channel, first)
        except (OSError, ValueError) as error:
            _log.warning("A control connection was cut: %s", type(error).__name__)
        except Exception:  # noqa: BLE001 - one connection's trouble must not end the others
            _log.exception("A control connection broke")
        finally:
            channel.close()

    async def _serve_shim(self, channel: Channel, first: Message) -> None:
        workspace, listener, rules = _offer(first, channel.take_sockets())
        door = await self._hub.hand_over(workspace, listener, rules)
        try:
            await channel.write({"op": "listening", "workspace": workspace})
            while await channel.read() is not None:
                pass
        finally:
            await self._hub.let_go(door)

    async def _serve_server(self, channel: Channel) -> None:
        await channel.write({"version": __version__, "pid": os.getpid()})
        self._servers += 1
        asked: set[asyncio.Task[None]] = set()
        try:
            while (message := await channel.read()) is not None:
                task = asyncio.get_running_loop().create_task(self._do(channel, message))
                asked.add(task)
                task.add_done_callback(asked.discard)
        finally:
            self._servers -= 1
            for task in tuple(asked):
                task.cancel()

    async def _do(self, channel: Channel, message: Message) -> None:
        match message.get("op"):
            case "settled":
                await self._hub.settled(WorkspaceId(str(message.get("workspace"))))
            case "quit":
                self.quitting.set()
            case _:
                pass
        with contextlib.suppress(OSError):
            await channel.write({"id": message.get("id")})


def _offer(
    first: Message, sockets: list[socket.socket]
) -> tuple[WorkspaceId, socket.socket, tuple[HostRule, ...]]:
    """Read what a shim hands over.

    Raises:
        ValueError: It makes no sense; the sockets are closed.
    """
    workspace, entries = first.get("workspace"), first.get("allow")
    if (
        isinstance(workspace, str)
        and is_id(workspace)
        and isinstance(entries, list)
        and len(entries) <= MOST_ENTRIES
        and not any(rule_problem(str(entry)) for entry in entries)
        and len(sockets) == 1
        and sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        rules = tuple(read_rule(str(entry)) for entry in entries)
        return WorkspaceId(workspace), sockets[0], rules
    for one in sockets:
        one.close()
    raise ValueError("not one listening socket of a workspace, with its allowlist")
