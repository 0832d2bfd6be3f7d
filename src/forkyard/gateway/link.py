"""One connection of the server to one gateway process, and the end of such a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from dataclasses import dataclass, field

from forkyard.shim import kernel

QUIT_SECONDS = 20.0
"""A gateway that was told to end has settled everything within this time."""


@dataclass(slots=True, kw_only=True)
class Link:
    """One connection to one gateway process."""

    pid: int
    ledger: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: dict[int, asyncio.Future[object]] = field(default_factory=dict)
    number: int = 0
    reading: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Say whether it can still be asked."""
        return self.reading is not None and not self.reading.done()


async def end(link: Link) -> None:
    """Let go of a gateway, which goes on."""
    link.writer.close()
    if link.reading is not None:
        link.reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await link.reading


def peer(writer: asyncio.StreamWriter) -> int:
    """Give the pid of who listens at the other end."""
    connection = writer.get_extra_info("socket")
    shape = struct.Struct("iII")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, shape.size)
    return int(shape.unpack(raw)[0])


async def until_gone(pid: int, *, kill_after: float) -> None:
    """Wait for a process's end, and kill it when that takes too long."""
    try:
        descriptor = kernel.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(kill_after):
                await gone.wait()
                return
        kernel.pidfd_send_signal(descriptor, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIT_SECONDS):
                await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
