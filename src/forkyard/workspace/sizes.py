"""What snapshots take on disk. A layer never changes, so each is measured once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from forkyard.base.process import run_async
from forkyard.config import Layout
from forkyard.model.ids import LayerId
from forkyard.model.workspace import Snapshot
from forkyard.store.projections import State
from forkyard.workspace.layers import users_of

_SECONDS = 600.0
_VARIABLES = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
_AT_ONCE = 4
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of one snapshot."""

    total_bytes: int
    unique_bytes: int
    """In layers that nobody else needs: what deleting it would give back."""


class Sizes:
    """Measures layers, and remembers."""

    def __init__(self, layout: Layout) -> None:
        """Know of none yet."""
        self._layout = layout
        self._known: dict[LayerId, int] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def of(self, snapshots: Sequence[Snapshot], state: State) -> list[Size]:
        """Measure snapshots, their sealed copies included in what is only theirs.

        Cancellation:
            Safe at any point.
        """
        wanted = {layer for one in snapshots for layer in one.layers}
        await asyncio.gather(*(self._measure(layer) for layer in wanted))
        return [await self._of(one, state) for one in snapshots]

    async def _of(self, snapshot: Snapshot, state: State) -> Size:
        family = {
            snapshot.id,
            *(one.id for one in state.snapshots.values() if one.sealed_of == snapshot.id),
        }
        unique = 0
        for layer in snapshot.layers:
            users = users_of(layer, state)
            if not users.workspaces and family.issuperset(users.snapshots):
                is_merged = bool(snapshot.flattened) and layer not in snapshot.flattened
                unique += await self._unlinked(layer) if is_merged else self._known.get(layer, 0)
        total = sum(self._known.get(layer, 0) for layer in snapshot.layers)
        return Size(total_bytes=total, unique_bytes=unique)

    async def _measure(self, layer: LayerId) -> None:
        if layer in self._known:
            return
        async with self._turn:
            words = await self._output("du", "-skx", "--", str(self._layout.layer(layer)))
        if words and words[0].isdigit():
            self._known[layer] = int(words[0]) * 1024

    async def _unlinked(self, layer: LayerId) -> int:
        """Measure a merged layer without the files that the layers it stands for still hold."""
        blocks = await self._output(
            "find", str(self._layout.layer(layer)), "-xdev",
            "(", "-type", "d", "-o", "-links", "1", ")", "-printf", "%b\\n",
        )  # fmt: skip
        return sum(map(int, blocks)) * _BLOCK_BYTES

    async def _output(self, *argv: str) -> list[str]:
        done = await run_async(list(argv), variables=_VARIABLES, timeout_seconds=_SECONDS)
        return done.stdout.decode("ascii", "replace").split()
