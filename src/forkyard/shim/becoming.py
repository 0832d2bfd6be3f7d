"""How a process that the spawner forked becomes a command: it gives up everything, and executes."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Mapping, Sequence
from typing import NoReturn

from forkyard.shim import copying, kernel
from forkyard.shim.cgroups import SandboxGroup
from forkyard.shim.orders import EXECUTING, receive, send
from forkyard.shim.terminal import open_terminal

_ORDER = 3
LAST_FILTER = kernel.refuse_call(kernel.SYS_CLONE3, errno.ENOSYS)
"""What the spawner itself still needs and a command must not have: with ENOSYS the C library
falls back to clone(2), whose flags the allowlist examines."""
_OOM_SCORE = b"500"
"""A command is a better victim of the memory limit than the spawner."""


def become(
    order: int, tracking: int | None, rlimits: Mapping[str, int], *, at_once: bool
) -> NoReturn:
    """Wait for a command, give up everything, and execute it."""
    stage = 0
    try:
        order = _give_up(order, tracking)
        if not at_once:
            _rehearse()
        channel = socket.socket(fileno=order)  # closes the descriptor where it is let go
        request = receive(channel)
        if request is None:
            os._exit(0)
        message, streams = request
        # Received descriptors lie above 2, so placing the streams never overwrites one.
        for index, stream in enumerate(streams):
            os.dup2(stream, index)
        if not message["capabilities"]:
            kernel.drop_bounding_capabilities()
        _become_user(message["user"])
        kernel.keep_capabilities(message["capabilities"])
        _limit(message["file_bytes"], rlimits)
        if not message["is_held"]:
            _tell(channel, message["terminal"])
        stage = 1
        os.chdir(message["directory"])
        if message["copy"] is not None:
            _copy(channel, *message["copy"])
        stage = 2
        places = _places(message["argv"][0], message["variables"])
        if message["is_held"]:
            _wait_for_word(channel)
        _execute(places, message["argv"], message["variables"])
    except OSError as error:
        os.write(order, b"%d:%d" % (stage, error.errno or errno.EIO))
    finally:
        os._exit(127)


def _give_up(order: int, tracking: int | None) -> int:
    """Let go of what no command needs; give the order's descriptor, which is the last one left."""
    if tracking is not None:
        SandboxGroup.join_open(tracking)
    os.setsid()
    _prefer_as_victim()
    os.setgroups([])
    kernel.load_seccomp(LAST_FILTER)
    if order != _ORDER:
        os.dup2(order, _ORDER, inheritable=False)
    kernel.close_from(_ORDER + 1)
    return _ORDER


def _limit(file_bytes: int | None, rlimits: Mapping[str, int]) -> None:
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    for name, value in rlimits.items():
        _lower(getattr(resource, name), value)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _copy(channel: socket.socket, direction: str, path: str) -> NoReturn:
    """Copy in a command's place: with its rights and limits, in its group, in its file system."""
    channel.close()  # it executes nothing that would
    kernel.close_from(_ORDER)
    os._exit(copying.serve(direction, path))


def _tell(channel: socket.socket, terminal: Sequence[int] | None) -> None:
    """Say that it begins; the shim gets its end of a terminal, nothing of which is left here."""
    if terminal is None:
        channel.send(EXECUTING)
        return
    master = open_terminal(*terminal)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [master]))]
    channel.sendmsg([EXECUTING], rights)
    os.close(master)


def _wait_for_word(channel: socket.socket) -> None:
    """Go on at the shim's word, or end with it; one that is killed meanwhile has not begun."""
    if not channel.recv(1):
        os._exit(0)
    _tell(channel, None)


def _become_user(user: int) -> None:
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _places(name: str, variables: Mapping[str, str]) -> list[str]:
    """List where a program may be, as execvp looks for it.

    Only what is there is tried later: a try that fails costs the kernel nearly as much as one that
    does not (measured: 0.7 ms for the three folders that usually come before /usr/bin).
    """
    if "/" in name:
        return [name]
    folders = variables.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(folder, name) for folder in folders]
    return [path for path in paths if os.access(path, os.F_OK)]


def _execute(places: list[str], argv: list[str], variables: Mapping[str, str]) -> None:
    """Execute the first that can be; the first error that is not an absence is told."""
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    for path in places:
        try:
            os.execve(path, argv, variables)
        except (FileNotFoundError, NotADirectoryError):
            if "/" in argv[0]:
                raise
        except OSError as error:
            if refused.errno == errno.ENOENT:
                refused = error
    raise refused


def _rehearse() -> None:
    """Go through the motions once, to no effect.

    After a fork every page is copied at its first write, which takes longer than all that is
    done there; so let that happen now, while nobody waits.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, {"argv": [], "variables": {}}, [ours.fileno()])
        received = receive(theirs)
    if received is not None:
        descriptor = received[1][0]
        os.dup2(descriptor, descriptor)
        os.close(descriptor)
    _become_user(-1)
    os.chdir("/")
    for name in ("/nonexistent", "nonexistent"):
        with contextlib.suppress(OSError):
            _execute(_places(name, {"PATH": "/nonexistent"}), [name], {})


def _prefer_as_victim() -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, _OOM_SCORE)
        os.close(descriptor)
