"""Which cgroups an ordinary user may make groups in: those that the host delegated to him.

On v1 that is our own group of a controller, where we may write. On v2 it is the one above the leaf
in which the server stands aside (`stand_aside`), since a group with processes of its own may hand
on no controller.
"""

from __future__ import annotations

import contextlib
import os

LEAF = "forkyard-server"
_LIMITING = ("memory", "cpu", "pids")


def own_groups(text: str) -> dict[str, str]:
    """Read /proc/self/cgroup: controller -> our group's path; the v2 tree has the empty name."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            found[name] = path
    return found


def delegated_v1(points: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """Give the folder of each limiting controller in which groups may be made."""
    found = {}
    for name in _LIMITING:
        if name in points and name in own:
            folder = f"{points[name]}{own[name]}".rstrip("/")
            if _may_use(folder):
                found[name] = folder
    return found


def delegated_v2(point: str, own: dict[str, str]) -> str | None:
    """Give the folder of the v2 tree in which groups with controllers may be made, if any."""
    folder = f"{point}{own.get('', '/')}".rstrip("/")
    if os.path.basename(folder) != LEAF:
        return None
    folder = os.path.dirname(folder)
    return folder if _may_use(folder) and not _processes(folder) else None


def stand_aside(point: str, own: dict[str, str]) -> None:
    """Move this process into a leaf of its own v2 group, where it is alone in a delegated one."""
    folder = f"{point}{own.get('', '/')}".rstrip("/")
    if os.path.basename(folder) == LEAF or not _may_use(folder):
        return
    if _processes(folder) != [os.getpid()]:
        return
    with contextlib.suppress(OSError):
        leaf = f"{folder}/{LEAF}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(leaf, 0o755)
        with open(f"{leaf}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(os.getpid()))


def _may_use(folder: str) -> bool:
    # Root over sub-ids has no say over what is somebody else's: the mode decides.
    return os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)


def _processes(folder: str) -> list[int]:
    try:
        with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
            return [int(line) for line in file.read().split()]
    except OSError:
        return [0]
