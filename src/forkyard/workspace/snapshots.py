"""Snapshots: what a workspace's files were, for ever, at the cost of what changed.

Taking one of a stopped workspace renames its upper directory to a layer; the workspace goes on
above it. Of a running one the upper directory is copied while everything in it is held still. The
pending row names the layer before that; `ready` is written when the layer is on disk and its base
is recorded. A snapshot that fails leaves the workspace as it was.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
    WorkspaceError,
)
from forkyard.model.ids import LayerId, SnapshotId, WorkspaceId, new_layer_id, new_snapshot_id
from forkyard.model.workspace import (
    REPOSITORY,
    RecordedBase,
    Snapshot,
    SnapshotState,
    Workspace,
    WorkspaceState,
)
from forkyard.store.journal import Change
from forkyard.workspace import hard_disk
from forkyard.workspace.flattening import MOST_LAYERS, Flattening, shortened
from forkyard.workspace.interface import BaseRecorder
from forkyard.workspace.layers import users_of
from forkyard.workspace.lineage import lineage, standing_on
from forkyard.workspace.live_copy import copy_running
from forkyard.workspace.sandboxes import UP
from forkyard.workspace.sealing import Sealing
from forkyard.workspace.sizes import Size, Sizes
from forkyard.workspace.workspaces import Workspaces

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
_LIVE = (SnapshotState.PENDING, SnapshotState.READY)


class Snapshots:
    """The snapshots of one state directory; the only one to change their rows."""

    def __init__(self, workspaces: Workspaces, recorder: BaseRecorder, clock: Clock) -> None:
        """Keep the collaborators; nothing is done yet."""
        self.workspaces = workspaces
        self._journal = workspaces.journal
        self._layers = workspaces.layers
        self._recorder = recorder
        self._clock = clock
        self._naming = asyncio.Lock()
        self._sealing = Sealing(workspaces, clock)
        self._sealing_locks: dict[SnapshotId, asyncio.Lock] = {}
        self._background = workspaces.background
        self._sizes = Sizes(workspaces.layout)
        self._flattening = Flattening(workspaces.journal, workspaces.layers)

    def get(self, name: str) -> Snapshot:
        """Give a snapshot by name or id.

        Raises:
            NotFoundError: There is none, or it is deleted.
        """
        row = self._journal.state.snapshot_named(name)
        if row is None or row.state is SnapshotState.DELETED:
            raise NotFoundError(
                f"cannot find snapshot {name}: there is no such snapshot",
                hint="List them with `forkyard snapshot list`.",
            )
        return row

    async def create(self, name: str, workspace: WorkspaceId) -> Snapshot:
        """Take a snapshot of a workspace, stopped or running.

        Args:
            name: Unique among the snapshots that are not deleted.
            workspace: It goes on from the same files; one that runs is frozen for as long as
                copying what it wrote takes.

        Returns:
            The ready snapshot.

        Raises:
            ConfigError: The name cannot be one.
            ConflictError: The name is taken, or the workspace is being stopped or deleted.
            WorkspaceError: It could not be taken; the workspace is as it was.

        Cancellation:
            The snapshot is still taken.

        Durability:
            Its files and its row are on disk when this returns.
        """
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"cannot create snapshot {name!r}: a name has 1 to 100 letters, digits and . _ / -,"
                " and starts with a letter or digit"
            )
        pending = await self._background.finish(self._begin(name, workspace))
        return await self._background.finish(self.take(pending, workspace))

    async def _begin(self, name: str, workspace: WorkspaceId) -> Snapshot:
        async with self._naming:
            row = _there(self.workspaces.get(workspace))
            taken = self._journal.state.snapshot_named(name)
            if taken is not None and taken.state in _LIVE:
                raise ConflictError(
                    f"cannot create snapshot {name}: the name is taken by {taken.id},"
                    f" which is {taken.state}",
                    hint=f"Choose another name, or `forkyard snapshot delete {name}` first.",
                )
            pending = Snapshot(
                id=new_snapshot_id(),
                name=name,
                state=SnapshotState.PENDING,
                created_at=self._clock.now(),
                layers=row.layers,
                environment=row.environment,
                limits=row.limits,
                workspace=row.id,
                **lineage(row, self._journal.state),
            )
            await self._journal.append(pending, "asked for", expect=None)
            return pending

    async def take(self, pending: Snapshot, workspace: WorkspaceId) -> Snapshot:
        """Bring a pending snapshot to its end; for `create` and template builds.

        Raises:
            ConflictError: The workspace is being stopped or deleted.
            WorkspaceError: It could not be taken; its row says why.
        """
        try:
            async with self.workspaces.held(workspace, usable=True) as row:
                if _there(row).state is WorkspaceState.STOPPED:
                    return await self._take(pending, row)
                return await self._take_running(pending, row)
        except OSError as error:
            reason = error.strerror or str(error)
            await self.fail(pending.id, reason)
            raise WorkspaceError(
                f"cannot take snapshot {pending.name}: {reason}",
                hint="Look at the disk of the state directory, then retry.",
            ) from error
        except BaseException as error:
            await self.fail(pending.id, str(error) or type(error).__name__)
            raise

    async def _take(self, pending: Snapshot, row: Workspace) -> Snapshot:
        layers = shortened(row.layers, self._journal.state)
        if not self._layers.upper_is_empty(row.id):
            added = new_layer_id()
            layers = (added, *layers)
            pending = replace(pending, layers=layers)
            above = replace(row, layers=layers)
            await self._journal.append_all(
                [
                    Change(entity=pending, note=f"layer {added}"),
                    Change(entity=above, note="goes on above its snapshot", expect=row),
                ]
            )
            failpoint("S01")
            try:
                self._layers.adopt_upper(row.id, added)
                return await self._complete(pending)
            except BaseException:
                self._layers.return_upper(row.id, added)
                await self._journal.append(row, "no snapshot was taken", expect=above)
                raise
        return await self._complete(replace(pending, layers=layers))

    async def _take_running(self, pending: Snapshot, row: Workspace) -> Snapshot:
        added = new_layer_id()
        below = shortened(row.layers, self._journal.state)
        pending = replace(pending, layers=(added, *below))
        await self._journal.append(pending, f"layer {added}")
        seconds = await copy_running(
            self.workspaces.fleet,
            self._layers,
            row,
            hard_disk.written(self.workspaces.layout, row),
            added,
        )
        return await self._complete(replace(pending, frozen_seconds=seconds))

    async def _complete(self, pending: Snapshot) -> Snapshot:
        failpoint("S02")
        # The one waits for the processor, the other for the disk.
        base, _ = await asyncio.gather(self._record(pending), self._layers.sync())
        ready = replace(pending, state=SnapshotState.READY, base=base)
        await self._journal.append(ready, "ready")
        if len(ready.layers) >= MOST_LAYERS:
            self._background.spawn(self._flattening.flatten(ready.id))
        return ready

    async def _record(self, pending: Snapshot) -> RecordedBase | None:
        repository, before = REPOSITORY, None
        if pending.workspace is not None:
            workspace = self._journal.state.workspaces[pending.workspace]
            origin = self._journal.state.snapshots.get(workspace.snapshot)
            if origin is not None and origin.base is not None:
                repository = origin.base.repository
        found = self._layers.lookup(pending.layers, repository)
        if found is None or not found.is_directory:
            return None
        for one in self._journal.state.snapshots.values():
            if one.state is SnapshotState.READY and one.base is not None:
                if one.layers == pending.layers and one.base.repository == repository:
                    return one.base
                if one.layers == pending.layers[1:]:
                    before = one.base
        return await self._recorder.record(pending.layers, repository, before)

    async def fail(self, snapshot: SnapshotId, trouble: str) -> None:
        """Write a pending snapshot off; its row says why and needs no layer any more."""
        row = self._journal.state.snapshots[snapshot]
        if row.state is not SnapshotState.PENDING:
            return
        failed = replace(row, state=SnapshotState.FAILED, layers=(), trouble=trouble)
        await self._journal.append(failed, trouble, expect=row)
        self._layers.remove_unneeded(row.layers, self._journal.state)
        await self._layers.empty_trash()

    async def sizes(self, snapshots: Sequence[Snapshot]) -> list[Size]:
        """Measure what each takes on disk; see `Sizes.of`."""
        return await self._sizes.of(snapshots, self._journal.state)

    async def wait_until_ready(self, name: str) -> Snapshot:
        """Wait for a snapshot that someone else takes.

        Raises:
            NotFoundError: There is none of that name.
            WorkspaceError: It failed.

        Cancellation:
            Safe at any point.
        """
        while True:
            sequence = self._journal.sequence
            row = self.get(name)
            if row.state is SnapshotState.READY:
                return row
            if row.state is SnapshotState.FAILED:
                raise WorkspaceError(f"cannot use snapshot {name}: {row.trouble or 'it failed'}")
            await self._journal.wait_for_change(sequence)

    async def sealed(self, snapshot: Snapshot | SnapshotId) -> Snapshot:
        """Give the derived snapshot whose history ends at the base commit, made at most once.

        Args:
            snapshot: Ready; a sealed one, and one without a repository, is given back as it is.

        Raises:
            NotFoundError: No such snapshot.
            ConflictError: It is not ready.
            WorkspaceError: Its history could not be sealed; nothing is left of the try.

        Cancellation:
            It is still made.
        """
        row = self.get(snapshot.id if isinstance(snapshot, Snapshot) else snapshot)
        if row.state is not SnapshotState.READY:
            raise ConflictError(
                f"cannot seal snapshot {row.name}: it is {row.state}",
                hint="Wait until it is ready, or take it again.",
            )
        if row.sealed_of is not None:
            return row
        return await self._background.finish(self._sealed(row))

    async def _sealed(self, snapshot: Snapshot) -> Snapshot:
        async with self._sealing_locks.setdefault(snapshot.id, asyncio.Lock()):
            for row in self._journal.state.snapshots.values():
                if row.sealed_of == snapshot.id and row.state is SnapshotState.READY:
                    return row
            return await self._sealing.seal(snapshot)

    async def delete(self, name: str) -> None:
        """Delete a snapshot, and the layers that nobody else needs. Idempotent by id.

        Raises:
            NotFoundError: There never was one of that name.
            ConflictError: A workspace or another snapshot stands on it, or it is pending.
        """
        row = self._journal.state.snapshots.get(SnapshotId(name)) or self.get(name)
        if row.state is not SnapshotState.DELETED:
            await self._background.finish(self._delete(row))

    async def _delete(self, row: Snapshot) -> None:
        async with self._naming:
            row = self._journal.state.snapshots[row.id]
            if row.state is SnapshotState.DELETED:
                return
            if row.state is SnapshotState.PENDING:
                raise ConflictError(
                    f"cannot delete snapshot {row.name}: it is still being taken",
                    hint="Wait until it is ready.",
                )
            family = [row, *self._derived(row)]
            self._refuse_when_needed(row, {member.id for member in family})
            await self._journal.append_all(
                [
                    Change(entity=replace(m, state=SnapshotState.DELETED), note="deleted", expect=m)
                    for m in family
                ]
            )
            layers: set[LayerId] = {layer for member in family for layer in member.layers}
            self._layers.remove_unneeded(layers, self._journal.state)
        self._sealing_locks.pop(row.id, None)
        await self._layers.empty_trash()

    def _derived(self, row: Snapshot) -> list[Snapshot]:
        derived = [s for s in self._journal.state.snapshots.values() if s.sealed_of == row.id]
        if any(member.state is SnapshotState.PENDING for member in derived):
            raise ConflictError(f"cannot delete snapshot {row.name}: it is being sealed for a run")
        return [member for member in derived if member.state is SnapshotState.READY]

    def _refuse_when_needed(self, row: Snapshot, family: set[SnapshotId]) -> None:
        kinds = standing_on(row, family, self._journal.state)
        if kinds:
            who = ", ".join(kinds[:5]) + (f" and {len(kinds) - 5} more" if len(kinds) > 5 else "")  # noqa: PLR2004 - as many as are named
            stand = "stands" if len(kinds) == 1 else "stand"
            raise ConflictError(
                f"cannot delete snapshot {row.name}: {who} {stand} on it",
                hint="Delete those first.",
            )

    def is_needed(self, row: Snapshot) -> bool:
        """Say whether deleting a snapshot would be refused now."""
        try:
            family = {row.id, *(member.id for member in self._derived(row))}
        except ConflictError:
            return True
        return row.state is SnapshotState.PENDING or bool(
            standing_on(row, family, self._journal.state)
        )

    async def recover(self) -> None:
        """Bring every pending snapshot of an earlier server to an end; again changes nothing.

        Call it after `Workspaces.recover`, before anything new is asked for.
        """
        for row in list(self._journal.state.snapshots.values()):
            if row.state is not SnapshotState.PENDING:
                continue
            if row.sealed_of is None and row.workspace is not None:
                await self._give_back(row, row.workspace)
            await self.fail(row.id, "interrupted: the server ended while it was being taken")
        await self._flattening.recover()
        for workspace in list(self._journal.state.workspaces.values()):
            # those in which histories are sealed
            if workspace.owner is not None and workspace.owner in self._journal.state.snapshots:
                await self.workspaces.delete(workspace.id)
        for path in self._layers.leftovers(self._journal.state):
            self._layers.discard(path)
        await self._layers.empty_trash()

    async def _give_back(self, pending: Snapshot, workspace: WorkspaceId) -> None:
        """Take a half-done `take` back."""
        row = self._journal.state.workspaces.get(workspace)
        if row is None or row.state is WorkspaceState.DELETED or row.layers != pending.layers:
            return
        added = pending.layers[0] if len(pending.layers) > 1 else None
        if added is None or not self._names_only(pending, workspace, added):
            return
        with suppress(ConflictError):
            self._layers.return_upper(workspace, added)
            await self._journal.append(
                replace(row, layers=row.layers[1:]), "no snapshot was taken", expect=row
            )

    def _names_only(self, pending: Snapshot, workspace: WorkspaceId, layer: LayerId) -> bool:
        users = users_of(layer, self._journal.state)
        return set(users.workspaces) == {workspace} and set(users.snapshots) == {pending.id}


def _there(row: Workspace) -> Workspace:
    if row.state in (WorkspaceState.STOPPED, *UP):
        return row
    raise ConflictError(
        f"cannot take a snapshot of workspace {row.id}: it is {row.state}",
        hint=f"Look at it with `forkyard workspace show {row.id}`.",
    )
