"""What server, fork-server and shim say to each other: one JSON object a line, over unix sockets.

Server to fork-server, first line of a connection:

    {"op": "lease", "version": V}      keeps the fork-server alive while the connection is open
    {"op": "start", "spec": PATH}      the connection is then the new shim's control connection
    {"op": "probe"}                    answered with {"op": "probe", "version": V, "pid": N}

Server to shim:

    {"op": "exec", "spec": {...}}      answered with "ended" when it is over; known ids attach
    {"op": "hold", "spec": {...}}      makes it ready up to its execution, which "exec" of the same
                                       begins; forgotten where the connection ends first
    {"op": "drop", "exec": ID}         forgets one that is held
    {"op": "kill", "exec": ID, "grace": SECONDS}
    {"op": "furnish", "layers": [...]} answered with "furnished"; for one that was made ahead
    {"op": "freeze", "seconds": N}     answered with "frozen"; until "thaw", so long at most, and no
                                       longer than the connection is there
    {"op": "thaw"}                     answered with "thawed"
    {"op": "stop"}                     answered with "stopped" when nothing is left

On a connection of its own, which is that one thing's from then on:

    {"op": "attach", "exec": ID}       answered with "attached" or "refused"; then frames
                                       (shim/attach.py)
    {"op": "connect", "port": N}       answered with "connected", and a socket inside as
                                       SCM_RIGHTS, or with "refused"

Shim to server:

    {"op": "hello", "workspace": W, "epoch": N, "furnished": BOOL, "execs": [...],
     "trouble": null | TEXT}
    {"op": "furnished", "trouble": null | TEXT}
    {"op": "frozen", "trouble": null | TEXT}
    {"op": "thawed", "held": BOOL, "seconds": N}    held: it was frozen for this one until now
    {"op": "ended", "exec": ID, "result": {...}}
    {"op": "stopped"}
    {"op": "attached"}
    {"op": "connected"}
    {"op": "refused", "reason": TEXT}

Shim to gateway, with one listening socket per provider as SCM_RIGHTS:

    {"op": "listen", "workspace": W, "providers": [NAME, ...]}

The same to the allowlist's proxy, whose one socket's name is "egress", with "allow": [ENTRY, ...].
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]
MOST_DESCRIPTORS = 64
MESSAGE_LIMIT_BYTES = 16 * 1024**2


def encode(message: Message) -> bytes:
    """Give one message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class LineBuffer:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        """Start empty."""
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Take bytes in and give the messages that are now whole.

        Raises:
            ValueError: A line is longer than the limit or no JSON object.
        """
        self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > MESSAGE_LIMIT_BYTES:
            raise ValueError("a message is longer than the limit")
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("a message is no object")  # noqa: TRY004 - the peer's fault
            yield message


def receive_one(connection: socket.socket) -> Message | None:
    """Read exactly one message and nothing after it; None at the end of the stream."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = connection.recv(1)
        if not chunk or len(line) > MESSAGE_LIMIT_BYTES:
            return None
        line += chunk
    message = json.loads(line)
    return message if isinstance(message, dict) else None


def receive_rights(connection: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Receive bytes and the descriptors sent with them, which no exec inherits.

    Not `socket.recv_fds`: that of Python 3.11 drops its flags, and so the close-on-exec bit.
    """
    room = socket.CMSG_LEN(MOST_DESCRIPTORS * array.array("i").itemsize)
    content, ancillary, _, _ = connection.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return content, list(descriptors)


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Name a socket in a way that fits sockaddr_un, however long its folder's path is."""
    folder, name = os.path.split(path)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)


def listen(path: str) -> socket.socket:
    """Listen on a socket only its owner can reach, replacing a dead one."""
    folder, name = os.path.split(path)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return listen_at(directory, name)
    finally:
        os.close(directory)


def listen_at(directory: int, name: str) -> socket.socket:
    """Do the same below an open directory."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    before = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.umask(before)
    listener.listen(128)
    return listener
