"""The state directory as a server opens it: made or checked, its mode and its journal."""

from __future__ import annotations

import shutil
import time

from forkyard.base.clock import Clock
from forkyard.base.durable import make_directory, write_file
from forkyard.client.rootless import remember
from forkyard.config import (
    FORMAT_VERSION,
    Layout,
)
from forkyard.errors import StoreError
from forkyard.server.candidates import SCRATCH_PREFIX
from forkyard.shim.id_maps import own_map
from forkyard.shim.ids import IDS
from forkyard.store.journal import Journal
from forkyard.store.reserve import Reserve
from forkyard.workspace.images import SCRATCH_PREFIX as IMAGE_SCRATCH

LOCK_PATIENCE_SECONDS = 15.0
"""A server that is just exiting lets go of the state directory within this time."""


def open_journal(layout: Layout, clock: Clock) -> Journal:
    """Open the journal; a server that is just exiting is waited for.

    Raises:
        StoreError: Held by a live server, damaged, or of another format.
    """
    reserve = Reserve(layout.reserve)
    reserve.release_when_full()
    prepare(layout)
    deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
    while True:
        try:
            journal = Journal.open(layout.database, clock, reserve=reserve)
        except StoreError as error:
            if "held by" not in error.message or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            reserve.keep()
            if IDS.is_rootless:
                remember(layout)
            return journal


def prepare(layout: Layout) -> None:
    """Make the state directory, and refuse one of another format.

    Raises:
        StoreError: It cannot be made, or a newer version wrote it.
    """
    try:
        make_directory(layout.home)
        make_directory(layout.run)
        layout.run.chmod(0o700)
        marker = layout.home / "format"
        is_new = not marker.exists()
        if is_new:
            write_file(marker, f"{FORMAT_VERSION}\n".encode())
        found = marker.read_text().strip()
        mode = _mode_of(layout, is_new=is_new)
        for prefix in (SCRATCH_PREFIX, IMAGE_SCRATCH):
            for leftover in layout.run.glob(f"{prefix}*"):
                shutil.rmtree(leftover, ignore_errors=True)
    except OSError as error:
        raise StoreError(
            f"cannot use the state directory {layout.home}: {error.strerror or error}",
            hint="Set FORKYARD_HOME to a directory that you may write.",
        ) from error
    if found != str(FORMAT_VERSION):
        raise StoreError(
            f"cannot use the state directory {layout.home}: it has format {found!r}, this version"
            f" reads {FORMAT_VERSION}",
            hint="Use the version of Forkyard that made it, or another FORKYARD_HOME.",
        )
    if mode != _own_mode():
        raise _other_mode(layout, mode)


def _own_mode() -> str:
    if not IDS.is_rootless:
        return "root"
    return "\n".join(["rootless", *(" ".join(line.split()) for line in own_map().splitlines())])


def _mode_of(layout: Layout, *, is_new: bool) -> str:
    """Read in which mode the files were written; a new directory is of ours."""
    if is_new:
        write_file(layout.mode, f"{_own_mode()}\n".encode())
    return layout.mode.read_text().strip() if layout.mode.exists() else "root"


def _other_mode(layout: Layout, mode: str) -> StoreError:
    theirs, ours = mode.split("\n", maxsplit=1)[0], _own_mode().split("\n")[0]
    if theirs == ours:
        return StoreError(
            f"cannot use the state directory {layout.home}: its files belong to other sub-ids than"
            " this user's now",
            hint="Give the user the range back that /etc/subuid had, or use another FORKYARD_HOME.",
        )
    user = "the user whose it is" if theirs == "rootless" else "root"
    return StoreError(
        f"cannot use the state directory {layout.home}: its files are of mode {theirs}, and this"
        f" server runs in mode {ours}",
        hint=f"Run forkyard as {user}, or set FORKYARD_HOME to another directory.",
    )
