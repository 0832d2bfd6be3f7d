"""Where this machine mounts its cgroup controllers: v1, v2 or hybrid, and which are ours to use."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from forkyard.shim import delegation
from forkyard.shim.ids import IDS

ROOT = "/sys/fs/cgroup"
UNIFIED = f"{ROOT}/unified"
"""Where hybrid hosts have v2."""
_V1_CONTROLLERS = ("memory", "cpu", "pids", "freezer", "devices")


class Hierarchies(NamedTuple):
    """Where the controllers are mounted on this machine."""

    layout: str
    """`v1`, `v2` or `hybrid`."""
    limits: dict[str, str]
    """Controller -> mount point. On v2 all name the one tree."""
    tracking: str
    """The hierarchy whose groups tell and kill what runs; v2 where there is one."""

    @property
    def unified(self) -> bool:
        """Whether tracking is v2, with cgroup.kill."""
        return self.layout != "v1"


def detect(mounts: str | None = None) -> Hierarchies | None:
    """Read the cgroup mounts of this namespace; None where there are none that we may use."""
    if mounts is None:
        found = _mounted(_mount_table())
        return _delegated(found) if IDS.is_rootless and found is not None else found
    return _mounted(mounts)


def _delegated(found: Hierarchies) -> Hierarchies | None:
    """Give the part of the hierarchies in which an ordinary user may make groups."""
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        own = delegation.own_groups(file.read())
    if found.layout == "v2":
        folder = delegation.delegated_v2(found.tracking, own)
        limits = {} if folder is None else dict.fromkeys(_v2_controllers(folder), folder)
        return Hierarchies("v2", limits, folder) if folder is not None and limits else None
    limits = delegation.delegated_v1(found.limits, own)
    # Groups tell what runs where there is one for processes: of all controllers it costs least.
    return Hierarchies("v1", limits, limits["pids"]) if "pids" in limits else None


def _mount_table() -> str:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _mounted(mounts: str) -> Hierarchies | None:
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        kind, _, rest = after.partition(" ")
        if kind == "cgroup2" and point.startswith(ROOT):
            v2 = point
        elif kind == "cgroup" and point.startswith(ROOT):
            options = rest.split()[-1].split(",")
            for controller in _V1_CONTROLLERS:
                if controller in options:
                    v1[controller] = point
    if v2 is not None and not v1:
        return Hierarchies("v2", dict.fromkeys(_v2_controllers(v2), v2), v2)
    if v2 is not None:
        v1.pop("freezer", None)  # v2 kills by itself
        return Hierarchies("hybrid", v1, v2)
    if v1:
        return Hierarchies("v1", v1, v1.get("freezer") or v1.get("pids") or next(iter(v1.values())))
    return None


def _v2_controllers(root: str) -> list[str]:
    with contextlib.suppress(OSError), open(f"{root}/cgroup.controllers", encoding="ascii") as file:
        return [name for name in file.read().split() if name in ("memory", "cpu", "pids")]
    return []


def open_roots(hierarchies: Hierarchies) -> dict[str, int]:
    """Open every hierarchy's top: mount point -> descriptor."""
    points = dict.fromkeys([*hierarchies.limits.values(), hierarchies.tracking])
    return {point: os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for point in points}
