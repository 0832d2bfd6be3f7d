"""Who may talk to the server: whoever the kernel says owns the installation, and root.

The socket's mode and its directory say the same; this holds even where either was changed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_CREDENTIALS = struct.Struct("3i")


def is_allowed(user: int) -> bool:
    """Say whether a process of this user may use the API."""
    return user in (0, os.geteuid())


def peer_user(connection: socket.socket) -> int:
    """Ask the kernel whose process is at the other end of a unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return cast("int", _CREDENTIALS.unpack(raw)[1])


class OwnerOnlyProtocol(HttpToolsProtocol):
    """HTTP/1.1, dropping connections of other users before a byte of theirs is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let in the owner; close on anybody else."""
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX and not is_allowed(peer_user(connection)):
            transport.abort()
            return
        super().connection_made(cast("asyncio.Transport", OneWrite(transport)))


class OneWrite:
    """A transport that sends what is written in one go of the event loop as one piece.

    Head and body of an answer come as two writes; as two packets each would wake the client, and
    on a busy machine each costs a turn on the processor.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        """Stand before the real transport."""
        self._transport = transport
        self._waiting: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        """Pass everything else on."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send at the end of this go."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(data)

    def close(self) -> None:
        """Send what waits, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and not self._transport.is_closing():
            self._transport.write(b"".join(waiting))
