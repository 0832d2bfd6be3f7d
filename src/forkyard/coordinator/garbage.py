"""`gc`: removing what nothing needs, or saying what that would be.

`keeping` decides by the journal, `Pruner` by what the journal refers to; here it is carried out.
Order: rows first, then files that only those rows needed, so that a crash in between leaves
leftovers and never a row without its files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from forkyard.base import process
from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint, write_file
from forkyard.base.removal import empty_trash, move_to_trash
from forkyard.candidate.pruning import Pruner
from forkyard.config import Layout
from forkyard.coordinator.keeping import GRACE_SECONDS, KEPT_SECONDS, Unneeded, unneeded
from forkyard.coordinator.reaper import Reaper
from forkyard.coordinator.referred import derived, needed_objects, shown, without, without_images
from forkyard.coordinator.usage import UsageCopier
from forkyard.errors import ConflictError, ForkyardError, GatewayError, NotFoundError
from forkyard.model.image import Image
from forkyard.model.run import AttemptState
from forkyard.model.workspace import (
    Snapshot,
    SnapshotState,
    TemplateState,
    Workspace,
    WorkspaceState,
)
from forkyard.store.blobs import Blobs
from forkyard.store.journal import Journal
from forkyard.store.projections import State
from forkyard.workspace.agent_folders import outdated
from forkyard.workspace.layers import Layers, needed_layers

_log = logging.getLogger(__name__)

FIRST_SECONDS = 60.0
INTERVAL_SECONDS = 86400.0
"""Between two collections that nobody asked for."""

_SIZING_SECONDS = 600.0
_RESTING = frozenset({WorkspaceState.STOPPED, WorkspaceState.DELETED})


class SnapshotsPort(Protocol):
    """Removes snapshots that nobody stands on."""

    def is_needed(self, row: Snapshot) -> bool:
        """Say whether deleting it would be refused now."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a snapshot with its sealed copies and the layers that nobody else needs."""
        ...


class TemplatesPort(Protocol):
    """Removes templates."""

    async def delete(self, name: str) -> None:
        """Delete a template and its log."""
        ...


class ImagesPort(Protocol):
    """Removes images that nobody stands on."""

    def unneeded(self, older_than: str) -> tuple[Image, ...]:
        """List those that nobody stands on, last used before a time."""
        ...

    async def forget(self, row: Image) -> None:
        """Let one go, and the layers that nobody else needs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """One thing that is gone, or would be."""

    kind: str
    name: str
    size_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Garbage:
    """See the module."""

    journal: Journal
    layout: Layout
    clock: Clock
    snapshots: SnapshotsPort
    templates: TemplatesPort
    pruner: Pruner
    reaper: Reaper
    usage: UsageCopier | None
    """Has the gateway's ledger forget what was copied; None: there is no gateway."""
    images: ImagesPort | None = None
    """None: there are none."""
    building: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever makes a run's template and builds it."""
    _since: float = field(default_factory=time.time)
    """Root file systems that this server used are younger."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Collect once a day, however often a server starts, until cancelled."""
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            if self._is_due():
                try:
                    for one in await self.collect():
                        _log.info("Removed %s %s", one.kind, one.name)
                except (ForkyardError, OSError) as error:
                    _log.warning("Cannot collect garbage: %s", error)
            await asyncio.sleep(INTERVAL_SECONDS / 24)

    async def collect(
        self, *, older_than_seconds: float = KEPT_SECONDS, is_dry: bool = False
    ) -> tuple[Removed, ...]:
        """Remove what nothing needs.

        Args:
            older_than_seconds: Since the run ended whose automatic snapshot may go.
            is_dry: Say it only.

        Returns:
            What is gone, or would be, with the bytes on disk.

        Cancellation:
            Safe at any point; what was begun is ended by the next collection.
        """
        async with self._one_at_a_time:
            told: list[Removed] = []
            if not is_dry:
                told += [Removed(kind="leftover", name=line) for line in await self.reaper.sweep()]
            async with self.building:
                # In there no snapshot is being made for a run that is not journalled yet.
                goes = self._unneeded(older_than_seconds)
                # What is referred to by rows that go, goes with them: so it is looked for without.
                state = without(self.journal.state, goes) if is_dry else self.journal.state
                told += await self._rows(goes, is_dry=is_dry)
            told += await self._images(older_than_seconds, is_dry=is_dry)
            failpoint("G01")
            for kind, path in (*self._files(goes, state), *self._leftovers(state, goes)):
                told.append(Removed(kind=kind, name=self._name(path), size_bytes=await _size(path)))
                if not is_dry:
                    await asyncio.to_thread(move_to_trash, path, self.layout.trash)
            told += await self._roots(is_dry=is_dry)
            told += await self._agents(is_dry=is_dry)
            told += await self._entries(is_dry=is_dry)
            if not is_dry:
                # Before the store: writing a pack anew needs room.
                await asyncio.to_thread(empty_trash, self.layout.trash)
            failpoint("G02")
            told += await self._prune(state, is_dry=is_dry)
            if not is_dry:
                await asyncio.to_thread(empty_trash, self.layout.trash)
                await asyncio.to_thread(write_file, self._stamp, b"")
            return tuple(told)

    @property
    def _stamp(self) -> Path:
        return self.layout.objects / "collected"

    def _is_due(self) -> bool:
        try:
            return time.time() - self._stamp.stat().st_mtime > INTERVAL_SECONDS
        except FileNotFoundError:
            return True

    def _unneeded(self, older_than_seconds: float) -> Unneeded:
        found = unneeded(
            self.journal.state, self.clock.now(), older_than_seconds=older_than_seconds
        )
        kept = {one.id for one in found.snapshots if self.snapshots.is_needed(one)}
        names = {one.name.rpartition("@")[0] for one in found.snapshots if one.id in kept}
        return replace(
            found,
            snapshots=tuple(one for one in found.snapshots if one.id not in kept),
            templates=tuple(one for one in found.templates if one.name not in names),
        )

    async def _rows(self, goes: Unneeded, *, is_dry: bool) -> list[Removed]:
        told: list[Removed] = []
        sizes = await self._sizes(goes)
        for snapshot in goes.snapshots:
            if not is_dry:
                try:
                    await self.snapshots.delete(snapshot.id)
                except (ConflictError, NotFoundError):
                    continue  # somebody stands on it by now
            name = f"{snapshot.name} ({snapshot.id})"
            told.append(Removed(kind="snapshot", name=name, size_bytes=sizes.get(snapshot.id, 0)))
        for template in goes.templates:
            if not is_dry:
                try:
                    await self.templates.delete(template.name)
                except (ConflictError, NotFoundError):
                    continue
            told.append(Removed(kind="template", name=template.name))
        return told

    async def _sizes(self, goes: Unneeded) -> dict[str, int]:
        """Measure the layers that only snapshots that go need."""
        needed = needed_layers(without(self.journal.state, goes))
        sizes: dict[str, int] = {}
        counted = set(needed)
        for one in goes.snapshots:
            family = [one, *derived(self.journal.state, one)]
            mine = {layer for member in family for layer in member.layers} - counted
            counted |= mine
            sizes[one.id] = sum([await _size(self.layout.layer(layer)) for layer in mine])
        return sizes

    async def _images(self, older_than_seconds: float, *, is_dry: bool) -> list[Removed]:
        """Let images go that no template was built on for so long, with their layers."""
        if self.images is None or any(
            one.state is TemplateState.BUILDING for one in self.journal.state.templates.values()
        ):
            return []
        told: list[Removed] = []
        needed = needed_layers(without_images(self.journal.state))
        before = datetime.fromisoformat(self.clock.now()) - timedelta(seconds=older_than_seconds)
        for row in self.images.unneeded(before.isoformat(timespec="milliseconds")):
            own = [layer for layer in row.layers if layer not in needed]
            size = sum([await _size(self.layout.layer(layer)) for layer in own])
            told.append(Removed(kind="image", name=row.reference, size_bytes=size))
            if not is_dry:
                await self.images.forget(row)
        return told

    def _files(self, goes: Unneeded, state: State) -> Iterator[tuple[str, Path]]:
        for record in goes.records:
            path = self.layout.runs / "applications" / record.id
            if path.is_dir():
                yield "record", path
        builds = self.layout.home / "builds"
        with_row = {one.id for one in goes.templates}
        for path in sorted(builds.iterdir()) if builds.is_dir() else ():
            owner = next((one for one in state.templates.values() if one.id == path.name), None)
            is_gone = owner is None or owner.state is TemplateState.DELETED
            if is_gone and path.name not in with_row:
                yield "log", path
        held = {
            file.sha256
            for run in state.runs.values()
            for task in run.tasks
            for file in task.held_out
        }
        for path in Blobs(self.layout.blobs).old(time.time() - GRACE_SECONDS):
            if path.name not in held:
                yield "blob", path

    def _leftovers(self, state: State, goes: Unneeded) -> Iterator[tuple[str, Path]]:
        mine = {
            layer
            for one in goes.snapshots
            for member in (one, *derived(self.journal.state, one))
            for layer in member.layers
        }
        for path in Layers(self.layout).leftovers(state):
            if path.name not in mine:  # those are counted with their snapshots
                yield "layer", path

    def _is_taking_in(self) -> bool:
        """Say whether objects are being taken in that no row refers to yet.

        Their age protects them, too; but a clock may jump, and a machine may sleep.
        """
        state = self.journal.state
        return any(one.state is AttemptState.COLLECTING for one in state.attempts.values()) or any(
            one.state is SnapshotState.PENDING for one in state.snapshots.values()
        )

    async def _prune(self, state: State, *, is_dry: bool) -> list[Removed]:
        if self._is_taking_in():
            return []
        freed = await self.pruner.prune(needed_objects(state), self.layout.trash, is_dry=is_dry)
        return [
            Removed(kind="objects", name=self._name(Path(one.what)), size_bytes=one.size_bytes)
            for one in freed
        ]

    async def _agents(self, *, is_dry: bool) -> list[Removed]:
        """Remove agents of other versions that no workspace or snapshot shows any more."""
        told: list[Removed] = []
        for path in outdated(self.layout):
            size = await _size(path)
            # Looked at last: nothing else runs between here and the rename.
            if any(Path(one.source).is_relative_to(path) for one in shown(self.journal.state)):
                continue
            told.append(Removed(kind="agent", name=self._name(path), size_bytes=size))
            if not is_dry:
                move_to_trash(path, self.layout.trash)
        return told

    async def _entries(self, *, is_dry: bool) -> list[Removed]:
        """Have the ledger forget what was copied long ago; what it has not, goes another time."""
        try:
            now = self.clock.now()
            gone = 0 if self.usage is None else await self.usage.prune(now, is_dry=is_dry)
        except GatewayError as error:
            _log.warning("Cannot prune the ledger: %s", error)
            gone = 0
        return [Removed(kind="entries", name=f"{gone} of the ledger")] if gone else []

    async def _roots(self, *, is_dry: bool) -> list[Removed]:
        """Remove root file systems that no sandbox stands on and this server did not use."""
        told: list[Removed] = []
        roots = self.layout.roots
        used = {self._root_of(one) for one in self.journal.state.workspaces.values()}
        for path in sorted(roots.iterdir()) if roots.is_dir() else ():
            if str(path) in used or path.stat().st_mtime >= self._since:
                continue
            size = await _size(path)
            # Looked at again: nothing else runs between here and the rename.
            if path.stat().st_mtime >= self._since:
                continue
            told.append(Removed(kind="root", name=self._name(path), size_bytes=size))
            if not is_dry:
                move_to_trash(path, self.layout.trash)
        return told

    def _root_of(self, workspace: Workspace) -> str | None:
        if workspace.state in _RESTING:
            return None
        spec = self.layout.sandbox(workspace.id) / "spec.json"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(spec.read_bytes())["root"])
        return None

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.layout.home))


async def _size(path: Path) -> int:
    """Measure what a file or tree takes on disk, however deep; 0 where it is not there."""
    done = await process.run_async(
        ["du", "-skx", "--", str(path)],
        variables={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        timeout_seconds=_SIZING_SECONDS,
    )
    number = done.stdout.split(b"\t", 1)[0]
    return int(number) * 1024 if number.isdigit() else 0
