"""The proxy's process: gives up everything, then serves; see privileges.py and control.py.

Started by its supervisor through `base.process.start_detached`, as root and with an environment
that names the state directory and nothing secret. It never learns a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from forkyard.config import Layout, state_directory
from forkyard.gateway import privileges


def run() -> None:
    """Serve until told to quit, or until nobody needs a proxy any more."""
    owner = os.getuid()
    layout = Layout(state_directory())
    control = privileges.enter(layout, privileges.egress_post(layout))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    _warm_up()
    privileges.finish()
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(_serve(control, owner))
    finally:
        logging.shutdown()


def _warm_up() -> None:
    """Import and load whatever will be needed: later a file of root's alone cannot be read."""
    # Only now, as a user without rights: what parses hostile bytes is never loaded with more.
    from forkyard.gateway.egress import control  # noqa: F401, PLC0415 - loaded after the privileges are gone

    "localhost".encode("idna")
    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", None)  # loads the resolver's own modules


async def _serve(listener: socket.socket, owner: int) -> None:
    from forkyard.gateway.egress.control import Control  # noqa: PLC0415 - see _warm_up
    from forkyard.gateway.egress.hub import Hub  # noqa: PLC0415 - see _warm_up

    control = Control(Hub(Path.cwd()), listener, owner)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, control.quitting.set)
    await control.serve()
