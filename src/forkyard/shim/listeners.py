"""Sockets inside a sandbox: made and kept by the shim, answered by the gateway or the proxy.

A listening socket belongs to the network namespace it was made in, whoever holds it. So the shim
makes one per provider inside the sandbox, where nothing else can be reached, and hands duplicates
to the gateway, and one more to the allowlist's proxy; which socket a request came through says
who asked. Because the shim keeps its
own, requests wait in the kernel's queue while no gateway lives, and the next one is handed them.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Sequence

from forkyard.shim import kernel, protocol

PORT = 80
EGRESS = "egress"
"""Name of the allowlist's proxy inside; no provider has it."""
EGRESS_PLACE = ("127.0.2.1", 3128)
_QUEUE = 1024
_RETRY_SECONDS = 0.1
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 0x1


def address_of(index: int) -> str:
    """Give the loopback address of the provider at this place of the list."""
    return f"127.0.1.{index + 1}"


def listen_inside(init: int, places: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Make listening sockets at addresses in the network namespace of a process, given by pidfd.

    Raises:
        OSError: The namespace cannot be joined, or an address is taken.
    """
    ours, theirs = socket.socketpair()
    with ours:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                kernel.setns(init, kernel.CLONE_NEWNET)
                bring_up_loopback()
                made = [_listen(place) for place in places]
                _send(theirs, b".", made)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        received: list[int] = []
        while len(received) < len(places):
            content, rights = protocol.receive_rights(ours, 1)
            if not content:
                break
            received += rights
        _, status = os.waitpid(child, 0)
    sockets = [socket.socket(fileno=descriptor) for descriptor in received]
    if status != 0 or len(sockets) != len(places):
        for one in sockets:
            one.close()
        raise OSError(5, "cannot listen for the gateway inside the sandbox")
    return sockets


def _listen(place: tuple[str, int]) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(place)
    listener.listen(_QUEUE)
    return listener


def bring_up_loopback() -> None:
    """Bring the loopback device of the namespace up that the caller is in."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", answer, 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _send(channel: socket.socket, line: bytes, sockets: list[socket.socket]) -> None:
    most = protocol.MOST_DESCRIPTORS
    numbers = [one.fileno() for one in sockets]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers[:most]))]
    channel.sendmsg([line], rights)


class Handover:
    """Keeps the gateway in possession of a sandbox's sockets, whichever gateway lives."""

    def __init__(
        self,
        folder: int,
        name: str,
        workspace: str,
        listeners: dict[str, socket.socket],
        extra: protocol.Message | None = None,
    ) -> None:
        """Keep what to hand over; nothing is connected yet.

        Args:
            folder: Where the gateway's socket lies, opened.
            name: Of that socket.
            workspace: Whose requests come through the listeners.
            listeners: By provider.
            extra: What else is said with them.
        """
        self._folder = folder
        self._name = name
        self._workspace = workspace
        self._listeners = listeners
        self._extra = extra or {}
        self._connection: socket.socket | None = None
        self.next_try: float | None = 0.0
        """In monotonic seconds; None while a gateway holds the sockets."""

    def connect(self) -> socket.socket | None:
        """Try to hand them over; the connection tells by its end that the gateway is gone."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(0)  # nothing here may keep time limits waiting
        line = protocol.encode(
            {
                "op": "listen",
                "workspace": self._workspace,
                "providers": list(self._listeners),
                **self._extra,
            }
        )
        try:
            connection.connect(f"/proc/self/fd/{self._folder}/{self._name}")
            _send(connection, line, list(self._listeners.values()))
        except OSError:
            connection.close()
            self.next_try = time.monotonic() + _RETRY_SECONDS
            return None
        self._connection, self.next_try = connection, None
        return connection

    def heard(self) -> bool:
        """Read and ignore what the gateway says; False once it is gone."""
        if self._connection is None:
            return False
        try:
            if self._connection.recv(4096):
                return True
        except BlockingIOError:
            return True
        except OSError:
            pass  # as good as its end
        self._connection.close()
        self._connection = None
        self.next_try = time.monotonic() + _RETRY_SECONDS
        return False

    def close(self) -> None:
        """Take the sockets away: who connects to one from now on is refused. Idempotent."""
        self.next_try = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for one in self._listeners.values():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        os.close(self._folder)
