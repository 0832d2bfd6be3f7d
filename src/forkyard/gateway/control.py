"""The control socket: the server tells and asks, shims hand over listening sockets.

Only processes of the user who started the gateway are listened to; the socket's mode says the
same. messages.py has the words of the server, shim/protocol.py those of a shim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from forkyard import __version__
from forkyard.errors import ForkyardError, InternalError
from forkyard.gateway import messages
from forkyard.gateway.channel import Channel, is_of
from forkyard.gateway.hub import Hub
from forkyard.gateway.interface import Copied, GatewaySettings
from forkyard.model.budget import Grant
from forkyard.model.ids import WorkspaceId, is_id
from forkyard.shim.protocol import Message

IDLE_SECONDS = 30.0
"""Without a server and without any sandbox a gateway ends by itself after this long."""
_MOST_CONNECTIONS = 8192
_log = logging.getLogger("forkyard.gateway")


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
        """Answer until told to quit, or until nobody needs a gateway any more."""
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(self._accept())
        idle_since = loop.time()
        try:
            while not self.quitting.is_set():
                if self._hub.ledger.is_broken:
                    _log.error("The ledger cannot be written: another gateway is to open it anew")
                    self.quitting.set()
                elif self._servers or self._hub.is_needed:
                    idle_since = loop.time()
                elif loop.time() - idle_since > IDLE_SECONDS:
                    _log.info("Nobody needs a gateway")
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
        line = Channel(connection)
        try:
            first = await line.read()
            if first is not None and first.get("op") == "hello":
                await self._serve_server(line)
            elif first is not None and first.get("op") == "listen":
                await self._serve_shim(line, first)
        except (OSError, ValueError) as error:
            _log.warning("A control connection was cut: %s", type(error).__name__)
        except Exception:  # noqa: BLE001 - one connection's trouble must not end the others
            _log.exception("A control connection broke")
        finally:
            line.close()

    async def _serve_shim(self, line: Channel, first: Message) -> None:
        sockets = line.take_sockets()
        workspace, names = _offer(first, sockets)
        held = await self._hub.hand_over(workspace, dict(zip(names, sockets, strict=True)))
        try:
            await line.write({"op": "listening", "workspace": workspace})
            while await line.read() is not None:
                pass
        finally:
            await self._hub.let_go(held)

    async def _serve_server(self, line: Channel) -> None:
        await line.write(
            {"version": __version__, "pid": os.getpid(), "ledger": self._hub.ledger.id}
        )
        loop = asyncio.get_running_loop()
        following = loop.create_task(self._tell(line))
        asked: set[asyncio.Task[None]] = set()
        self._servers += 1
        try:
            while (message := await line.read()) is not None:
                task = loop.create_task(self._do(line, message))
                asked.add(task)
                task.add_done_callback(asked.discard)
        finally:
            self._servers -= 1
            following.cancel()
            if asked:
                await asyncio.wait(tuple(asked))

    async def _tell(self, line: Channel) -> None:
        with contextlib.suppress(OSError):
            async for status in self._hub.changes():
                await line.write({"op": "status", "run": messages.written(status)})

    async def _do(self, line: Channel, message: Message) -> None:
        answer: Message = {"id": message.get("id")}
        try:
            answer["result"] = await self._result(message)
        except ForkyardError as error:
            answer["error"] = messages.written_error(error)
        except Exception as error:  # noqa: BLE001 - the server is told of our bug, without any of its words
            _log.error("Cannot do %s: %s", message.get("op"), type(error).__name__)
            trouble = f"cannot do what the server asked of the gateway: {type(error).__name__}"
            answer["error"] = messages.written_error(
                InternalError(trouble, hint="Look into gateway.log.")
            )
        with contextlib.suppress(OSError):
            await line.write(answer)

    async def _result(self, message: Message) -> object:
        hub = self._hub
        match message.get("op"):
            case "configure":
                settings = messages.read(GatewaySettings, message.get("settings"))
                await hub.configure(settings, messages.read_keys(message.get("keys")))
                return None
            case "grant":
                await hub.grant(messages.read(Grant, message.get("grant")))
                return None
            case "revoke":
                entries = await hub.revoke(WorkspaceId(str(message.get("workspace"))))
                return [messages.written(entry) for entry in entries]
            case "entries":
                after, limit = int(message.get("after", 0)), int(message.get("limit", 1000))
                found = await hub.entries_after(after, limit)
                return [messages.written(entry) for entry in found]
            case "prune":
                return await hub.prune(messages.read(Copied, message.get("copied")))
            case "quit":
                self.quitting.set()
                return None
            case unknown:
                raise InternalError(f"cannot do {unknown!r}: the gateway does not know it")


def _offer(first: Message, sockets: list[socket.socket]) -> tuple[WorkspaceId, list[str]]:
    """Read what a shim hands over.

    Raises:
        ValueError: It makes no sense; the sockets are closed.
    """
    workspace, names = first.get("workspace"), first.get("providers")
    if (
        isinstance(workspace, str)
        and is_id(workspace)
        and isinstance(names, list)
        and len(names) == len(sockets)
        and all(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for one in sockets)
    ):
        return WorkspaceId(workspace), [str(name) for name in names]
    for one in sockets:
        one.close()
    raise ValueError("not one listening socket for each provider of a workspace")
