"""What the journal's state refers to, and the state once some of it is gone: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forkyard.candidate.pruning import Needed
from forkyard.coordinator.keeping import Unneeded
from forkyard.model.image import Image
from forkyard.model.workspace import (
    ReadOnlyMount,
    Snapshot,
    SnapshotState,
    TemplateState,
    WorkspaceState,
)
from forkyard.store.projections import State


def needed_objects(state: State) -> Needed:
    """Say what of the store of candidate trees somebody refers to."""
    trees: set[str] = set()
    blobs: set[str] = set()
    bases: set[str] = set()
    for snapshot in state.snapshots.values():
        if snapshot.state in {SnapshotState.PENDING, SnapshotState.READY} and snapshot.base:
            of_base = {snapshot.base.tree, snapshot.base.untracked or snapshot.base.tree}
            trees |= of_base
            bases |= of_base
    for candidate in state.candidates.values():
        trees |= {candidate.base_tree, candidate.result_tree}
        for change in candidate.files:
            blobs |= {one for one in (change.old_blob, change.new_blob) if one is not None}
    return Needed(trees=frozenset(trees), blobs=frozenset(blobs), bases=frozenset(bases))


def without_images(state: State) -> State:
    """Give the state as if no image were kept."""
    after = State()
    for entity in state:
        if not isinstance(entity, Image):
            after.apply(entity)
    return after


def shown(state: State) -> Iterator[ReadOnlyMount]:
    """Give all that is shown in workspaces, and would be in those forked from a snapshot."""
    for workspace in state.workspaces.values():
        if workspace.state is not WorkspaceState.DELETED:
            yield from workspace.environment.mounts
    for snapshot in state.snapshots.values():
        if snapshot.state in {SnapshotState.PENDING, SnapshotState.READY}:
            yield from snapshot.environment.mounts


def derived(state: State, snapshot: Snapshot) -> list[Snapshot]:
    """List the sealed copies of a snapshot."""
    return [one for one in state.snapshots.values() if one.sealed_of == snapshot.id]


def without(state: State, goes: Unneeded) -> State:
    """Give the state as it would be once the rows are gone."""
    after = State()
    for entity in state:
        after.apply(entity)
    for one in goes.snapshots:
        for member in (one, *derived(state, one)):
            after.apply(replace(member, state=SnapshotState.DELETED))
    for template in goes.templates:
        after.apply(replace(template, state=TemplateState.DELETED))
    return after
