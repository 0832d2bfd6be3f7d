"""Keeping snapshots shallow: looking up a name that is not there costs one look per layer.

A snapshot of many layers gets most of them merged into one, in the background. The merged layer's
name is in the snapshot's row before it exists; the row then lists it instead of those that it
stands for, in one write. Whoever stands on the old ones keeps them, and goes over to the merged one
at its next start or snapshot.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from forkyard.base.durable import failpoint
from forkyard.errors import ConflictError
from forkyard.model.ids import LayerId, SnapshotId, new_layer_id
from forkyard.model.workspace import Snapshot, SnapshotState
from forkyard.store.journal import Journal
from forkyard.store.projections import State
from forkyard.workspace.layers import OPAQUE, Layers
from forkyard.workspace.live_copy import run_helper

MOST_LAYERS = 32
"""A snapshot of so many is flattened."""
_KEPT = 8
"""The layers of the first snapshot of a line are left alone where they are no more than this: an
image's are shared with others."""


class Flattening:
    """Merges layers of snapshots, one snapshot at a time."""

    def __init__(self, journal: Journal, layers: Layers) -> None:
        """Nothing is merged yet."""
        self._journal = journal
        self._layers = layers
        self._turn = asyncio.Lock()

    async def flatten(self, snapshot: SnapshotId) -> None:
        """Merge most layers of a snapshot; one that is shallow, merged or gone is left alone.

        Raises:
            WorkspaceError: They could not be merged; the snapshot is as it was.

        Cancellation:
            The helper is killed and what it made is removed.

        Durability:
            The merged layer is on disk before the row names it as one of the snapshot's.
        """
        async with self._turn:
            row = self._journal.state.snapshots[snapshot]
            if (
                row.state is SnapshotState.READY
                and len(row.layers) >= MOST_LAYERS
                and row.flattening is None
            ):
                await self._flatten(row)

    async def _flatten(self, row: Snapshot) -> None:
        merged = new_layer_id()
        kept = row.layers[-_kept(row, self._journal.state) :]
        gone = row.layers[: -len(kept)]
        marked = replace(row, flattening=merged)
        await self._journal.append(marked, f"merge {len(gone)} layers into {merged}", expect=row)
        failpoint("S07")
        try:
            await self._merge(gone, merged)
            failpoint("S08")
            done = replace(marked, layers=(merged, *kept), flattening=None, flattened=row.layers)
            await self._journal.append(done, f"merged into {merged}", expect=marked)
        except BaseException:
            await self._give_up(marked)
            raise
        failpoint("S09")
        self._layers.remove_unneeded(gone, self._journal.state)
        await self._layers.empty_trash()

    async def _merge(self, layers: tuple[LayerId, ...], into: LayerId) -> None:
        target = self._layers.start(into)
        await run_helper(
            "forkyard.workspace.layer_merge",
            {
                "layers": [str(self._layers.path(layer)) for layer in layers],
                "target": str(target),
                "has_below": True,
                "opaque": OPAQUE,
            },
            what=f"merge {len(layers)} layers",
        )
        await self._layers.finish(into)

    async def _give_up(self, marked: Snapshot) -> None:
        # It may have been deleted meanwhile: then nothing names the layer any more.
        with suppress(ConflictError):
            await self._journal.append(
                replace(marked, flattening=None), "not merged", expect=marked
            )
        if marked.flattening is not None:
            self._layers.remove_unneeded((marked.flattening,), self._journal.state)
        await self._layers.empty_trash()

    async def recover(self) -> None:
        """Give up what an earlier server was merging; again changes nothing."""
        for row in list(self._journal.state.snapshots.values()):
            if row.flattening is not None and row.state is SnapshotState.READY:
                await self._give_up(row)


def _kept(row: Snapshot, state: State) -> int:
    """Count the lowest layers that stay as they are."""
    first = row
    while first.parent is not None and first.parent in state.snapshots:
        first = state.snapshots[first.parent]
    count = len(first.layers)
    is_below = 0 < count <= _KEPT and row.layers[-count:] == first.layers
    return count if is_below else 1


def shortened(layers: tuple[LayerId, ...], state: State) -> tuple[LayerId, ...]:
    """Give the fewest layers that show the same as these, by what was merged. Pure."""
    best = layers
    for one in state.snapshots.values():
        count = len(one.flattened)
        if count and one.state is SnapshotState.READY and layers[-count:] == one.flattened:
            best = min(best, (*layers[:-count], *one.layers), key=len)
    return best
