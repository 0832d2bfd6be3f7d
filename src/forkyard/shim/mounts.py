"""Mounts of a private namespace: overlay views and id-mapped trees.

Every mount that Forkyard makes lives in the mount namespace of one process and dies with it.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence

from forkyard.shim import kernel
from forkyard.shim.files import write_bytes
from forkyard.shim.ids import IDS

VIEW_OPTIONS = (
    "userxattr,index=off,metacopy=off"  # which leaves no redirects either
    if IDS.is_rootless
    else "index=off,redirect_dir=off,metacopy=off"
)
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
    if upper is None:
        flags |= kernel.MS_RDONLY | kernel.MS_NOEXEC
        options = VIEW_OPTIONS
    else:
        options = f"{VIEW_OPTIONS},upperdir={_escape(upper)},workdir={_escape(work or '')}"
    if all(map(os.path.isabs, lowers)):
        # The kernel takes a page of options: paths from where we are would soon fill it.
        folder = os.path.commonpath(lowers)
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(folder)
        try:
            names = [os.path.relpath(one, folder) for one in lowers]
            _mount_overlay(names, target, flags, options)
        finally:
            os.fchdir(here)
            os.close(here)
    else:
        _mount_overlay(lowers, target, flags, options)


def _mount_overlay(lowers: Sequence[str], target: str, flags: int, options: str) -> None:
    names = ":".join(map(_escape, lowers))
    kernel.mount("overlay", target, "overlay", flags, f"lowerdir={names},{options}")


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


class MappingNamespace:
    """A user namespace for id-mapped mounts: a child waits in it until it has its map."""

    def __init__(self) -> None:
        """Make the namespace; the map is given later, when the range is known."""
        self._ready, ready = os.pipe2(os.O_CLOEXEC)
        self._child = os.fork()
        if self._child == 0:
            try:
                kernel.die_with_parent()
                kernel.unshare(kernel.CLONE_NEWUSER)
                os.write(ready, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.close(ready)

    def descriptor(self, lines: str) -> int:
        """Map ids, and give a descriptor fit for an id-mapped mount. Once only.

        Args:
            lines: Rows ``inside outside count`` for users and groups alike.
        """
        try:
            if os.read(self._ready, 1) != b"x":
                raise OSError(errno.EPERM, "cannot make a user namespace")
            for name in ("uid_map", "gid_map"):
                write_bytes(f"/proc/{self._child}/{name}", lines.encode())
            return os.open(f"/proc/{self._child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(self._ready)
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
