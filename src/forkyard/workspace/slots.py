"""The private id ranges of this machine: each running workspace has one, by its slot."""

from __future__ import annotations

from collections.abc import Iterable

from forkyard.errors import WorkspaceError
from forkyard.shim.ids import IDS


class Slots:
    """Which slots are taken; the journal's rows say so, this only keeps the sum."""

    def __init__(self, taken: Iterable[int]) -> None:
        """Begin with what the journal's rows hold."""
        self._taken = set(taken)

    def take(self) -> int:
        """Take the lowest free one.

        Raises:
            WorkspaceError: All are taken.
        """
        for slot in range(IDS.slots):
            if slot not in self._taken:
                self._taken.add(slot)
                return slot
        raise WorkspaceError(
            f"cannot create a workspace: all {IDS.slots} places are taken",
            hint="Delete workspaces that are no longer needed: `forkyard workspace list`.",
        )

    def release(self, slot: int) -> None:
        """Give one back. Idempotent."""
        self._taken.discard(slot)
