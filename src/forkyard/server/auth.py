"""Who may talk to the server: whoever the kernel says owns the installation, and root.

The socket's mode and its directory say the same; this holds even where either was changed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

_CREDENTIALS = struct.Struct("3i")


def is_allowed(user: int) -> bool:
    """Say whether a process of this user may use the API."""
    return user in (0, os.geteuid())


def peer_user(connection: socket.socket) -> int:
    """Ask the kernel whose process is at the other end of a unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return cast("int", _CREDENTIALS.unpack(raw)[1])


class OwnerOnlyProtocol(H11Protocol):
    """HTTP/1.1, dropping connections of other users before a byte of theirs is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let in the owner; close on anybody else."""
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX and not is_allowed(peer_user(connection)):
            transport.abort()
            return
        super().connection_made(transport)
