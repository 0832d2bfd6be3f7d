"""Talking to one shim: the connection, and what its words and files mean."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.shim import kernel, protocol
from forkyard.shim.main import PID_FILE
from forkyard.shim.protocol import Message
from forkyard.workspace.interface import SandboxSpec

_LINE_LIMIT_BYTES = protocol.MESSAGE_LIMIT_BYTES
STOP_SECONDS = 60.0
"""Unmounting flushes what the workspace wrote; a slow disk may take this long."""
_GOING_SECONDS = 1.0


@dataclass(slots=True)
class Shim:
    """One connection to one shim."""

    workspace: WorkspaceId
    epoch: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    disk_bytes: int | None = None
    is_furnished: bool = True
    """False while it is one that was made ahead and has no files yet."""
    made_for: SandboxSpec | None = None
    """What such a one was made for; None where another server knew."""
    furnished: asyncio.Future[str | None] | None = None
    """Resolves to the trouble, if any, of making it ready."""
    stillness: asyncio.Future[Message] | None = None
    """Resolves to the answer to `freeze` or `thaw`."""
    ended: dict[ExecId, asyncio.Future[ExecResult]] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def send(self, message: Message) -> None:
        """Say something; whether it arrives shows in the answers."""
        self.writer.write(protocol.encode(message))

    def let_go(self) -> None:
        """Answer everybody who waits on a connection that is over."""
        if self.furnished is not None and not self.furnished.done():
            self.furnished.set_result("it died")
        if self.stillness is not None and not self.stillness.done():
            self.stillness.set_result({"trouble": "its shim died", "held": False})
        for future in self.ended.values():
            if not future.done():
                future.cancel()


async def open_connection(
    path: Path, request: Message | None, *, limit_bytes: int = _LINE_LIMIT_BYTES
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a socket and say one thing, if any; OSError when nobody listens.

    Twice the limit may wait to be read before whoever writes has to wait.
    """
    with protocol.short_path(str(path)) as name:
        reader, writer = await asyncio.open_unix_connection(name, limit=limit_bytes)
    if request is not None:
        writer.write(protocol.encode(request))
    return reader, writer


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """Read one message; None at the end of the stream, or where it makes no sense."""
    try:
        line = await reader.readline()
        message = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def result_of(record: Message) -> ExecResult:
    """Read an exit record."""
    return ExecResult(
        id=ExecId(record["id"]),
        stop_reason=StopReason(record["stop_reason"]),
        exit_code=record["exit_code"],
        elapsed_seconds=record["elapsed_seconds"],
        stdout_bytes=record["stdout_bytes"],
        stderr_bytes=record["stderr_bytes"],
        truncated=record["truncated"],
        detail=record["detail"],
    )


def interrupted(exec_id: ExecId) -> ExecResult:
    """Give the end of an exec whose sandbox died without a record."""
    return ExecResult(
        id=exec_id,
        stop_reason=StopReason.INTERRUPTED,
        exit_code=None,
        elapsed_seconds=0.0,
        stdout_bytes=0,
        stderr_bytes=0,
        detail="the sandbox it ran in died",
    )


def last_words(sandbox: Path) -> str:
    """Read the last line that a shim logged."""
    with contextlib.suppress(OSError):
        words = (sandbox / "shim.log").read_text(encoding="utf-8", errors="replace").split("\n")
        spoken = [line.strip() for line in words if line.strip()]
        if spoken:
            return spoken[-1][-300:]
    return "its shim died without a word"


async def end_process(sandbox: Path) -> None:
    """Kill a shim that does not answer, and wait until it and its mounts are gone.

    Args:
        sandbox: Its folder; where it names no shim that lives, nothing is done.
    """
    with contextlib.suppress(OSError, ValueError):
        pid = int((sandbox / PID_FILE).read_text(encoding="ascii"))
        descriptor = kernel.pidfd_open(pid)
        try:
            if _is_shim_of(pid, sandbox):
                await _end(descriptor)
        finally:
            os.close(descriptor)


async def _end(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOING_SECONDS):
                await gone.wait()  # it said `stopped` and is on its way out
                return
        kernel.pidfd_send_signal(descriptor, signal.SIGKILL)
        async with asyncio.timeout(STOP_SECONDS):
            await gone.wait()
    finally:
        loop.remove_reader(descriptor)


def _is_shim_of(pid: int, sandbox: Path) -> bool:
    """Tell a shim from a stranger that got its pid: only a shim holds that log open."""
    log = str(sandbox / "shim.log")
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/1") == log  # noqa: PTH115 - the text is wanted
    return False
