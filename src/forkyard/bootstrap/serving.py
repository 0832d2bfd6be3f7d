"""The server's process: what it logs, what it opens, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from forkyard.base.clock import Clock, SystemClock
from forkyard.base.masking import Masker
from forkyard.base.masking_log import mask_log
from forkyard.bootstrap.assembly import assemble
from forkyard.bootstrap.state_directory import open_journal
from forkyard.config import (
    Layout,
)
from forkyard.server.endpoint import listen
from forkyard.server.serve import serve as answer
from forkyard.store.journal import Journal


def serve(
    home: Path, *, idle_seconds: float | None, announce: Callable[[str], None], is_foreground: bool
) -> None:
    """Run the server of this installation until it is asked to stop.

    Raises:
        StoreError: Another server holds the state directory, or it cannot be used.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    masker = Masker()
    mask_log(masker)
    # A core file would hold every key; what is started from here may raise it again for itself.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    layout = Layout(home)
    clock = SystemClock()
    journal = open_journal(layout, clock)
    # What is loaded by now stays: the collector need not walk it between a request and its answer.
    gc.collect()
    gc.freeze()

    def ready() -> None:
        if is_foreground:
            announce(f"Serving {layout.home}; Ctrl-C stops it, sandboxes go on.")

    try:
        asyncio.run(_serve(layout, clock, journal, masker, idle_seconds, ready))
    finally:
        journal.close()


async def _serve(
    layout: Layout,
    clock: Clock,
    journal: Journal,
    masker: Masker,
    idle_seconds: float | None,
    on_ready: Callable[[], None],
) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with assemble(
        layout, clock, journal=journal, stopping=stopping, masker=masker
    ) as services:
        listener = listen(layout.api_socket)
        try:
            await answer(services, listener, idle_seconds=idle_seconds, on_ready=on_ready)
        finally:
            # Nobody else can have put another one there: the lock is still ours.
            with contextlib.suppress(FileNotFoundError):
                layout.api_socket.unlink()
