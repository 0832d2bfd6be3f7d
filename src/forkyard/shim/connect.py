"""Connecting to a port inside a sandbox, for whoever asked the shim to.

A short-lived child joins the sandbox's network namespace, connects there, and sends the connected
socket straight to who asked: the shim's own loop never waits, and nothing listens anywhere. A
socket belongs to the namespace it was made in, whoever holds it.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket

from forkyard.shim import kernel, protocol
from forkyard.shim.listeners import bring_up_loopback

_SECONDS = 10.0
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Who says `localhost` may mean either."""


def into(init: int, port: int, asker: socket.socket) -> None:
    """Connect to a port of a sandbox's loopback; who asked is told, and its connection closed.

    Args:
        init: The container's first process, by pidfd.
        port: Where something inside should listen.
        asker: Gets the connected socket as SCM_RIGHTS, or the reason.
    """
    with asker:
        try:
            child = os.fork()
        except OSError as error:
            _refuse(asker, error)
            return
        if child == 0:
            try:
                kernel.die_with_parent()
                asker.settimeout(_SECONDS)
                _serve(init, port, asker)
            finally:
                os._exit(0)


def _serve(init: int, port: int, asker: socket.socket) -> None:
    try:
        kernel.setns(init, kernel.CLONE_NEWNET)
        with contextlib.suppress(OSError):
            bring_up_loopback()
        made = _connect(port)
    except OSError as error:
        _refuse(asker, error)
        return
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))]
    asker.sendmsg([protocol.encode({"op": "connected"})], rights)


def _connect(port: int) -> socket.socket:
    trouble: OSError | None = None
    for family, address in _ADDRESSES:
        one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        one.settimeout(_SECONDS)
        try:
            one.connect((address, port))
        except OSError as error:
            one.close()
            trouble = trouble or error
        else:
            return one
    assert trouble is not None  # noqa: S101 - there are addresses
    raise trouble


def _refuse(asker: socket.socket, error: OSError) -> None:
    reason = (error.strerror or str(error)).lower()
    with contextlib.suppress(OSError):
        asker.sendall(protocol.encode({"op": "refused", "reason": reason}))
