"""A part of `Workspaces`: how they come and go. Every fork begins here, and ends here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.config import Layout
from forkyard.errors import ConflictError, ForkyardError, NotFoundError
from forkyard.model.budget import Budget
from forkyard.model.ids import (
    LayerId,
    SnapshotId,
    WorkspaceId,
    new_workspace_id,
)
from forkyard.model.workspace import (
    Environment,
    Lifetime,
    Limits,
    NetworkPolicy,
    ReadOnlyMount,
    SnapshotState,
    Workspace,
    WorkspaceState,
)
from forkyard.store.journal import Change
from forkyard.workspace import hard_disk, ports
from forkyard.workspace.background import Background
from forkyard.workspace.egress import Egress
from forkyard.workspace.layers import Layers
from forkyard.workspace.life_tasks import LifeTasks
from forkyard.workspace.living import Living
from forkyard.workspace.slots import Slots
from forkyard.workspace.spares import Kind, Spares


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a new workspace stands on."""

    snapshot: SnapshotId
    layers: tuple[LayerId, ...]
    environment: Environment
    limits: Limits


class Forking(Living):
    """See the module; what it works on is that of `Workspaces`."""

    layout: Layout
    layers: Layers
    background: Background
    egress: Egress
    _clock: Clock
    _slots: Slots
    _spares: Spares
    _tasks: LifeTasks

    async def create(
        self,
        snapshot: SnapshotId,
        *,
        display_name: str = "",
        ephemeral: bool = False,
        network: NetworkPolicy = NetworkPolicy.NONE,
        allow: tuple[str, ...] = (),
        reaches_models: bool = False,
        limits: Limits | None = None,
        owner: str | None = None,
        workspace_id: WorkspaceId | None = None,
        start: bool = False,
        mounts: Sequence[ReadOnlyMount] = (),
        budget: Budget = Budget(),
        is_evaluation: bool = False,
        lifetime: Lifetime = Lifetime(),
    ) -> Workspace:
        """Fork a workspace from a ready snapshot.

        Args:
            snapshot: Must be ready.
            display_name: For people.
            ephemeral: Deleted when its owner goes.
            network: What its sandboxes can reach.
            allow: With an allowlist: its entries.
            reaches_models: With an allowlist: whether the gateway is reached as well.
            limits: Instead of the snapshot's.
            owner: The attempt or evaluation it serves.
            workspace_id: Makes asking again harmless: an existing one is given back.
            start: Whether its sandbox is brought up at once, while the caller goes on; without,
                that is left to the first command.
            mounts: Shown inside beside those of the snapshot.
            budget: What a person's own may spend at the gateway.
            is_evaluation: Of the template's tasks, only those that say so run in it.
            lifetime: When it is stopped or deleted by itself.

        Raises:
            NotFoundError: No such snapshot.
            ConflictError: The snapshot is not ready.
            WorkspaceError: All private id ranges are taken.

        Cancellation:
            The workspace may still be made; ask again with the same id, or delete it.

        Durability:
            The row is on disk before anything else exists.
        """
        if workspace_id is not None and workspace_id in self.journal.state.workspaces:
            return self.get(workspace_id)
        row = self.journal.state.snapshots.get(snapshot)
        if row is None or row.state is SnapshotState.DELETED:
            raise NotFoundError(
                f"cannot fork snapshot {snapshot}: there is no such snapshot",
                hint="List them with `forkyard snapshot list`.",
            )
        if row.state is not SnapshotState.READY:
            raise ConflictError(
                f"cannot fork snapshot {row.name}: it is {row.state}, and only a ready one can be"
                " forked",
                hint="Wait until it is ready, or take it again.",
            )
        made = await self.add(
            Origin(
                snapshot=snapshot,
                layers=row.layers,
                environment=replace(
                    row.environment,
                    mounts=(*row.environment.mounts, *mounts),
                    tasks=tuple(
                        task
                        for task in row.environment.tasks
                        if task.evaluations or not is_evaluation
                    ),
                ),
                limits=limits or row.limits,
            ),
            display_name=display_name,
            ephemeral=ephemeral,
            network=network,
            allow=allow,
            reaches_models=reaches_models,
            owner=owner,
            workspace_id=workspace_id,
            start=start,
            budget=budget,
            lifetime=lifetime,
        )
        if self.journal.state.snapshots[snapshot].state is not SnapshotState.READY:
            # deleted between the look above and our row; from the row on it would be refused
            await self.delete(made.id)
            raise NotFoundError(f"cannot fork snapshot {row.name}: it was just deleted")
        return made

    async def add(
        self,
        origin: Origin,
        *,
        display_name: str = "",
        ephemeral: bool = False,
        network: NetworkPolicy = NetworkPolicy.NONE,
        allow: Sequence[str] = (),
        reaches_models: bool = False,
        owner: str | None = None,
        workspace_id: WorkspaceId | None = None,
        beside: Sequence[Change] = (),
        start: bool = False,
        budget: Budget = Budget(),
        lifetime: Lifetime = Lifetime(),
    ) -> Workspace:
        """Make a workspace on given layers, its row in one transaction with other changes.

        For builds and sealing, whose snapshot is not ready yet; everybody else uses `create`.
        """
        row = Workspace(
            id=workspace_id or new_workspace_id(),
            snapshot=origin.snapshot,
            layers=origin.layers,
            environment=origin.environment,
            limits=origin.limits,
            state=WorkspaceState.STOPPED,
            created_at=self._clock.now(),
            display_name=display_name,
            ephemeral=ephemeral,
            network=network,
            allow=tuple(allow),
            reaches_models=reaches_models,
            owner=owner,
            budget=budget,
            ports_first=(
                None
                if ephemeral or owner is not None
                else ports.take(self.layout.home, self.journal.state.workspaces.values())
            ),
            idle_stop_seconds=lifetime.idle_stop_seconds,
            expires_at=lifetime.expires_at,
        )
        spare = self._spares.take(Kind.of(row)) if start and workspace_id is None else None
        if spare is not None:
            row = replace(row, id=spare.id, slot=spare.slot)
            beside = (*beside, self._spares.taken(spare))
        else:
            row = replace(row, slot=self._slots.take())
        if start:
            row = self._sandboxes.next_epoch(row)
            self._sandboxes.announce(row)
        await self.background.finish(self._add(row, beside))
        if start:
            self.background.spawn(self._come_up(row))
        return row

    async def _come_up(self, row: Workspace) -> None:
        async with self._sandboxes.lock(row.id):
            # What goes wrong is in the row, for whoever uses the workspace next.
            with contextlib.suppress(ForkyardError):
                await self._sandboxes.usable(row.id)
                # What has an image, or a file system of its own, is all files: made for one only.
                if row.environment.image is None and not hard_disk.is_wanted(row):
                    self._spares.wish(self._sandboxes.spec(row), Kind.of(row))
        await self._execs.say_running(row)

    async def _add(self, row: Workspace, beside: Sequence[Change]) -> None:
        try:
            await self.journal.append_all(
                [*beside, Change(entity=row, note="created", expect=None)]
            )
        except BaseException:
            self._slots.release(row.slot)
            self._sandboxes.forget(row.id)
            raise
        failpoint("W02")
        self.layers.make_disk(row.id)

    async def delete(self, workspace: WorkspaceId) -> None:
        """Stop a workspace if it runs, and remove it with all it holds. Idempotent.

        Raises:
            NotFoundError: There never was one of that id.
            WorkspaceError: Something of it could not be ended; it stays `deleting`.

        Cancellation:
            The deletion goes on.
        """
        if workspace not in self.journal.state.workspaces:
            self.get(workspace)
        await self.background.finish(self._delete(workspace))

    async def _delete(self, workspace: WorkspaceId) -> None:
        async with self._sandboxes.lock(workspace):
            row = self.journal.state.workspaces[workspace]
            if row.state is WorkspaceState.DELETED:
                return
            deleting = replace(row, state=WorkspaceState.DELETING)
            if row != deleting:
                await self.journal.append(deleting, "delete")
            if row.state is not WorkspaceState.STOPPED:
                await self.fleet.stop(workspace, epoch=row.epoch)
        # Those who wait for its execs may need the lock to say that the sandbox is gone.
        await self._execs.settle(workspace)
        async with self._sandboxes.lock(workspace):
            if self.journal.state.workspaces[workspace] != deleting:
                return
            await asyncio.to_thread(self.layers.discard, self.layout.workspace(workspace))
            await self.journal.append(
                replace(deleting, state=WorkspaceState.DELETED), "deleted", expect=deleting
            )
            self._slots.release(deleting.slot)
            await self.egress.forget(workspace)
            self.layers.remove_unneeded(deleting.layers, self.journal.state)
        self._execs.forget(workspace)
        self._sandboxes.forget(workspace)
        await self.layers.empty_trash()
