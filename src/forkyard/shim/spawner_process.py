"""The spawner's own process: it answers its shim until that is gone."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import NoReturn

from forkyard.shim import kernel
from forkyard.shim.becoming import become
from forkyard.shim.cgroups import SandboxGroup
from forkyard.shim.hierarchies import Hierarchies
from forkyard.shim.orders import receive, reply
from forkyard.shim.protocol import Message

_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_OPEN_FILES = 4096
_FIRST_REAL_TIME = 32


def serve(
    channel: socket.socket, hierarchies: Hierarchies | None, roots: dict[str, int]
) -> NoReturn:
    """Be the spawner: answer until the shim's end closes."""
    status = 1
    try:
        kernel.die_with_parent()
        kernel.set_name("forkyard-spawn")
        signal.set_wakeup_fd(-1)
        # Ignored signals are inherited by every command: none may be.
        for number in range(1, _FIRST_REAL_TIME):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
        births = hierarchies is not None and hierarchies.unified
        trouble: Message | None = None
        rlimits: dict[str, int] = {}
        while (request := receive(channel)) is not None:
            message, descriptors = request
            match message["op"]:
                case "join":
                    rlimits = message["rlimits"]
                    if hierarchies is not None:
                        trouble = _join(SandboxGroup(hierarchies, roots, message["name"]))
                case "run":
                    birthplace = descriptors[1] if births else -1
                    answer = trouble or _run(message["argv"], descriptors[0], birthplace)
                    reply(channel, answer)
                case "enter":
                    trouble = trouble or _enter(descriptors[0], message)
                case "fork":
                    order, *groups = descriptors
                    at_once = message["at_once"]
                    group = groups[0] if groups else None
                    answer = trouble or _fork(order, group, rlimits, births=births, at_once=at_once)
                    reply(channel, answer)
                case _:
                    pass
            for descriptor in descriptors:
                os.close(descriptor)
        status = 0
    finally:
        os._exit(status)


def _join(group: SandboxGroup) -> Message | None:
    try:
        group.join()
    except OSError as error:
        return {"errno": error.errno, "text": os.strerror(error.errno or 0)}
    return None


def _run(argv: Sequence[str], error_output: int, birthplace: int) -> Message:
    try:
        child = kernel.clone_into(birthplace, 0) if birthplace >= 0 else os.fork()
    except OSError as error:
        return {"errno": error.errno, "text": os.strerror(error.errno or 0)}
    if child == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for stream, number in ((null, 0), (null, 1), (error_output, 2)):
                os.dup2(stream, number)
            kernel.close_from(3)
            os.execve(argv[0], list(argv), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        finally:
            os._exit(127)
    _, status = os.waitpid(child, 0)
    return {"status": os.waitstatus_to_exitcode(status)}


def _enter(init: int, message: Message) -> Message | None:
    try:
        if message["processors"] is not None:
            # One that went offline meanwhile is no reason to run nothing.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, message["processors"])
        kernel.setns(init, _NAMESPACES)
        os.chdir("/")
        os.umask(0o022)
        open_files = min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kernel.drop_bounding_capabilities(message["capabilities"])
        kernel.forbid_new_privileges()
        kernel.set_undumpable()
        for program in message["filters"]:
            kernel.load_seccomp(bytes.fromhex(program))
    except OSError as error:
        return {"errno": error.errno, "text": os.strerror(error.errno or 0)}
    return None


def _fork(
    order: int, tracking: int | None, rlimits: Mapping[str, int], *, births: bool, at_once: bool
) -> Message:
    try:
        # CLONE_PARENT: the command becomes the shim's child at once, so its status is ours.
        if tracking is None:
            child = kernel.clone3(kernel.CLONE_PARENT | kernel.CLONE_NEWUTS)
        elif births:
            child = kernel.clone_into(tracking, kernel.CLONE_PARENT)
        else:
            child = kernel.clone(kernel.CLONE_PARENT)
    except OSError as error:
        return {"errno": error.errno}
    if child == 0:
        become(order, None if births else tracking, rlimits, at_once=at_once)
    return {"pid": child}
