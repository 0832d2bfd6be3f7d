"""What a helper process does before it looks at a hostile tree. Standard library only.

It mounts the views in a mount namespace of its own, opens them, and then gives up everything
else: the host's files (an empty root directory), its user, all but one capability, and limits on
memory, time and descriptors. Its mounts die with it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import NamedTuple

from forkyard.shim import kernel, mounts

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
MEMORY_BYTES = 4 * 1024**3
"""Address space; a list of two million names fits well."""
PROCESSOR_SECONDS = 1200
DESCRIPTORS = 1024
"""Two for each of 128 nested directories, and to spare."""


class Views(NamedTuple):
    """Which trees to mount; paths on the host."""

    mount_point: str
    """An empty directory of ours; what is mounted there is seen by the helper alone."""
    layers: tuple[str, ...]
    """Topmost first."""
    upper: str | None = None
    work: str | None = None
    """Given when the view is to be written to."""


class OpenViews(NamedTuple):
    """Descriptors of the mounted trees' roots."""

    merged: int
    base: int
    upper: int | None


def open_views(views: Views) -> OpenViews:
    """Mount and open the layers alone, and with the upper directory on top of them."""
    mounts.private_mount_namespace()
    kernel.mount("tmpfs", views.mount_point, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)
    base = _mount(views.mount_point, "base", views.layers)
    if views.upper is None:
        merged = base
    elif views.work is None:
        # as a read-only lower of its own the upper's whiteouts and opaque marks still count
        merged = _mount(views.mount_point, "merged", (views.upper, *views.layers))
    else:
        merged = _mount(
            views.mount_point, "merged", views.layers, upper=views.upper, work=views.work
        )
    upper = _open(views.upper) if views.upper is not None else None
    empty = f"{views.mount_point}/empty"
    os.mkdir(empty, 0o555)  # noqa: PTH102 - this module imports as little as it can
    os.chroot(empty)
    os.chdir("/")
    return OpenViews(merged=merged, base=base, upper=upper)


def _mount(
    point: str,
    name: str,
    lowers: Sequence[str],
    *,
    upper: str | None = None,
    work: str | None = None,
) -> int:
    target = f"{point}/{name}"
    os.mkdir(target, 0o700)  # noqa: PTH102 - the helper imports no pathlib
    mounts.mount_view(lowers, target, upper=upper, work=work)
    return _open(target)


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def confine(*, user: int, capability: int) -> None:
    """Become a plain user who keeps one capability, for good."""
    os.umask(0o022)
    os.setgroups([])
    kernel.keep_capabilities_across_user_change()
    kernel.drop_bounding_capabilities()
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.keep_capabilities(1 << capability)
    kernel.forbid_new_privileges()
    kernel.die_with_parent()  # after the change of user, which clears it
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, PROCESSOR_SECONDS),
        (resource.RLIMIT_NOFILE, DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))


def open_repository(root: int, repository: str) -> int | None:
    """Open a repository's directory below a view's root; None where no such directory is."""
    relative = os.fsencode(repository).strip(b"/")
    try:
        return kernel.open_beneath(root, relative, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _NO_WAY:
            return None
        raise


_NO_WAY = frozenset({40, 18})
"""ELOOP: a link on the way; EXDEV: the way leads out of the view."""
