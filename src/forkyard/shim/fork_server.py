"""The fork-server: preloaded, threadless, and the parent of every shim.

Forking a warm interpreter gives a shim in milliseconds and a few megabytes, where a fresh one
takes twenty times that. It serves only while somebody holds a lease (the server), and its death
means nothing to running shims.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import time

from forkyard import __version__
from forkyard.shim import kernel, protocol, standby

_ORPHANED_SECONDS = 10.0
"""Without a lease this long the server is gone for good, and so are we."""
_REQUEST_SECONDS = 5.0
_TRIES = 3


class ForkServer:
    """Listens, and forks a shim per request."""

    def __init__(self, path: str) -> None:
        """Start to listen."""
        self._listener = protocol.listen(path)
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._leases: set[socket.socket] = set()
        self._spare: socket.socket | None = None

    def run(self) -> None:
        """Serve until no lease has been held for a while."""
        orphaned_since = time.monotonic()
        while self._leases or time.monotonic() - orphaned_since < _ORPHANED_SECONDS:
            for key, _ in self._selector.select(1.0):
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._serve(connection)
                else:
                    self._lease_over(key.fileobj)
            if self._leases:
                orphaned_since = time.monotonic()
                if self._spare is None:
                    self._spare = self._fork()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _lease_over(self, lease: object) -> None:
        assert isinstance(lease, socket.socket)  # noqa: S101 - only sockets are registered
        if not lease.recv(64):
            self._leases.discard(lease)
            self._selector.unregister(lease)
            lease.close()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_REQUEST_SECONDS)
        try:
            request = protocol.receive_one(connection)
        except (OSError, ValueError):
            request = None
        match (request or {}).get("op"):
            case "lease":
                self._leases.add(connection)
                self._selector.register(connection, selectors.EVENT_READ)
                connection.sendall(protocol.encode({"op": "lease", "version": __version__}))
            case "probe":
                connection.sendall(
                    protocol.encode({"op": "probe", "version": __version__, "pid": os.getpid()})
                )
                connection.close()
            case "start":
                self._start(str((request or {})["spec"]), connection)
            case _:
                connection.close()

    def _start(self, spec: str, connection: socket.socket) -> None:
        for _ in range(_TRIES):
            spare, self._spare = self._spare or self._fork(), None
            try:
                socket.send_fds(spare, [spec.encode()], [connection.fileno()])
            except OSError:
                continue  # it died while it waited
            finally:
                spare.close()
            break
        connection.close()

    def _fork(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = kernel.clone(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS)
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._listener.close()
            ours.close()
            for lease in self._leases:
                lease.close()
            standby.stand_by(theirs)
        theirs.close()
        return ours


def run(path: str) -> None:
    """Be the fork-server on a socket path."""
    kernel.set_name("forkyard-forks")
    kernel.set_title("forkyard")  # a command's process shows it inside until it executes
    # Shims are nobody's to wait for: the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = ForkServer(path)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of the warm heap
    server.run()
