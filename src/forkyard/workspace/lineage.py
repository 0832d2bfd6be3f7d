"""Which snapshot a snapshot comes from, read from the journal's rows. Pure."""

from __future__ import annotations

from typing import TypedDict

from forkyard.model.ids import SnapshotId
from forkyard.model.workspace import Snapshot, SnapshotState, Workspace
from forkyard.store.projections import State


class Lineage(TypedDict):
    """A snapshot's fields of its own."""

    parent: SnapshotId | None
    depth: int


def lineage(row: Workspace, state: State) -> Lineage:
    """Say what a snapshot of a workspace will come from: its last one, or what it was forked from.

    A sealed snapshot counts as the one that it was derived from.
    """
    parent = state.snapshots.get(row.snapshot)
    for one in state.snapshots.values():
        if one.workspace == row.id and one.sealed_of is None and _was_taken(one):
            parent = one
    if parent is not None and parent.sealed_of is not None:
        parent = state.snapshots.get(parent.sealed_of, parent)
    return Lineage(
        parent=None if parent is None else parent.id,
        depth=0 if parent is None else parent.depth + 1,
    )


def _was_taken(snapshot: Snapshot) -> bool:
    return snapshot.state in (SnapshotState.READY, SnapshotState.DELETED)
