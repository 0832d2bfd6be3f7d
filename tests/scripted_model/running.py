"""Running a scripted model: as a child process, or in the event loop of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from scripted_model.ledger import Bill, Ledger, read_bills
from scripted_model.scenario import Book
from scripted_model.server import application
from scripted_model.shapes import Object, an_object, text

_TESTS = Path(__file__).parent.parent
_PATIENCE = 30.0
"""Seconds for a child to start, or to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedModel:
    """One that runs."""

    url: str
    """Base URL of every API."""
    ledger: Path

    def billed(self) -> tuple[Bill, ...]:
        """Read the ledger so far."""
        return read_bills(self.ledger)


@asynccontextmanager
async def serve_model(
    folder: Path, scenarios: Object, *, port: int = 0
) -> AsyncIterator[ScriptedModel]:
    """Serve in this event loop, on loopback."""
    path = folder / "model-ledger.jsonl"
    ledger = Ledger(path)
    try:
        async with listening(Book(scenarios), ledger, host="127.0.0.1", port=port) as url:
            yield ScriptedModel(url=url, ledger=path)
    finally:
        ledger.close()


@asynccontextmanager
async def listening(book: Book, ledger: Ledger, *, host: str, port: int) -> AsyncIterator[str]:
    """Listen while the block runs; gives the base URL."""
    runner = web.AppRunner(
        application(book, ledger), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
        found = runner.addresses[0]
        yield f"http://{found[0]}:{found[1]}"
    finally:
        await runner.cleanup()


@contextmanager
def start_model(
    folder: Path, scenarios: Object, *, port: int = 0, within: Sequence[str] = ()
) -> Iterator[ScriptedModel]:
    """Start a child process that serves on loopback, and end it after the block.

    Args:
        folder: For its files.
        scenarios: What it answers.
        port: 0: any that is free.
        within: Words before its command, such as those that enter another network namespace.
    """
    script, ledger = folder / "model-scenarios.json", folder / "model-ledger.jsonl"
    script.write_text(json.dumps(scenarios), encoding="utf-8")
    argv = [*within, sys.executable, "-m", "scripted_model", "--scenarios", str(script)]
    argv += ["--ledger", str(ledger), "--port", str(port)]
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={"PATH": os.defpath, "PYTHONPATH": str(_TESTS)},
        start_new_session=True,
    )
    try:
        yield ScriptedModel(url=_first_line(child), ledger=ledger)
    finally:
        child.terminate()
        try:
            child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _first_line(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"the scripted model ended with {child.wait(_PATIENCE)}")
    return text(an_object(json.loads(line)).get("listening"))
