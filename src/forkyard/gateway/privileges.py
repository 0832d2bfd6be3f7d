"""What the gateway process, and the proxy beside it, give up before they read anybody's bytes.

It is started as root, since only root can hide the rest of the state from it. After `enter` it
sees its own directory at `OWN_DIRECTORY`, an empty one where the state directory was, and nothing
that its own user, who owns nothing else, may not read. After `finish` it holds no capability and
can never get one.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from forkyard.config import Layout
from forkyard.gateway import program_files
from forkyard.shim import kernel, mounts, protocol
from forkyard.shim.ids import EGRESS_USER_ID, GATEWAY_USER_ID

OWN_DIRECTORY = "/sys/gateway"
"""A place that every machine has and where no code or configuration of anybody's lies."""
_CAP_DAC_READ_SEARCH = 2
_MOST_DESCRIPTORS = 65536
_LOCK_SECONDS = 15.0
"""A gateway that was told to end is gone within this time."""
_NO_CODE = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What one process without rights is left with."""

    user: int
    directory: Path
    """Its own, which it sees at `OWN_DIRECTORY`."""
    socket: Path
    """Where it is told and asked."""
    lock: Path
    """Held for as long as it lives: it is the only one of its kind."""


def gateway_post(layout: Layout) -> Post:
    """Give the gateway's."""
    return Post(
        user=GATEWAY_USER_ID,
        directory=layout.gateway,
        socket=layout.gateway_socket,
        lock=layout.run / "gateway.lock",
    )


def egress_post(layout: Layout) -> Post:
    """Give the allowlist proxy's: another user, who has no key and no ledger."""
    return Post(
        user=EGRESS_USER_ID,
        directory=layout.egress,
        socket=layout.egress_socket,
        lock=layout.run / "egress.lock",
    )


def enter(layout: Layout, post: Post) -> socket.socket:
    """Bind the control socket, hide the state, and become a user who owns nothing else.

    One capability is left, to read program files that may be readable for root alone.

    Returns:
        The control socket, listening; only root can reach it.

    Raises:
        OSError: Something of it cannot be had; nothing must be served then.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernel.set_undumpable()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(most, _MOST_DESCRIPTORS) if most != resource.RLIM_INFINITY else _MOST_DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    mounts.private_mount_namespace()
    _hold(post.lock)
    own = _own_directory(post.directory, post.user)
    control = protocol.listen(str(post.socket))
    control.settimeout(0)
    _hide(layout.home, own)
    os.close(own)
    os.umask(0o077)
    os.chdir(OWN_DIRECTORY)
    _become(post.user)
    return control


def _hold(path: Path) -> None:
    """Be the only gateway of this state directory for as long as this process lives."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _own_directory(path: Path, user: int) -> int:
    path.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    os.fchown(descriptor, user, user)
    os.fchmod(descriptor, 0o700)
    return descriptor


def _hide(home: Path, own: int) -> None:
    kernel.mount("tmpfs", "/sys", "tmpfs", _NO_CODE, "mode=0555,size=64k")
    Path(OWN_DIRECTORY).mkdir(mode=0o555)
    kernel.clone_mount(own, OWN_DIRECTORY, user_namespace=None, readonly=False)
    kernel.mount("", OWN_DIRECTORY, "", kernel.MS_REMOUNT | kernel.MS_BIND | _NO_CODE)
    program_files.show()
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _NO_CODE
    kernel.mount("", "/sys", "", read_only)
    if home.exists():  # it may have lain in a closed folder that is as good as empty now
        kernel.mount("tmpfs", str(home), "tmpfs", kernel.MS_RDONLY | _NO_CODE, "mode=0000,size=4k")


def _become(user: int) -> None:
    os.setgroups([])
    kernel.keep_capabilities_across_user_change()
    kernel.drop_bounding_capabilities()
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.keep_capabilities(1 << _CAP_DAC_READ_SEARCH)
    kernel.forbid_new_privileges()
    kernel.set_undumpable()


def finish() -> None:
    """Give up the last capability; every module that will be needed has been imported."""
    kernel.keep_capabilities(0)
    kernel.set_undumpable()
