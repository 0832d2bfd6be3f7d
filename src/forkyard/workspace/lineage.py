"""Where a snapshot comes from, and who stands on it, read from the journal's rows. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TypedDict

from forkyard.model.ids import SnapshotId
from forkyard.model.workspace import Snapshot, SnapshotState, Workspace, WorkspaceState
from forkyard.store.projections import State
from forkyard.workspace.layers import users_of


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


def standing_on(row: Snapshot, family: AbstractSet[SnapshotId], state: State) -> list[str]:
    """Name who stands on a snapshot's topmost layer; whoever only shares lower ones does not count.

    Args:
        row: The snapshot.
        family: It and those that were derived from it, which do not count either.
        state: The journal's rows.
    """
    workspaces = {
        w.id
        for w in state.workspaces.values()
        if w.state is not WorkspaceState.DELETED and w.snapshot in family
    }
    snapshots: set[str] = set()
    if row.layers:
        # since its layers were merged, those who have the old ones stand on it as before
        tops = (row.layers[0], *row.flattened[:1])
        users = [users_of(top, state) for top in tops]
        workspaces.update(name for one in users for name in one.workspaces)
        for other in {name for one in users for name in one.snapshots}:
            # one with the very same layers holds them as well as this one does
            if other not in family and state.snapshots[other].layers != row.layers:
                snapshots.add(state.snapshots[other].name)
    kinds = [f"workspace {name}" for name in sorted(workspaces)]
    return kinds + [f"snapshot {name}" for name in sorted(snapshots)]
