"""The proxy's state: the listening sockets that shims handed over, and what is under way.

A shim brings its workspace's allowlist along with the socket, so a new proxy needs nobody to tell
it anything: whoever connects to a socket is that workspace, and may reach what that list says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.gateway.egress.exchange import Exchange
from forkyard.gateway.egress.names import MOST_AT_ONCE, Names
from forkyard.gateway.egress.records import Records
from forkyard.model.hosts import HostRule
from forkyard.model.ids import WorkspaceId

MOST_CONNECTIONS = 128
"""Of one workspace at once; who comes later waits in the kernel's queue."""
SETTLE_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
_log = logging.getLogger("forkyard.egress")


@dataclass(slots=True, kw_only=True)
class Door:
    """One listening socket of one workspace."""

    workspace: WorkspaceId
    listener: socket.socket
    rules: tuple[HostRule, ...]
    records: Records
    names: Names
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_CONNECTIONS))
    under_way: set[asyncio.Task[None]] = field(default_factory=set)
    accepting: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to accept."""
        self.listener.settimeout(0)
        self.accepting = asyncio.get_running_loop().create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.places.acquire()
            try:
                client, _ = await loop.sock_accept(self.listener)
            except OSError:
                self.places.release()
                await asyncio.sleep(_AGAIN_SECONDS)  # shut down, or no descriptor is left
                continue
            except BaseException:
                self.places.release()
                raise
            task = loop.create_task(self._serve(client))
            self.under_way.add(task)
            task.add_done_callback(self._over)

    async def _serve(self, client: socket.socket) -> None:
        await Exchange(
            client=client, rules=self.rules, names=self.names, turn=self.turn, records=self.records
        ).run()

    def _over(self, task: asyncio.Task[None]) -> None:
        self.places.release()
        self.under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A connection broke: %s", type(error).__name__, exc_info=error)

    async def close(self) -> None:
        """Stop accepting, cut what is under way, and record all of it. Idempotent."""
        tasks = list(self.under_way)
        if self.accepting is not None:
            tasks.append(self.accepting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
        self.listener.close()


class Hub:
    """All workspaces of one proxy process."""

    def __init__(self, folder: Path) -> None:
        """Keep where records go."""
        self._folder = folder
        self._names = Names()
        self._doors: dict[WorkspaceId, Door] = {}
        self._changed = asyncio.Event()

    @property
    def is_needed(self) -> bool:
        """Say whether any sandbox depends on this process."""
        return bool(self._doors)

    async def hand_over(
        self, workspace: WorkspaceId, listener: socket.socket, rules: tuple[HostRule, ...]
    ) -> Door:
        """Take a workspace's socket; one that it had before is let go."""
        before = self._doors.pop(workspace, None)
        if before is not None:
            await before.close()
        door = Door(
            workspace=workspace,
            listener=listener,
            rules=rules,
            records=Records(self._folder, workspace),
            names=self._names,
        )
        self._doors[workspace] = door
        door.open()
        return door

    async def let_go(self, door: Door) -> None:
        """Close what a shim handed over: it is gone, and so is its sandbox."""
        await door.close()
        if self._doors.get(door.workspace) is door:
            del self._doors[door.workspace]
        self._changed.set()
        self._changed = asyncio.Event()

    async def settled(self, workspace: WorkspaceId) -> None:
        """Return once a workspace that was stopped has its last record, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while workspace in self._doors:
                    await self._changed.wait()

    async def close(self) -> None:
        """Close all of them."""
        for door in tuple(self._doors.values()):
            await self.let_go(door)
