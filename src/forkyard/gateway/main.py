"""The gateway process: gives up everything, then serves; see privileges.py and control.py.

Started by the supervisor through `base.process.start_detached`, as root and with an environment
that names the state directory and nothing secret.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from forkyard.config import Layout, state_directory
from forkyard.gateway import privileges
from forkyard.gateway.keys import KeyRing, MaskingFormatter

if TYPE_CHECKING:
    from forkyard.gateway.upstream import Upstream


def run() -> None:
    """Serve until told to quit, or until nobody needs a gateway any more."""
    owner = os.getuid()
    layout = Layout(state_directory())
    control = privileges.enter(layout, privileges.gateway_post(layout))
    keys = KeyRing()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MaskingFormatter(keys))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    upstream = _warm_up()
    privileges.finish()
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(_serve(keys, upstream, control, owner))
    finally:
        logging.shutdown()


def _warm_up() -> Upstream:
    """Import and read whatever will be needed: later a file of root's alone cannot be read."""
    # Only now, as a user without rights: what parses hostile bytes is never loaded with more.
    from forkyard.gateway import control, hub  # noqa: F401, PLC0415 - loaded after the privileges are gone
    from forkyard.gateway.interface import Api  # noqa: PLC0415 - loaded after the privileges are gone
    from forkyard.gateway.prices import PriceTable  # noqa: PLC0415 - loaded after the privileges are gone
    from forkyard.gateway.upstream import Upstream  # noqa: PLC0415 - loaded after the privileges are gone

    PriceTable().price_of("any", Api.ANTHROPIC)
    "localhost".encode("idna")
    return Upstream()


async def _serve(keys: KeyRing, upstream: Upstream, listener: socket.socket, owner: int) -> None:
    from forkyard.gateway.control import Control  # noqa: PLC0415 - see _warm_up
    from forkyard.gateway.hub import Hub, open_ledger  # noqa: PLC0415 - see _warm_up

    ledger = await open_ledger()
    try:
        async with upstream:
            control = Control(Hub(keys, ledger, upstream), listener, owner)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, control.quitting.set)
            await control.serve()
    finally:
        await ledger.close()
