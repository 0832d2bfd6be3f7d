"""The spawner: the process from which a sandbox's commands are forked.

An OCI runtime's `exec` takes ten milliseconds, most of them for moving a process into cgroups (a
grace period of the kernel per move) and joining namespaces anew. The spawner does both once: it
joins the limits when the sandbox is made, has the runtime start the container as its own child
(which so is limited from its first instruction), then joins the container's namespaces. A
command is one clone of it, born in the exec's cgroup, that gives up everything it could ever use
and executes. The spawner itself stays outside the container's pid namespace: no process inside
can name it.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import resource
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from forkyard.shim import kernel
from forkyard.shim.cgroups import SandboxGroup
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
_STAGES = ("join", "directory", "execute")
_FIRST_REAL_TIME = 32
_HEADER = struct.Struct("=I")
LAST_FILTER = kernel.refuse_call(kernel.SYS_CLONE3, errno.ENOSYS)
"""What the spawner itself still needs and a command must not have: with ENOSYS the C library
falls back to clone(2), whose flags the allowlist examines."""
_OOM_SCORE = b"500"
"""A command is a better victim of the memory limit than the spawner."""


class Command(NamedTuple):
    """What to execute, and as whom, inside the container."""

    argv: Sequence[str]
    variables: Mapping[str, str]
    directory: str
    user: int
    file_bytes: int | None = None
    """RLIMIT_FSIZE, where a disk limit is set."""


class Refusal(NamedTuple):
    """Why a command did not start: at which stage, and errno."""

    stage: str
    number: int


class Spawner:
    """The shim's end of its spawner process."""

    def __init__(self, group: SandboxGroup, filters: Sequence[bytes]) -> None:
        """Fork it; it joins the limits at once, while the caller goes on."""
        self._group = group
        self._channel, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self._channel.close()
            _serve(other, group, filters)
        other.close()

    def run(self, argv: Sequence[str], *, error_output: int) -> int:
        """Run a trusted program inside the limits, outside the container.

        Returns:
            Its exit status.

        Raises:
            OSError: The limits could not be joined.
        """
        self._ask({"op": "run", "argv": list(argv)}, [error_output])
        answer = self._answer()
        if "errno" in answer:
            raise OSError(answer["errno"], f"cannot join the cgroups: {answer['text']}")
        return int(answer["status"])

    def enter(self, init: int) -> None:
        """Join the namespaces of the container's first process, given by pidfd."""
        self._ask({"op": "enter"}, [init])
        answer = self._answer()
        if "errno" in answer:
            raise OSError(answer["errno"], f"cannot join the container: {answer['text']}")

    def spawn(
        self, command: Command, *, group_name: str, stdin: int, stdout: int, stderr: int
    ) -> int | Refusal:
        """Start a command in the container.

        Args:
            command: What to run.
            group_name: The exec's tracking cgroup, which exists.
            stdin: Becomes descriptor 0.
            stdout: Becomes descriptor 1.
            stderr: Becomes descriptor 2.

        Returns:
            The pid, as the caller's pid namespace numbers it, of a child of the caller; or why
            the kernel, or the command's own name or directory, refused.
        """
        report_read, report_write = os.pipe2(os.O_CLOEXEC)
        group = self._group.open(group_name)
        message = {
            "op": "spawn",
            "argv": list(command.argv),
            "variables": dict(command.variables),
            "directory": command.directory,
            "user": command.user,
            "file_bytes": command.file_bytes,
        }
        try:
            self._ask(message, [stdin, stdout, stderr, report_write, group])
        finally:
            os.close(report_write)
            os.close(group)
        words = b""
        try:
            while chunk := os.read(report_read, 64):
                words += chunk
        finally:
            os.close(report_read)
        return _outcome([word for word in words.split(b";") if word])

    def _ask(self, message: Message, descriptors: Sequence[int]) -> None:
        body = json.dumps(message).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with contextlib.suppress(BrokenPipeError):  # it died: whoever reads next finds out
            self._channel.sendmsg([_HEADER.pack(len(body))], rights)
            self._channel.sendall(body)

    def _answer(self) -> Message:
        answer = _receive(self._channel)
        if answer is None:
            raise OSError(32, "the spawner died")
        return answer[0]

    def close(self) -> None:
        """Let it go; it ends when nobody can ask it for anything."""
        self._channel.close()


def _outcome(words: Sequence[bytes]) -> int | Refusal:
    # Two writers: the spawner names the child, the child tells why it could not become the
    # command; either may come first.
    child = next((int(word[1:]) for word in words if word.startswith(b"p")), None)
    trouble = next((word[1:] for word in words if word.startswith(b"e")), None)
    if trouble is None and child is not None:
        return child
    if child is not None:
        os.waitpid(child, 0)
    stage, number = (trouble or b"0:5").split(b":")
    return Refusal(_STAGES[int(stage)], int(number))


def _receive(channel: socket.socket) -> tuple[Message, list[int]] | None:
    header, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, 8, socket.MSG_CMSG_CLOEXEC)
    if len(header) < _HEADER.size:
        return None
    (left,) = _HEADER.unpack(header)
    body = b""
    while left:
        chunk = channel.recv(min(left, 1 << 20))
        if not chunk:
            return None
        body += chunk
        left -= len(chunk)
    message = json.loads(body)
    return (message, descriptors) if isinstance(message, dict) else None


def _serve(channel: socket.socket, group: SandboxGroup, filters: Sequence[bytes]) -> NoReturn:
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
        trouble = _join(group)
        while (request := _receive(channel)) is not None:
            message, descriptors = request
            match message["op"]:
                case "run":
                    answer = trouble or {"status": _run(message["argv"], descriptors[0])}
                    _reply(channel, answer)
                case "enter":
                    _reply(channel, _enter(descriptors[0], filters))
                case "spawn":
                    _spawn(message, descriptors, group)
                case _:
                    pass
            for descriptor in descriptors:
                os.close(descriptor)
        status = 0
    finally:
        os._exit(status)


def _reply(channel: socket.socket, answer: Message) -> None:
    body = json.dumps(answer).encode()
    channel.sendall(_HEADER.pack(len(body)) + body)


def _join(group: SandboxGroup) -> Message | None:
    try:
        group.join()
    except OSError as error:
        return {"errno": error.errno, "text": os.strerror(error.errno or 0)}
    return None


def _run(argv: Sequence[str], error_output: int) -> int:
    child = os.fork()
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
    return os.waitstatus_to_exitcode(status)


def _enter(init: int, filters: Sequence[bytes]) -> Message:
    try:
        kernel.setns(init, _NAMESPACES)
        os.chdir("/")
        os.umask(0o022)
        open_files = min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kernel.drop_bounding_capabilities()
        kernel.forbid_new_privileges()
        kernel.set_undumpable()
        for program in filters:
            kernel.load_seccomp(program)
    except OSError as error:
        return {"errno": error.errno, "text": os.strerror(error.errno or 0)}
    return {}


def _spawn(message: Message, descriptors: Sequence[int], group: SandboxGroup) -> None:
    *streams, report, tracking = descriptors
    try:
        # CLONE_PARENT: the command becomes the shim's child at once, so its status is ours.
        if group.births:
            child = kernel.clone_into(tracking, kernel.CLONE_PARENT)
        else:
            child = kernel.clone(kernel.CLONE_PARENT)
    except OSError as error:
        os.write(report, b"e0:%d;" % (error.errno or 5))
        return
    if child == 0:
        _become(message, streams, report, -1 if group.births else tracking)
    os.write(report, b"p%d;" % child)


def _become(message: Message, streams: Sequence[int], report: int, tracking: int) -> NoReturn:
    stage = 0
    try:
        if tracking >= 0:
            SandboxGroup.join_open(tracking)
        os.setsid()
        # Received descriptors lie above 2, so placing the streams never overwrites one.
        for index, stream in enumerate(streams):
            os.dup2(stream, index)
        _prefer_as_victim()
        os.dup2(report, 3, inheritable=False)
        report = 3
        kernel.close_from(4)
        if message["file_bytes"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (message["file_bytes"],) * 2)
        os.setgroups([])
        os.setresgid(message["user"], message["user"], message["user"])
        os.setresuid(message["user"], message["user"], message["user"])
        kernel.keep_capabilities(0)
        stage = 1
        os.chdir(message["directory"])
        stage = 0
        kernel.load_seccomp(LAST_FILTER)
        stage = 2
        argv, variables = message["argv"], message["variables"]
        if "/" in argv[0]:
            os.execve(argv[0], argv, variables)
        os.execvpe(argv[0], argv, variables)
    except OSError as error:
        os.write(report, b"e%d:%d;" % (stage, error.errno or 5))
    finally:
        os._exit(127)


def _prefer_as_victim() -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, _OOM_SCORE)
        os.close(descriptor)
