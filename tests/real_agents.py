"""Agents that nobody here wrote: pinned archives, fetched by ./dev, installed once a session."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path

from forkyard.config import Layout, registry_settings, search_path
from forkyard.workspace.agent_install import Agents, InstalledAgent, installable

ROOT = Path(__file__).parents[1]
ARCHIVES = ROOT / ".cache" / "agents"
"""Where ./dev keeps them; `forkyard agent install NAME --from` takes them from here."""
_SHARED = "FORKYARD_TEST_FOLDER"


def fetch(*drivers: str) -> Path:
    """Give the folder of the pinned archives, fetched where ./dev has not done so yet."""
    with tempfile.TemporaryDirectory() as scratch:
        agents = Agents(
            Layout(Path(scratch)), search_path=search_path(), variables=registry_settings()
        )
        for driver in drivers or installable():
            asyncio.run(agents.fetch(driver, ARCHIVES, announce=_say))
    return ARCHIVES


def provide(home: Path, *drivers: str) -> tuple[InstalledAgent, ...]:
    """Install agents into a state directory, unpacked once for all tests of the session."""
    once = Layout(Path(os.environ[_SHARED]) / "agents-once")
    once.home.mkdir(exist_ok=True)
    given = []
    with (once.home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for driver in drivers:
            source = fetch(driver)
            made = asyncio.run(Agents(once).install(driver, source=source))
            target = Layout(home).agents / made.folder.parent.name
            if not target.exists():
                shutil.copytree(made.folder.parent, target, copy_function=_link)
            given.append(made)
    agents = Agents(Layout(home))
    found = tuple(one for one in (agents.find(made.driver) for made in given) if one is not None)
    assert len(found) == len(drivers)
    return found


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _say(text: str) -> None:
    sys.stderr.write(f"agents: {text}\n")
