"""One connection to a control socket: messages both ways, and descriptors that come with them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from forkyard.shim import protocol
from forkyard.shim.protocol import Message

_READ_BYTES = 256 * 1024
_CREDENTIALS = struct.Struct("iII")


def is_of(connection: socket.socket, user: int) -> bool:
    """Say whether the other end is a process of this user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, peer, _ = _CREDENTIALS.unpack(raw)
    return bool(peer == user)


class Channel:
    """One connection, read as messages; descriptors that came with them are kept apart."""

    def __init__(self, connection: socket.socket) -> None:
        """Take a connection that does not block."""
        self._connection = connection
        self._buffer = protocol.LineBuffer()
        self._messages: list[Message] = []
        self._sockets: list[socket.socket] = []
        self._writing = asyncio.Lock()

    async def read(self) -> Message | None:
        """Give the next message; None at the end."""
        while not self._messages:
            content, descriptors = await self._receive()
            self._sockets += [socket.socket(fileno=one) for one in descriptors]
            if not content:
                return None
            self._messages.extend(self._buffer.feed(content))
        return self._messages.pop(0)

    async def _receive(self) -> tuple[bytes, list[int]]:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return protocol.receive_rights(self._connection, _READ_BYTES)
            except BlockingIOError:
                await _until(self._connection, loop.add_reader, loop.remove_reader)

    async def write(self, message: Message) -> None:
        """Say something."""
        async with self._writing:
            await asyncio.get_running_loop().sock_sendall(
                self._connection, protocol.encode(message)
            )

    def take_sockets(self) -> list[socket.socket]:
        """Give the descriptors that came; they are the caller's from now on."""
        taken, self._sockets = self._sockets, []
        return taken

    def close(self) -> None:
        """Close it, and the descriptors that nobody took."""
        for one in (*self._sockets, self._connection):
            one.close()


async def _until(
    connection: socket.socket,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    number = connection.fileno()
    add(number, tell)
    try:
        await ready
    finally:
        remove(number)
