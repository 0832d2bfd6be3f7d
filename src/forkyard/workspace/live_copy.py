"""The layer of a running workspace: what it wrote, copied while everything in it is held still.

Its cost is what the workspace wrote, not its tree. The copy is what a power cut would have left
on a disk that loses nothing: consistent as files go, whatever a program meant to write next.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forkyard
from forkyard.base.durable import failpoint
from forkyard.base.process import run_async
from forkyard.errors import WorkspaceError
from forkyard.model.ids import LayerId
from forkyard.model.workspace import Workspace
from forkyard.workspace.interface import Fleet
from forkyard.workspace.layers import Layers
from forkyard.workspace.trusted_git import last_words

FROZEN_SECONDS = 120.0
"""A workspace is held still no longer than this."""


async def copy_running(
    fleet: Fleet, layers: Layers, row: Workspace, upper: Path, layer: LayerId
) -> float:
    """Make a layer of what a running workspace wrote up to one instant.

    Args:
        fleet: Runs its sandbox.
        layers: Where the layer goes; its name is in the journal already.
        row: The caller holds its lock.
        upper: Where what it wrote lies.
        layer: The new layer's name.

    Returns:
        For how many seconds it was frozen.

    Raises:
        WorkspaceError: It could not be frozen, or not copied in time; it runs on.

    Cancellation:
        It goes on; the half-made layer is left to whoever removes what no row names.

    Durability:
        None before `Layers.sync`; no row may say that the layer is whole before that.
    """
    target = layers.start(layer)
    await fleet.freeze(row.id, epoch=row.epoch, seconds=FROZEN_SECONDS)
    try:
        failpoint("S05")
        await copy_tree(upper, target, what=f"copy what workspace {row.id} wrote")
    finally:
        seconds = await fleet.thaw(row.id, epoch=row.epoch)
    if seconds is None:
        raise WorkspaceError(
            f"cannot copy what workspace {row.id} wrote: it was not held still to the end, for"
            f" which it has {FROZEN_SECONDS:g} s",
            hint=f"Stop it first: `forkyard workspace stop {row.id}`.",
        )
    failpoint("S06")
    layers.name(layer)
    return round(seconds, 3)


async def copy_tree(source: Path, target: Path, *, what: str) -> None:
    """Copy a folder that nobody writes to into an empty one, exactly.

    Raises:
        WorkspaceError: It could not be; the target is half-made.

    Cancellation:
        The helper is killed; the target is half-made.
    """
    await run_helper(
        "forkyard.workspace.upper_copy", {"source": str(source), "target": str(target)}, what=what
    )


async def run_helper(
    module: str, asked: dict[str, object], *, what: str, timeout_seconds: float = 3600.0
) -> dict[str, object]:
    """Have a helper process do something to layers, and give its report.

    Raises:
        WorkspaceError: It could not, with its reason.
    """
    package = Path(forkyard.__file__).parents[1]
    done = await run_async(
        [sys.executable, "-S", "-s", "-P", "-B", "-m", module],
        variables={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        stdin=json.dumps(asked).encode(),
        timeout_seconds=timeout_seconds,
    )
    report = json.loads(done.stdout) if done.succeeded else {"error": last_words(done.stderr)}
    if report["error"] is not None:
        raise WorkspaceError(
            f"cannot {what}: {report['error']}",
            hint="Free space in the state directory, then retry."
            if report.get("full")
            else "Look at the disk of the state directory, then retry.",
        )
    return dict(report)
