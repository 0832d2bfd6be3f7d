"""The server's hold on the fork-server: it runs as long as somebody has a lease on it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from forkyard import __version__
from forkyard.base.process import start_detached
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.shim.protocol import Message
from forkyard.workspace.shims import open_connection, read_message

_CONNECT_SECONDS = 5.0
_FORK_SERVER_SECONDS = 10.0
_FORK_SERVER_PROGRAM = (
    "import os, sys; sys.path.insert(0, os.environ['FORKYARD_PACKAGE']); "
    "from forkyard.shim.fork_server import run; run(os.environ['FORKYARD_FLEET'])"
)
"""Isolated mode, so that nothing of the caller's folder or user settings is imported; no path as
an argument, since everybody may read those."""


class ForkServer:
    """See the module."""

    def __init__(self, layout: Layout) -> None:
        """Keep where its socket lies; nothing is started yet."""
        self._layout = layout
        self._lease: asyncio.StreamWriter | None = None
        self._lease_reader: asyncio.StreamReader | None = None
        self._lease_lock = asyncio.Lock()

    async def ask(self, request: Message) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Say one thing to a living fork-server, started when there is none.

        Returns:
            The connection, on which the answer comes.

        Raises:
            WorkspaceError: None can be reached, and none be started.
        """
        for last in (False, True):
            await self._hold_lease()
            try:
                return await open_connection(self._layout.fleet_socket, request)
            except OSError as error:
                # It died a moment ago: another one is started, running shims do not care.
                self.drop_lease()
                if last:
                    message = f"cannot reach the fork-server: {error}"
                    raise WorkspaceError(message, hint="Look into server.log.") from error
        raise AssertionError("unreachable")

    def drop_lease(self) -> None:
        """Let it go: without a lease it ends by itself. Idempotent."""
        if self._lease is not None:
            self._lease.close()
        self._lease = self._lease_reader = None

    async def _hold_lease(self) -> None:
        async with self._lease_lock:
            if self._lease_reader is not None and not self._lease_reader.at_eof():
                return
            self.drop_lease()
            if not await self._take_lease():
                self._start_fork_server()
                loop = asyncio.get_running_loop()
                deadline = loop.time() + _FORK_SERVER_SECONDS
                while not await self._take_lease():
                    if loop.time() > deadline:
                        raise WorkspaceError(
                            "cannot start the fork-server: it does not answer",
                            hint=f"Look into {self._layout.server_log}.",
                        )
                    await asyncio.sleep(0.005)  # until the new process has bound its socket

    async def _take_lease(self) -> bool:
        try:
            reader, writer = await open_connection(
                self._layout.fleet_socket, {"op": "lease", "version": __version__}
            )
            async with asyncio.timeout(_CONNECT_SECONDS):
                answer = await read_message(reader)
        except (OSError, TimeoutError):
            return False
        if answer is None or answer.get("version") != __version__:
            writer.close()
            return False
        self._lease, self._lease_reader = writer, reader
        return True

    def _start_fork_server(self) -> None:
        package = Path(__file__).resolve().parents[2]
        start_detached(
            [
                sys.executable,
                "-IS",
                "-c",
                _FORK_SERVER_PROGRAM,
            ],
            variables={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL": "C.UTF-8",
                "FORKYARD_PACKAGE": str(package),
                "FORKYARD_FLEET": str(self._layout.fleet_socket),
            },
            log=str(self._layout.server_log),
        )
