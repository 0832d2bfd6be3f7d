"""Running the server until it is to stop. Sandboxes are not its children and stay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn

from forkyard.server.activity import IdleWatch
from forkyard.server.app import build_app
from forkyard.server.auth import OwnerOnlyProtocol
from forkyard.server.services import Services
from forkyard.server.views import active

KEEP_ALIVE_SECONDS = 75
HANG_UP_SECONDS = 0.5
"""Requests that are not answered by then wait for a command or a build; asking again attaches."""

GRACEFUL_SECONDS = 2
"""What serves them is cancelled then; commands and builds go on without it."""

IDLE_LOOK_SECONDS = 0.5


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handling, which would exit in its way, not in ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the composition root."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End open requests by hanging up: their clients ask the next server again.

        Uvicorn would answer them with a failure, which is not what became of them.
        """
        # What it cancels afterwards is no news.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._hang_up)
        await super().shutdown(sockets)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def serve(
    services: Services,
    listener: socket.socket,
    *,
    idle_seconds: float | None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until asked to stop, or until nothing has been going on for a while.

    Args:
        services: What the routes use; `services.stopping` ends the server.
        listener: A listening socket; closed on return.
        idle_seconds: Exit after this long without client and work; None: never by itself.
        on_ready: Called when requests are answered.

    Cancellation:
        Ends the server as `services.stopping` does.
    """
    app = build_app(services)
    config = uvicorn.Config(
        app,
        http=OwnerOnlyProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
    server = _Server(config)
    try:
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(server.serve(sockets=[listener]))
            watching = group.create_task(_watch(services, server, idle_seconds, on_ready))
            await answering
            watching.cancel()
    finally:
        listener.close()


async def _watch(
    services: Services,
    server: uvicorn.Server,
    idle_seconds: float | None,
    on_ready: Callable[[], None],
) -> None:
    while not server.started:  # noqa: ASYNC110 - uvicorn sets a flag, no event
        await asyncio.sleep(0.001)
    on_ready()

    def is_busy() -> bool:
        return bool(server.server_state.connections) or active(services.journal.state) > 0

    idle = IdleWatch(services.clock, is_busy, idle_seconds or 0.0)
    while not services.stopping.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_LOOK_SECONDS):
                await services.stopping.wait()
        if idle_seconds is not None and idle.is_time_to_exit():
            services.stopping.set()
    server.should_exit = True
