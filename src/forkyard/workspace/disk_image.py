"""Filling a workspace's disk image, and taking out what it holds, in a process of its own.

Standard input: one JSON object: `what` (`fill` or `take`), `image`, `mount` (an empty folder) and
`folder`, the workspace's upper directory: read by `fill`, written (empty before) by `take`. Mounts
are in this process's own namespace. Standard output: one JSON object, the report.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from pathlib import Path

from forkyard.shim import kernel, mounts, volume
from forkyard.workspace.upper_copy import DEEPEST, FOLDER, CannotCopy, Copier

_RESERVED = "reserved"
"""Takes what the file system has above the limits: then they are exact."""


def fill(asked: dict[str, object], image: int) -> None:
    """Make upper and work, take away what is above the limits, and copy what there was."""
    mount, owner = Path(str(asked["mount"])), int(str(asked["owner"]))
    upper, work, reserved = mount / "upper", mount / "work", mount / _RESERVED
    volume.mount_image(image, str(mount))
    try:
        for folder in (upper, work, reserved):
            folder.mkdir(mode=0o700)
        upper.chmod(0o755)
        os.chown(upper, owner, owner)
        most_inodes = asked["inodes"]
        _reserve(reserved, int(str(asked["bytes"])),
                 None if most_inodes is None else int(str(most_inodes)))  # fmt: skip
        _copy(str(asked["folder"]), str(upper))
    finally:
        kernel.unmount(str(mount))


def _reserve(folder: Path, most_bytes: int, most_inodes: int | None) -> None:
    if most_inodes is not None:
        for number in range(max(0, os.statvfs(folder).f_ffree - 1 - most_inodes)):
            os.mknod(f"{folder}/{number}")
    room = os.statvfs(folder)
    above = room.f_bavail * room.f_frsize - most_bytes
    if above > 0:
        descriptor = os.open(f"{folder}/bytes", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(descriptor, 0, above)  # takes the room and writes nothing
        os.close(descriptor)


def take(asked: dict[str, object], image: int) -> None:
    """Copy what a stopped workspace wrote out of its image."""
    mount = str(asked["mount"])
    volume.wait_until_detached(image)
    volume.mount_image(image, mount, readonly=True)
    try:
        _copy(f"{mount}/upper", str(asked["folder"]))
    finally:
        kernel.unmount(mount)


def _copy(source: str, target: str) -> None:
    from_folder, to_folder = os.open(source, FOLDER), os.open(target, FOLDER)
    try:
        Copier(top=to_folder).folder(from_folder, to_folder, "", 0)
    finally:
        os.close(from_folder)
        os.close(to_folder)


def main() -> None:
    """Do what standard input asks for and report."""
    sys.setrecursionlimit(4 * DEEPEST)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kernel.die_with_parent()
    asked = json.load(sys.stdin)
    report: dict[str, object] = {"error": None, "full": False}
    try:
        mounts.private_mount_namespace()
        image = os.open(asked["image"], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        (fill if asked["what"] == "fill" else take)(asked, image)
    except CannotCopy as error:
        report["error"] = str(error)
    except OSError as error:
        report["error"] = error.strerror or str(error)
        report["full"] = error.errno in (errno.ENOSPC, errno.EDQUOT)
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
