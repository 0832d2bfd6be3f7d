"""The server's side of the gateway: starts or adopts the process, and tells it everything again.

A gateway that lives is adopted by its socket, one of another version is told to end. One that
dies while anything is granted is started anew, and gets settings, keys and all grants; the shims
hand over their sockets by themselves. Nothing is started before the first grant.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from forkyard import __version__
from forkyard.base.process import start_detached
from forkyard.config import Layout
from forkyard.errors import ForkyardError, GatewayError, StoreError
from forkyard.gateway import messages
from forkyard.gateway.interface import Copied, GatewaySettings, LedgerEntry, RunStatus
from forkyard.gateway.link import QUIT_SECONDS, Link, end, peer, until_gone
from forkyard.model.budget import Grant
from forkyard.model.ids import RunId, WorkspaceId
from forkyard.shim import protocol
from forkyard.shim.protocol import Message

Secrets = Callable[[str], str | None]
Settings = Callable[[], GatewaySettings]

LEDGER_FILE = "ledger.db"
_PACKAGE = Path(__file__).resolve().parents[2]
_START_SECONDS = 30.0
_HELLO_SECONDS = 10.0
_CALL_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_MOST_RETRY_SECONDS = 10.0
_PROGRAM = (
    "import os, sys; sys.dont_write_bytecode = True; "
    "sys.path.insert(0, os.environ['FORKYARD_PACKAGE']); "
    "from forkyard.gateway.main import run; run()"
)
"""Isolated mode: nothing of the caller's folder or user settings is imported; no path as an
argument, since everybody may read those."""
_log = logging.getLogger(__name__)


class Supervisor:
    """The gateway as the rest of the server uses it (gateway/interface.py has the contract)."""

    def __init__(self, layout: Layout, *, settings: Settings, secrets: Secrets) -> None:
        """Keep where it lies and how to learn what it is told; nothing is started yet.

        Args:
            layout: The state directory.
            settings: Reads the settings as they are now.
            secrets: Gives a secret by its name; None where there is none.
        """
        self._layout = layout
        self._settings = settings
        self._secrets = secrets
        self._grants: dict[WorkspaceId, Grant] = {}
        self._statuses: dict[RunId, RunStatus] = {}
        self._followers: set[asyncio.Queue[RunStatus]] = set()
        self._link: Link | None = None
        self._linking = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._children: set[int] = set()

    async def grant(self, grant: Grant) -> None:
        """Let a workspace in; said again to every gateway that starts later.

        Raises:
            ConfigError: With a money budget, one of its models has no known price.
            GatewayError: No gateway can be started, or its ledger cannot be written. The grant
                stands all the same, for the next gateway, until it is revoked.

        Cancellation:
            The grant is as it was before.
        """
        before = self._grants.get(grant.workspace)
        self._grants[grant.workspace] = grant
        try:
            await self._ask({"op": "grant", "grant": messages.written(grant)})
        except GatewayError:
            self._keep()
            raise
        except BaseException:
            if before is None:
                del self._grants[grant.workspace]
            else:
                self._grants[grant.workspace] = before
            raise

    async def revoke(self, workspace: WorkspaceId) -> tuple[LedgerEntry, ...]:
        """Close a workspace's sockets, cut its streams, settle what was open.

        Returns:
            The workspace's newest entries, and when a budget refused it last.

        Raises:
            GatewayError: No gateway can be started to ask.
        """
        gone = self._grants.pop(workspace, None)
        try:
            if not self._has_ledger:
                return ()
            return _entries(await self._ask({"op": "revoke", "workspace": workspace}))
        finally:
            # a gateway has nothing to say of a run that nobody is let in for any more
            if gone is not None and all(one.run != gone.run for one in self._grants.values()):
                self._statuses.pop(gone.run, None)

    def status(self, run: RunId) -> RunStatus | None:
        """Give what was last heard of a run; None: nothing of it is granted."""
        return self._statuses.get(run)

    async def changes(self) -> AsyncIterator[RunStatus]:
        """Follow what runs spend, wait for and are refused, as it happens.

        What is known already comes first. Only the newest state of a run is told to a follower
        that is slow.
        """
        queue: asyncio.Queue[RunStatus] = asyncio.Queue()
        for known in self._statuses.values():
            queue.put_nowait(known)
        self._followers.add(queue)
        try:
            while True:
                newest = {status.run: status for status in (await queue.get(), *_rest(queue))}
                for status in newest.values():
                    yield status
        finally:
            self._followers.discard(queue)

    async def entries_after(self, sequence: int, *, limit: int = 1000) -> tuple[LedgerEntry, ...]:
        """Read the settled ledger in its order.

        Raises:
            GatewayError: No gateway can be started to ask.
        """
        if not self._has_ledger:
            return ()
        return _entries(await self._ask({"op": "entries", "after": sequence, "limit": limit}))

    async def prune(self, copied: Copied) -> int:
        """Forget settled entries that the journal has; see the contract.

        Raises:
            GatewayError: No gateway can be started to ask.
        """
        if not self._has_ledger:
            return 0
        gone = await self._ask({"op": "prune", "copied": messages.written(copied)})
        return gone if isinstance(gone, int) else 0

    async def settings_changed(self) -> None:
        """Read providers and secrets anew and tell the gateway, if one runs.

        Raises:
            ConfigError: The settings cannot be read, or a key cannot be sent.
        """
        message = self._configuration()
        if self._link is not None and self._link.is_open:
            await self._call(self._link, message)

    async def start(self) -> None:
        """Adopt a gateway that lives, if there is one; start none."""
        with contextlib.suppress(ForkyardError):
            async with self._linking:
                self._link = await self._adopt()
                if self._link is not None:
                    await self._teach(self._link)
        self._keep()

    async def close(self) -> None:
        """Let go of the gateway, which goes on."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
        link, self._link = self._link, None
        if link is not None:
            await end(link)
        self._reap()

    @property
    def _has_ledger(self) -> bool:
        return (self._layout.gateway / LEDGER_FILE).exists()

    def _configuration(self) -> Message:
        settings = self._settings()
        names = {one.secret for one in settings.providers if one.secret is not None}
        found = {name: self._secrets(name) for name in sorted(names)}
        keys = {name: value for name, value in found.items() if value is not None}
        return {"op": "configure", "settings": messages.written(settings), "keys": keys}

    async def _ask(self, message: Message) -> object:
        """Ask whichever gateway lives; one that dies over it is replaced and asked once more."""
        for last in (False, True):
            try:
                link = await self._linked()
                return await self._call(link, message)
            except StoreError as error:
                # its ledger, or our secrets: whoever asks would take it for the journal
                raise GatewayError(error.message, hint=error.hint) from error
            except ConnectionError as error:
                if last:
                    raise GatewayError(
                        "cannot ask the gateway: it died twice over one question",
                        hint=f"Look into {self._layout.gateway_log}.",
                    ) from error
        raise AssertionError("unreachable")

    async def _call(self, link: Link, message: Message) -> object:
        link.number += 1
        number = link.number
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        link.asked[number] = future
        try:
            if not link.is_open:
                raise ConnectionResetError("the gateway is gone")
            link.writer.write(protocol.encode({**message, "id": number}))
            async with asyncio.timeout(_CALL_SECONDS):
                return await future
        except TimeoutError as error:
            raise GatewayError(
                f"cannot ask the gateway: no answer within {_CALL_SECONDS:g} s",
                hint=f"Look into {self._layout.gateway_log}.",
            ) from error
        finally:
            link.asked.pop(number, None)

    async def _linked(self) -> Link:
        """Give the connection to a living gateway that knows everything; start one if need be."""
        async with self._linking:
            if self._link is not None and self._link.is_open:
                return self._link
            link = await self._adopt() or await self._begin()
            try:
                await self._teach(link)
            except BaseException:
                await end(link)
                raise
            self._link = link
        self._keep()
        return link

    async def _teach(self, link: Link) -> None:
        try:
            await self._call(link, self._configuration())
        except ConnectionError as error:
            raise GatewayError("cannot tell the gateway its settings: it died") from error
        for grant in tuple(self._grants.values()):
            # One grant that cannot be had any more (its price is gone) must not end the others.
            try:
                await self._call(link, {"op": "grant", "grant": messages.written(grant)})
            except ForkyardError as error:
                _log.warning("A grant was refused to %s: %s", grant.workspace, error.message)
            except ConnectionError as error:
                raise GatewayError("cannot tell the gateway its grants: it died") from error

    def _keep(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        """Start another gateway whenever one dies that somebody needs."""
        wait = _RETRY_SECONDS
        while True:
            link = self._link
            if link is not None and link.reading is not None:
                await asyncio.wait([link.reading])
                if self._grants:
                    _log.warning("The gateway (process %s) is gone; starting another", link.pid)
            elif not self._grants:
                return  # the first grant comes here again
            self._reap()
            if not self._grants:
                return
            try:
                await self._linked()
                wait = _RETRY_SECONDS
            except (ForkyardError, OSError) as error:
                _log.warning("There is no gateway: %s", error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, _MOST_RETRY_SECONDS)

    async def _adopt(self) -> Link | None:
        """Connect to a gateway that lives; one of another version is told to end first."""
        try:
            with protocol.short_path(str(self._layout.gateway_socket)) as path:
                reader, writer = await asyncio.open_unix_connection(
                    path, limit=protocol.MESSAGE_LIMIT_BYTES
                )
        except OSError:
            return None
        pid = peer(writer)
        try:
            writer.write(protocol.encode({"op": "hello", "version": __version__}))
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = messages.message(await reader.readline())
        except (OSError, TimeoutError, ValueError):
            hello = None
        if hello is not None and hello.get("version") == __version__:
            link = Link(pid=pid, ledger=str(hello.get("ledger")), reader=reader, writer=writer)
            link.reading = asyncio.get_running_loop().create_task(self._read(link))
            return link
        if hello is not None:
            writer.write(protocol.encode({"op": "quit", "id": 0}))
        await until_gone(pid, kill_after=QUIT_SECONDS if hello is not None else 0.0)
        writer.close()
        return None

    async def _begin(self) -> Link:
        try:
            child = start_detached(
                [sys.executable, "-I", "-c", _PROGRAM],
                variables={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "LC_ALL": "C.UTF-8",
                    "FORKYARD_PACKAGE": str(_PACKAGE),
                    "FORKYARD_HOME": str(self._layout.home),
                },
                log=str(self._layout.gateway_log),
            )
        except OSError as error:
            raise GatewayError(
                f"cannot start the gateway: {error}",
                hint="Free memory, processes or descriptors on this machine; it is tried again.",
            ) from error
        self._children.add(child)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_SECONDS
        while (link := await self._adopt()) is None:
            self._reap()
            if loop.time() > deadline or not self._children:
                raise GatewayError(
                    "cannot start the gateway: it does not answer",
                    hint=f"Look into {self._layout.gateway_log}.",
                )
            await asyncio.sleep(0.02)  # until the new process has bound its socket
        return link

    def _reap(self) -> None:
        """Take the ends of those we started; no signal tells of them."""
        for pid in tuple(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)

    async def _read(self, link: Link) -> None:
        try:
            while line := await link.reader.readline():
                self._heard(link, messages.message(line))
        except (OSError, ValueError):
            pass  # as good as its end
        finally:
            link.writer.close()
            for future in link.asked.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the gateway is gone"))

    def _heard(self, link: Link, message: Message) -> None:
        if message.get("op") == "status":
            status = messages.read(RunStatus, message.get("run"))
            self._statuses[status.run] = status
            if not status.grants:
                del self._statuses[status.run]
            for queue in self._followers:
                queue.put_nowait(status)
            return
        future = link.asked.get(message.get("id", 0))
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(messages.read_error(message["error"]))
        else:
            future.set_result(message.get("result"))


def _entries(found: object) -> tuple[LedgerEntry, ...]:
    if not isinstance(found, list):
        return ()
    return tuple(messages.read(LedgerEntry, one) for one in found)


def _rest(queue: asyncio.Queue[RunStatus]) -> list[RunStatus]:
    rest = []
    while not queue.empty():
        rest.append(queue.get_nowait())
    return rest
