"""Connections of their own to a shim: to one exec's input and output, to a port inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path

from forkyard.errors import WorkspaceError
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.shim import protocol
from forkyard.shim.protocol import Message
from forkyard.workspace.interface import Line
from forkyard.workspace.shims import open_connection, read_message

WAITING_BYTES = 256 * 1024
"""Of an exec's output, for a client that does not read: there may be many of those."""
SECONDS = 15.0
"""A shim answers at once; what it connects to inside may take ten seconds to be refused."""


async def attach(path: Path, exec_id: ExecId, epoch: int) -> Line | None:
    """Attach to an exec of the sandbox whose shim listens at a path; None: it does not run."""
    try:
        reader, writer = await open_connection(path, None, limit_bytes=WAITING_BYTES)
    except OSError:
        return None
    try:
        async with asyncio.timeout(SECONDS):
            hello = await read_message(reader)
            if hello is not None and not hello.get("trouble") and hello["epoch"] == epoch:
                writer.write(protocol.encode({"op": "attach", "exec": exec_id}))
                answer = await read_message(reader)
                if answer is not None and answer["op"] == "attached":
                    return Line(reader, writer)
    except TimeoutError:
        pass
    except BaseException:
        writer.close()
        raise
    writer.close()
    return None


async def connect(path: Path, workspace: WorkspaceId, port: int, epoch: int) -> socket.socket:
    """Give a socket that is connected to a port of the sandbox's loopback.

    Raises:
        WorkspaceError: Nobody listens there, or the sandbox is gone.
    """
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    asking.settimeout(0)
    reason = "its sandbox is gone"
    with asking:
        try:
            async with asyncio.timeout(SECONDS):
                loop = asyncio.get_running_loop()
                with protocol.short_path(str(path)) as name:
                    await loop.sock_connect(asking, name)
                hello, _ = await _receive(asking)
                if hello.get("epoch") == epoch and not hello.get("trouble"):
                    order = {"op": "connect", "port": port}
                    await loop.sock_sendall(asking, protocol.encode(order))
                    answer, rights = await _receive(asking)
                    if rights:
                        made = socket.socket(fileno=rights[0])
                        made.settimeout(0)
                        return made
                    reason = str(answer.get("reason", reason))
        except TimeoutError:
            reason = f"no answer for {SECONDS:g} s"
        except (OSError, ValueError):
            reason = "its sandbox is gone"
    raise WorkspaceError(
        f"cannot connect to port {port} in {workspace}: {reason}",
        hint="Start what listens there first; `forkyard workspace exec W -c 'ss -tln'` lists it.",
    )


async def _receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Read one message and the descriptors that come with it; ValueError where it makes none."""
    loop = asyncio.get_running_loop()
    line, rights = b"", list[int]()
    try:
        while not line.endswith(b"\n"):
            ready = asyncio.Event()
            loop.add_reader(connection, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(connection)
            with contextlib.suppress(BlockingIOError):
                chunk, received = protocol.receive_rights(connection, 1 << 16)
                rights += received
                line += chunk
                if not chunk:
                    break
        message = json.loads(line or b"null")
    except BaseException:
        for one in rights:
            socket.close(one)
        raise
    return (message if isinstance(message, dict) else {}), rights
