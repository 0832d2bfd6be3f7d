"""Mounts of a private namespace: overlay views and id-mapped trees.

Every mount that Forkyard makes lives in the mount namespace of one process and dies with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from forkyard.shim import kernel

VIEW_OPTIONS = "index=off,redirect_dir=off,metacopy=off"
"""Then the upper directory names a superset of what was touched, and holds it whole."""


def private_mount_namespace() -> None:
    """Give this process a mount namespace of its own, from which nothing spreads."""
    kernel.unshare(kernel.CLONE_NEWNS)
    isolate_mounts()


def isolate_mounts() -> None:
    """Stop mounts from spreading out of (or into) this mount namespace."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)


def mount_view(
    lowers: Sequence[str], target: str, *, upper: str | None = None, work: str | None = None
) -> None:
    """Mount layers (topmost first) as one tree, writable only where an upper is given.

    Files appear with the ids they have on disk. Without an upper and with a single layer the
    layer itself is bound, since overlayfs wants two.
    """
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    if upper is None and len(lowers) == 1:
        kernel.mount(lowers[0], target, "", kernel.MS_BIND)
        kernel.mount(
            "none",
            target,
            "",
            kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOEXEC | flags,
        )
        return
    options = f"lowerdir={':'.join(map(_escape, lowers))},{VIEW_OPTIONS}"
    if upper is None:
        flags |= kernel.MS_RDONLY | kernel.MS_NOEXEC
    else:
        options += f",upperdir={_escape(upper)},workdir={_escape(work or '')}"
    kernel.mount("overlay", target, "overlay", flags, options)


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def mapping_namespace(lines: str) -> int:
    """Make a user namespace with the given id map and give a descriptor of it.

    Args:
        lines: Rows ``inside outside count`` for users and groups alike.

    Returns:
        A descriptor fit for an id-mapped mount; no process lives in the namespace.
    """
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.die_with_parent()
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(ready_write, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(ready_write)
    try:
        if os.read(ready_read, 1) != b"x":
            raise OSError(1, "cannot make a user namespace")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w", encoding="ascii") as file:
                file.write(lines)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
