"""Mounting a file as a file system: what makes a disk limit hard. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

from forkyard.shim import kernel

KIND = "ext4"
_GET_FREE, _CONFIGURE, _STATUS = 0x4C82, 0x4C0A, 0x4C05
_AUTOCLEAR, _READ_ONLY = 4, 1
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
_TRIES = 64
_PATIENCE_SECONDS = 30.0


def mount_image(image: int, target: str, *, readonly: bool = False) -> None:
    """Mount an open image; the loop device goes with its last mount.

    Raises:
        OSError: There is no loop device to be had, or the file is no such file system.
    """
    device, name = _attach(image, readonly=readonly)
    try:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | (kernel.MS_RDONLY if readonly else 0)
        kernel.mount(name, target, KIND, flags, "" if readonly else "discard")
    finally:
        os.close(device)


def _attach(image: int, *, readonly: bool) -> tuple[int, str]:
    flags = _AUTOCLEAR | (_READ_ONLY if readonly else 0)
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, b"forkyard", b"", b"", 0, 0)
    config = struct.pack("=II", image, 0) + info + bytes(64)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            name = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            mode = os.O_RDONLY if readonly else os.O_RDWR
            device = os.open(name, mode | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # somebody else was quicker
                    raise
            else:
                return device, name
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def wait_until_detached(image: int) -> None:
    """Wait until no loop device stands on a file: two mounts of one file would destroy it.

    Raises:
        OSError: One still does after a bounded wait.
    """
    facts = os.fstat(image)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while _is_attached(facts):
        if time.monotonic() > deadline:
            raise OSError(errno.EBUSY, "the workspace's disk is still mounted")
        time.sleep(0.01)  # a mount namespace that ends tells nobody


def _is_attached(facts: os.stat_result) -> bool:
    for name in os.listdir("/sys/block"):
        if name.startswith("loop") and os.path.exists(f"/sys/block/{name}/loop"):
            try:
                device = os.open(f"/dev/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                told = fcntl.ioctl(device, _STATUS, bytes(_INFO.size))
                if _INFO.unpack(told)[:2] == (facts.st_dev, facts.st_ino):
                    return True
            except OSError:
                continue
            finally:
                os.close(device)
    return False
