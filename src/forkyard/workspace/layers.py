"""Layers: read-only trees from ``/`` that snapshots list and workspaces stand on.

A layer's name is in the journal (in a pending snapshot or a workspace's row) before its directory
exists. It is built under another name, or renamed whole from a stopped workspace's upper
directory, and is never changed once a ready snapshot lists it. Who needs a layer is read from the
journal's state, never counted aside.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.durable import make_directory, sync_directory
from forkyard.base.placement import spread_folders
from forkyard.base.removal import empty_trash, move_to_trash
from forkyard.config import Layout
from forkyard.errors import ConflictError, WorkspaceError
from forkyard.model.ids import ImageId, LayerId, SnapshotId, WorkspaceId
from forkyard.model.workspace import SnapshotState, WorkspaceState
from forkyard.shim import kernel
from forkyard.shim.ids import MARKS, STORAGE_FIRST_ID
from forkyard.store.projections import State

PARTIAL_SUFFIX = ".new"
OPAQUE = f"{MARKS}opaque"
_LIVE_SNAPSHOTS = (SnapshotState.PENDING, SnapshotState.READY)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a path of the merged tree is, and in which layer it lies."""

    layer: LayerId
    facts: os.stat_result

    @property
    def is_directory(self) -> bool:
        """Whether it is a real folder, not a link to one."""
        return stat.S_ISDIR(self.facts.st_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Whose rows list a layer."""

    workspaces: tuple[WorkspaceId, ...] = ()
    snapshots: tuple[SnapshotId, ...] = ()
    images: tuple[ImageId, ...] = ()


class Layers:
    """The layer directories of one state directory."""

    def __init__(self, layout: Layout) -> None:
        """Know where they lie; nothing is made yet."""
        self._layout = layout

    @property
    def layout(self) -> Layout:
        """Where everything lies."""
        return self._layout

    def prepare(self) -> None:
        """Make the folders that layers, workspaces and removed things live in."""
        for path in (self._layout.layers, self._layout.workspaces, self._layout.trash):
            make_directory(path)
        spread_folders(self._layout.layers)
        spread_folders(self._layout.workspaces)

    def path(self, layer: LayerId) -> Path:
        """Name the place of a layer that is whole."""
        return self._layout.layer(layer)

    def partial(self, layer: LayerId) -> Path:
        """Name the place where a layer is built before it is whole."""
        return self._layout.layers / f"{layer}{PARTIAL_SUFFIX}"

    def start(self, layer: LayerId) -> Path:
        """Begin an empty layer, removing a half-made one of that name.

        Returns:
            Its root, owned as the sandbox's root.
        """
        path = self.partial(layer)
        self.discard(path)
        path.mkdir(mode=0o755)
        path.chmod(0o755)
        os.chown(path, STORAGE_FIRST_ID, STORAGE_FIRST_ID)
        return path

    async def finish(self, *layers: LayerId) -> None:
        """Give built layers their names.

        Durability:
            Their whole content and their names are on disk when this returns.
        """
        await self.sync()
        for layer in layers:
            self.name(layer)
        sync_directory(self._layout.layers)

    def name(self, layer: LayerId) -> None:
        """Give a built layer its name. Not durable before `sync`."""
        self.partial(layer).rename(self._layout.layer(layer))

    def adopt_upper(self, workspace: WorkspaceId, layer: LayerId) -> None:
        """Turn a stopped workspace's upper directory into a layer and give it an empty one.

        Doing it again is harmless. Not durable before `sync`.
        """
        upper, target = self._layout.upper(workspace), self._layout.layer(layer)
        if not target.exists():
            self._rename(upper, target)
        self.make_disk(workspace)

    def return_upper(self, workspace: WorkspaceId, layer: LayerId) -> None:
        """Take `adopt_upper` back while nothing was written on top.

        Raises:
            ConflictError: The workspace was written to since.
        """
        upper, target = self._layout.upper(workspace), self._layout.layer(layer)
        if not target.exists():
            return
        try:
            upper.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            msg = f"cannot take back layer {layer}: {workspace} was written to since"
            raise ConflictError(msg) from error
        self._rename(target, upper)

    def make_disk(self, workspace: WorkspaceId) -> None:
        """Make a workspace's directories where they are missing."""
        disk = self._layout.disk(workspace)
        upper = disk / "upper"
        if upper.exists():
            return
        disk.mkdir(parents=True, exist_ok=True, mode=0o700)
        (disk / "work").mkdir(exist_ok=True, mode=0o700)
        upper.mkdir(mode=0o755)
        upper.chmod(0o755)  # whatever the umask says
        os.chown(upper, STORAGE_FIRST_ID, STORAGE_FIRST_ID)

    def upper_is_empty(self, workspace: WorkspaceId) -> bool:
        """Say whether a workspace wrote nothing at all."""
        try:
            with os.scandir(self._layout.upper(workspace)) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True

    async def sync(self) -> None:
        """Write the file system that holds all layers to disk.

        Durability:
            Everything written to layers before the call is on disk when it returns.
        """
        await asyncio.to_thread(_sync_file_system, self._layout.layers)

    def remove(self, layers: Iterable[LayerId], state: State) -> None:
        """Move layers away that nobody needs.

        Raises:
            ConflictError: A workspace or snapshot still lists one; nothing was moved.
        """
        wanted = tuple(layers)
        for layer in wanted:
            users = users_of(layer, state)
            if users.workspaces or users.snapshots or users.images:
                who = ", ".join((*users.workspaces, *users.snapshots, *users.images))
                raise ConflictError(f"cannot delete layer {layer}: {who} needs it")
        for layer in wanted:
            self.discard(self._layout.layer(layer))
            self.discard(self.partial(layer))

    def remove_unneeded(self, layers: Iterable[LayerId], state: State) -> None:
        """Move those of the layers away that nobody needs any more."""
        needed = needed_layers(state)
        self.remove((layer for layer in layers if layer not in needed), state)

    def leftovers(self, state: State) -> tuple[Path, ...]:
        """List what lies among the layers and belongs to no live row.

        A half-made layer belongs to the row that names it, so this may be asked at any time.
        """
        needed = {str(layer) for layer in needed_layers(state)}
        return tuple(
            path
            for path in self._layout.layers.iterdir()
            if path.name.partition(".")[0] not in needed
        )

    def lookup(self, layers: Sequence[LayerId], path: str) -> Found | None:
        """Look a path up in the merged tree without mounting it and without following a link.

        Args:
            layers: Topmost first.
            path: From the root of the tree.

        Returns:
            What is there; None also where a link or a file stands in the way.
        """
        parts = [part for part in path.split("/") if part]
        for layer in layers:
            found = _look_in(self._layout.layer(layer), parts)
            if isinstance(found, os.stat_result):
                return Found(layer=layer, facts=found)
            if found == "hidden":
                return None
        return None

    def read(self, layers: Sequence[LayerId], path: str, most_bytes: int) -> bytes | None:
        """Read a plain file of the merged tree; None where it is anything else, or larger."""
        found = self.lookup(layers, path)
        if found is None or not stat.S_ISREG(found.facts.st_mode):
            return None
        root = os.open(self._layout.layer(found.layer), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            inside = os.fsencode(path.strip("/"))
            descriptor = kernel.open_beneath(root, inside, os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(root)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            content = file.read(most_bytes + 1)
        return content if len(content) <= most_bytes else None

    def discard(self, path: Path) -> None:
        """Move something below the state directory out of sight; `empty_trash` takes it apart."""
        if os.path.lexists(path):
            move_to_trash(path, self._layout.trash)

    async def empty_trash(self) -> tuple[str, ...]:
        """Take apart what was discarded; give what refused, each with its reason."""
        return await asyncio.to_thread(empty_trash, self._layout.trash)

    def is_folder(self, workspace: WorkspaceId, layers: Sequence[LayerId], path: str) -> bool:
        """Say whether a path of a stopped workspace's merged tree is a real folder.

        What is mounted from a workspace must be: a link would be followed on the host.
        """
        parts = [part for part in path.split("/") if part]
        upper = self._layout.upper(workspace)
        found = _look_in(upper, parts) if upper.is_dir() else "missing"
        if isinstance(found, os.stat_result):
            return stat.S_ISDIR(found.st_mode)
        if found == "hidden":
            return False
        lower = self.lookup(layers, path)
        return lower is not None and lower.is_directory

    def _rename(self, source: Path, target: Path) -> None:
        try:
            source.rename(target)
        except OSError as error:
            msg = f"cannot make a layer of {source.parent.name}: {error.strerror}"
            raise WorkspaceError(
                msg, hint="Keep layers/ and workspaces/ of the state directory on one file system."
            ) from error
        sync_directory(source.parent)
        sync_directory(target.parent)


def users_of(layer: LayerId, state: State) -> Users:
    """List the live workspaces and snapshots that stand on a layer."""
    return Users(
        workspaces=tuple(
            workspace.id
            for workspace in state.workspaces.values()
            if workspace.state is not WorkspaceState.DELETED and layer in workspace.layers
        ),
        snapshots=tuple(
            snapshot.id
            for snapshot in state.snapshots.values()
            if snapshot.state in _LIVE_SNAPSHOTS
            and layer in (*snapshot.layers, snapshot.flattening)
        ),
        images=tuple(image.id for image in state.images.values() if layer in image.layers),
    )


def needed_layers(state: State) -> set[LayerId]:
    """Collect every layer that a live row lists."""
    needed: set[LayerId] = set()
    for workspace in state.workspaces.values():
        if workspace.state is not WorkspaceState.DELETED:
            needed.update(workspace.layers)
    for snapshot in state.snapshots.values():
        if snapshot.state in _LIVE_SNAPSHOTS:
            needed.update(snapshot.layers)
            if snapshot.flattening is not None:
                needed.add(snapshot.flattening)
    for image in state.images.values():
        needed.update(image.layers)
    return needed


def is_whiteout(facts: os.stat_result) -> bool:
    """Say whether an entry of a layer marks a deletion."""
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def _look_in(root: Path, parts: Sequence[str]) -> os.stat_result | str:
    """Look in one layer; ``missing``: ask the next one; ``hidden``: nothing below counts."""
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    absent = "missing"
    try:
        facts = os.fstat(current)
        for position, part in enumerate(parts):
            try:
                facts = os.stat(part, dir_fd=current, follow_symlinks=False)
            except FileNotFoundError:
                return absent
            if is_whiteout(facts):
                return "hidden"
            if position == len(parts) - 1:
                break
            if not stat.S_ISDIR(facts.st_mode):
                return "hidden"
            below = os.open(
                part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current
            )
            os.close(current)
            current = below
            if _is_opaque(current):
                absent = "hidden"
        return facts
    finally:
        os.close(current)


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, OPAQUE) == b"y"
    except OSError:
        return False


def _sync_file_system(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(ctypes.c_int(descriptor)) < 0:
            number = ctypes.get_errno()
            msg = f"cannot keep layers on disk: {os.strerror(number)}"
            raise WorkspaceError(msg, hint="Free space in the state directory, then retry.")
    finally:
        os.close(descriptor)
