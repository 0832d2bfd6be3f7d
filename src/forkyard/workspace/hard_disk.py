"""A disk limit that the kernel holds: a running workspace writes to a file system of its own.

That lies in a sparse file of the limit's size beside the workspace's upper directory. It is made
before a start, from what the workspace wrote before, and taken out again after the stop, so that
everybody else finds a stopped workspace as ever. A crash at any line leaves the file or the folder
whole: the file counts while it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forkyard.base.durable import failpoint, sync_directory
from forkyard.base.process import run_async
from forkyard.base.removal import move_to_trash
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import Limits, Workspace
from forkyard.shim.ids import STORAGE_FIRST_ID
from forkyard.shim.main import PID_FILE
from forkyard.shim.network import SEARCH_PATH
from forkyard.shim.stage import STAGE
from forkyard.workspace.layers import Layers
from forkyard.workspace.limits import MAKE_IMAGE, can_be_hard
from forkyard.workspace.live_copy import run_helper

_HELPER = "forkyard.workspace.disk_image"
_BLOCK_BYTES = 4096
_INODE_BYTES = 256
_OVERHEAD_BYTES = 16 * 1024**2
_BYTES_PER_INODE = 16 * 1024
_SECONDS = 300.0


def image_of(layout: Layout, workspace: WorkspaceId) -> Path:
    """Say where a workspace's image is while it runs."""
    return layout.disk(workspace) / "image"


def is_wanted(row: Workspace) -> bool:
    """Say whether a workspace is to have one."""
    return row.limits.disk_is_hard and row.limits.disk_bytes is not None


async def make(layout: Layout, row: Workspace) -> None:
    """Make the image of a workspace that is about to start, if it is to have one. Idempotent.

    Raises:
        WorkspaceError: This machine cannot, or what it holds is more than its limit already.
    """
    image = image_of(layout, row.id)
    if not is_wanted(row) or image.exists():
        return
    if not can_be_hard():
        raise WorkspaceError(
            f"cannot start workspace {row.id}: its disk limit is to be hard, which takes root and"
            f" {MAKE_IMAGE}",
            hint="Install e2fsprogs, or leave `hard` out: then the limit is watched.",
        )
    making = image.with_name("image.new")
    making.unlink(missing_ok=True)
    most = row.limits.disk_bytes or 0
    inodes = row.limits.disk_inodes
    # Some take inodes that the limit does not count: upper, work, and what is reserved.
    count = most // _BYTES_PER_INODE + 64 if inodes is None else inodes + 32
    size = most + most // 32 + count * _INODE_BYTES + _OVERHEAD_BYTES
    with making.open("xb") as file:
        making.chmod(0o600)
        file.truncate(size // _BLOCK_BYTES * _BLOCK_BYTES)
    done = await run_async(
        [MAKE_IMAGE, "-q", "-F", "-m", "0", "-b", str(_BLOCK_BYTES), "-I", str(_INODE_BYTES),
         "-N", str(count), "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", str(making)],
        variables={"PATH": SEARCH_PATH, "LC_ALL": "C"},
        timeout_seconds=_SECONDS,
    )  # fmt: skip
    if not done.succeeded:
        reason = done.stderr.decode(errors="replace").strip()[-300:]
        raise WorkspaceError(f"cannot make the disk of workspace {row.id}: {reason}")
    order = _Order(what="fill", image=making, folder=layout.upper(row.id), limits=row.limits)
    await _help(layout, row.id, order)
    making.rename(image)
    sync_directory(image.parent)


async def settle(layers: Layers, workspace: WorkspaceId) -> None:
    """Take what a stopped workspace wrote out of its image, where there is one. Idempotent.

    Raises:
        WorkspaceError: It could not be; the image is kept, and this may be tried again.

    Durability:
        The files are on disk before the image goes.
    """
    layout = layers.layout
    image, upper = image_of(layout, workspace), layout.upper(workspace)
    if not image.exists():
        return
    taken = upper.with_name("upper.new")
    if taken.exists():
        move_to_trash(taken, layout.trash)
    taken.mkdir(mode=0o755)
    await _help(layout, workspace, _Order(what="take", image=image, folder=taken))
    await layers.sync()
    failpoint("H01")
    if upper.exists():
        move_to_trash(upper, layout.trash)
    taken.rename(upper)
    sync_directory(upper.parent)
    failpoint("H02")
    image.unlink()


def written(layout: Layout, row: Workspace) -> Path:
    """Say where what a running workspace wrote can be read on this machine."""
    if not image_of(layout, row.id).exists():
        return layout.upper(row.id)
    pid = int((layout.sandbox(row.id) / PID_FILE).read_text(encoding="ascii"))
    return Path(f"/proc/{pid}/root{STAGE}/volume/upper")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What the helper is to do."""

    what: str
    image: Path
    folder: Path
    limits: Limits = Limits()


async def _help(layout: Layout, workspace: WorkspaceId, order: _Order) -> None:
    mount = layout.disk(workspace) / "volume"
    mount.mkdir(mode=0o700, exist_ok=True)
    await run_helper(
        _HELPER,
        {
            "what": order.what,
            "image": str(order.image),
            "mount": str(mount),
            "folder": str(order.folder),
            "bytes": order.limits.disk_bytes or 0,
            "inodes": order.limits.disk_inodes,
            "owner": STORAGE_FIRST_ID,
        },
        what=f"{order.what} the disk of workspace {workspace}",
    )
