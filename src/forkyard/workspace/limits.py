"""What becomes of each limit on this machine: enforced, watched, or neither; in words."""

from __future__ import annotations

import os
import shutil

from forkyard.model.workspace import Limits
from forkyard.shim.ids import IDS
from forkyard.shim.network import SEARCH_PATH

WATCHED = "watched, not enforced"
NOT_ENFORCED = "not enforced"
MAKE_IMAGE = "mkfs.ext4"
_MILLICORES = 1000


def processors_of(limits: Limits, slot: int) -> list[int] | None:
    """Choose the processors that a sandbox sees and runs on; None for all of this machine.

    As many as the CPU limit amounts to, rounded up, so that a build that starts a worker for each
    starts no more than can run. Which ones goes by the slot: neighbours do not share the first.
    """
    if limits.cpu_millicores is None:
        return None
    there = sorted(os.sched_getaffinity(0))
    count = -(-limits.cpu_millicores // _MILLICORES)
    if count >= len(there):
        return None
    first = slot * count
    return sorted(there[(first + number) % len(there)] for number in range(count))


def can_be_hard() -> bool:
    """Say whether this machine can make a disk limit hard: as root, with a file system of ours."""
    return not IDS.is_rootless and shutil.which(MAKE_IMAGE, path=SEARCH_PATH) is not None


def disk_protections() -> dict[str, str]:
    """Say what holds a workspace's disk and output limits here."""
    return {
        "disk limit": WATCHED,
        "inode limit": WATCHED,
        "hard disk limit": "enforced by a file system of its own"
        if can_be_hard()
        else NOT_ENFORCED,
        "output limit": "enforced by the shim",
        "visible processors": "as many as the CPU limit, by affinity",
    }


def words(limits: Limits, protections: dict[str, str]) -> dict[str, str]:
    """Say of each limit that a workspace has what it is and what holds it.

    Args:
        limits: The workspace's.
        protections: What `Isolation` says is in force.
    """
    disk = protections.get("hard disk limit" if limits.disk_is_hard else "disk limit", NOT_ENFORCED)
    rows: dict[str, tuple[object, str]] = {
        "memory": (_mebibytes(limits.memory_bytes), protections.get("memory limit", NOT_ENFORCED)),
        "cpu": (_cores(limits.cpu_millicores), protections.get("cpu limit", NOT_ENFORCED)),
        "processes": (limits.processes, protections.get("process limit", NOT_ENFORCED)),
        "disk": (_mebibytes(limits.disk_bytes), disk),
        "inodes": (limits.disk_inodes, disk),
        "output": (_mebibytes(limits.output_bytes), protections.get("output limit", NOT_ENFORCED)),
    }
    return {name: f"{value}, {held}" for name, (value, held) in rows.items() if value is not None}


def _mebibytes(count: int | None) -> str | None:
    return None if count is None else f"{count / 1024**2:g} MiB"


def _cores(millicores: int | None) -> str | None:
    if millicores is None:
        return None
    there = len(os.sched_getaffinity(0))
    more = "" if millicores <= there * _MILLICORES else f" (this machine has {there})"
    return f"{millicores / _MILLICORES:g} core{'s' * (millicores != _MILLICORES)}{more}"
