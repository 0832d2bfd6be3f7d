"""``python -m scripted_model``: serve until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from scripted_model.ledger import Ledger
from scripted_model.running import listening
from scripted_model.scenario import Book


async def _serve(scenarios: Path, ledger: Path, host: str, port: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    book = Book.read(scenarios)
    async with listening(book, Ledger(ledger), host=host, port=port) as url:
        sys.stdout.write(json.dumps({"listening": url}) + "\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="scripted_model", description=__doc__)
    parser.add_argument("--scenarios", required=True, type=Path)
    parser.add_argument("--ledger", required=True, type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default=0, type=int, help="0 picks a free one")
    given = parser.parse_args()
    asyncio.run(_serve(given.scenarios, given.ledger, given.host, given.port))


if __name__ == "__main__":
    main()
