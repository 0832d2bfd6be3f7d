"""A gateway for tests: the real process under its own user, given listeners as a shim does.

The listeners lie on this machine's loopback instead of inside a sandbox; nothing else differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from forkyard.bootstrap.state_directory import prepare
from forkyard.config import Layout
from forkyard.gateway.interface import Api, GatewaySettings, Provider
from forkyard.gateway.supervisor import Supervisor
from forkyard.model.budget import Budget, Grant
from forkyard.model.ids import (
    AttemptId,
    RunId,
    WorkspaceId,
    new_attempt_id,
    new_run_id,
    new_workspace_id,
)
from forkyard.model.provider import Price
from forkyard.shim import protocol

CANARY = "sk-dummy-canary-8f2b7c91d4e6a3"
PATIENCE = 30.0


def providers(url: str, **changes: float | str) -> tuple[Provider, ...]:
    """Give one provider per API, all at one address."""
    return tuple(
        Provider(name=api.value, api=api, base_url=url, secret="MODEL_KEY", **changes)  # type: ignore[arg-type]  # noqa: S106 - its name
        for api in Api
    )


def settings_for(url: str, *prices: Price, **changes: float | str) -> GatewaySettings:
    """Give settings for a scripted model."""
    return GatewaySettings(providers=providers(url, **changes), prices=prices)


def grant_for(
    workspace: WorkspaceId | None = None,
    *,
    run: RunId | None = None,
    attempt: AttemptId | None = None,
    attempt_budget: Budget | None = None,
    run_budget: Budget | None = None,
    models: tuple[str, ...] = (),
    most_concurrent: int = 8,
    most_requests: int | None = None,
) -> Grant:
    """Make a grant."""
    return Grant(
        workspace=workspace or new_workspace_id(),
        run=run or new_run_id(),
        attempt=attempt or new_attempt_id(),
        agent="agent",
        models=models,
        attempt_budget=attempt_budget or Budget(),
        run_budget=run_budget or Budget(),
        most_requests=most_requests,
        most_concurrent=most_concurrent,
    )


class Handover:
    """Listening sockets of one workspace, kept in whichever gateway's possession."""

    def __init__(self, layout: Layout, workspace: WorkspaceId, names: tuple[str, ...]) -> None:
        """Listen; nothing is handed over yet."""
        self._layout = layout
        self.workspace = workspace
        self.listeners = {name: _listen() for name in names}
        self.hand_overs = 0
        self._task: asyncio.Task[None] | None = None

    def url(self, name: str) -> str:
        """Give the address of one provider."""
        host, port = self.listeners[name].getsockname()
        return f"http://{host}:{port}"

    def start(self) -> None:
        """Hand over, and again to every gateway that comes later."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(0)
                with protocol.short_path(str(self._layout.gateway_socket)) as path:
                    connection.connect(path)
                line = {
                    "op": "listen",
                    "workspace": self.workspace,
                    "providers": list(self.listeners),
                }
                sockets = [one.fileno() for one in self.listeners.values()]
                socket.send_fds(connection, [protocol.encode(line)], sockets)
                self.hand_overs += 1
                while await loop.sock_recv(connection, 4096):
                    pass
            except OSError:
                pass
            finally:
                connection.close()
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Be gone as a shim that died is."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for one in self.listeners.values():
            one.close()


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    return listener


class Yard:
    """One state directory with its supervisor, and the workspaces of a test."""

    def __init__(
        self, home: Path, settings: GatewaySettings, keys: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the directory."""
        self.layout = Layout(home)
        prepare(self.layout)
        self.settings = settings
        self.keys = dict(keys or {"MODEL_KEY": CANARY})
        self.supervisor = self.server()
        self._handovers: list[Handover] = []

    def server(self) -> Supervisor:
        """Make another server's side, as a server that was restarted does."""
        return Supervisor(self.layout, settings=lambda: self.settings, secrets=self.keys.get)

    async def let_in(self, grant: Grant) -> Handover:
        """Grant a workspace and hand its listeners over."""
        await self.supervisor.grant(grant)
        return self.hand_over(grant.workspace)

    def hand_over(self, workspace: WorkspaceId) -> Handover:
        """Hand the listeners of a workspace over."""
        made = Handover(self.layout, workspace, tuple(one.name for one in self.settings.providers))
        self._handovers.append(made)
        made.start()
        return made

    async def pid(self) -> int:
        """Find the gateway process by its socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            with protocol.short_path(str(self.layout.gateway_socket)) as path:
                connection.connect(path)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(raw[:4], "little")

    async def kill(self) -> int:
        """SIGKILL the gateway and wait until it is gone."""
        pid = await self.pid()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            while _lives(pid):
                await asyncio.sleep(0.01)
        return pid

    async def close(self) -> None:
        """Let go of everything."""
        for one in self._handovers:
            await one.close()
        await self.supervisor.close()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@asynccontextmanager
async def yard(
    home: Path, settings: GatewaySettings, keys: Mapping[str, str] | None = None
) -> AsyncIterator[Yard]:
    """Have a gateway within the block; the `home` fixture ends its process."""
    made = Yard(home, settings, keys)
    try:
        yield made
    finally:
        await made.close()
