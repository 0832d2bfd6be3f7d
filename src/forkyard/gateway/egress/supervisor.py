"""The server's side of the allowlist's proxy: it is there while a workspace has an allowlist.

A proxy that lives is adopted by its socket, one of another version is told to end. One that dies
while a workspace depends on it is started anew; the shims hand over their sockets, and the
allowlists with them, by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from forkyard import __version__
from forkyard.base.process import start_detached
from forkyard.config import Layout
from forkyard.errors import ForkyardError, GatewayError
from forkyard.gateway import messages
from forkyard.gateway.egress import records
from forkyard.gateway.link import QUIT_SECONDS, peer, until_gone
from forkyard.model.connection import Connections
from forkyard.model.ids import WorkspaceId
from forkyard.shim import protocol

_PACKAGE = Path(__file__).resolve().parents[3]
_START_SECONDS = 30.0
_HELLO_SECONDS = 10.0
_SETTLE_SECONDS = 10.0
_RETRY_SECONDS = 0.5
_MOST_RETRY_SECONDS = 10.0
_PROGRAM = (
    "import os, sys; sys.dont_write_bytecode = True; "
    "sys.path.insert(0, os.environ['FORKYARD_PACKAGE']); "
    "from forkyard.gateway.egress.main import run; run()"
)
_log = logging.getLogger(__name__)


class EgressSupervisor:
    """The proxy as the rest of the server uses it."""

    def __init__(self, layout: Layout, is_needed: Callable[[], bool] = lambda: False) -> None:
        """Keep where it lies; nothing is started yet.

        Args:
            layout: The state directory.
            is_needed: Whether any workspace that is up has an allowlist.
        """
        self._layout = layout
        self.is_needed = is_needed
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self._linking = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._children: set[int] = set()

    async def start(self) -> None:
        """Adopt a proxy that lives; start one where a workspace that is up depends on it."""
        with contextlib.suppress(ForkyardError):
            async with self._linking:
                await self._adopt()
        if self.is_needed():
            self._keep()

    async def ready(self) -> None:
        """Return when a proxy lives; it is kept alive from now on.

        Raises:
            GatewayError: None can be started.
        """
        await self._linked()
        self._keep()

    async def connections(self, workspace: WorkspaceId, *, is_over: bool) -> Connections:
        """Give what a workspace connected to.

        Args:
            workspace: Whose.
            is_over: It was stopped: its last record is waited for.
        """
        if is_over and self._is_linked:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self._ask("settled", workspace)
        folder = self._layout.egress
        return await asyncio.to_thread(records.read, folder, workspace, is_over=is_over)

    async def forget(self, workspace: WorkspaceId) -> None:
        """Remove the records of a workspace that is deleted."""
        await asyncio.to_thread(records.remove, self._layout.egress, workspace)

    async def close(self) -> None:
        """Let go of the proxy, which goes on while sandboxes depend on it."""
        for task in (self._keeping, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._writer is not None:
            self._writer.close()
        self._reap()

    @property
    def _is_linked(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def _ask(self, op: str, workspace: WorkspaceId) -> None:
        if self._writer is None or not self._is_linked:
            raise ConnectionResetError
        self._number += 1
        number = self._number
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self._writer.write(protocol.encode({"id": number, "op": op, "workspace": workspace}))
            await future
        finally:
            self._asked.pop(number, None)

    async def _linked(self) -> None:
        async with self._linking:
            if not self._is_linked and not await self._adopt():
                await self._begin()

    def _keep(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        """Start another proxy whenever one dies that a workspace depends on."""
        wait = _RETRY_SECONDS
        while True:
            if self._reading is not None:
                await asyncio.wait([self._reading])
            self._reap()
            if not self.is_needed():
                return
            try:
                await self._linked()
                wait = _RETRY_SECONDS
            except (ForkyardError, OSError) as error:
                _log.warning("There is no proxy for allowlists: %s", error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, _MOST_RETRY_SECONDS)

    async def _adopt(self) -> bool:
        """Connect to a proxy that lives; one of another version is told to end first."""
        try:
            with protocol.short_path(str(self._layout.egress_socket)) as path:
                reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            return False
        pid = peer(writer)
        try:
            writer.write(protocol.encode({"op": "hello"}))
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = messages.message(await reader.readline())
        except (OSError, TimeoutError, ValueError):
            hello = None
        if hello is not None and hello.get("version") == __version__:
            self._reader, self._writer = reader, writer
            self._reading = asyncio.get_running_loop().create_task(self._read(reader, writer))
            return True
        if hello is not None:
            writer.write(protocol.encode({"op": "quit", "id": 0}))
        await until_gone(pid, kill_after=QUIT_SECONDS if hello is not None else 0.0)
        writer.close()
        return False

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                future = self._asked.get(messages.message(line).get("id", 0))
                if future is not None and not future.done():
                    future.set_result(None)
        except (OSError, ValueError):
            pass  # as good as its end
        finally:
            writer.close()
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the proxy is gone"))

    async def _begin(self) -> None:
        try:
            child = start_detached(
                [sys.executable, "-I", "-c", _PROGRAM],
                variables={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "LC_ALL": "C.UTF-8",
                    "FORKYARD_PACKAGE": str(_PACKAGE),
                    "FORKYARD_HOME": str(self._layout.home),
                },
                log=str(self._layout.egress_log),
            )
        except OSError as error:
            raise GatewayError(
                f"cannot start the allowlist's proxy: {error}",
                hint="Free memory, processes or descriptors on this machine; it is tried again.",
            ) from error
        self._children.add(child)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_SECONDS
        while not await self._adopt():
            self._reap()
            if loop.time() > deadline or not self._children:
                raise GatewayError(
                    "cannot start the allowlist's proxy: it does not answer",
                    hint=f"Look into {self._layout.egress_log}.",
                )
            await asyncio.sleep(0.02)  # until the new process has bound its socket

    def _reap(self) -> None:
        """Take the ends of those we started; no signal tells of them."""
        for pid in tuple(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)
