"""The spawner: the process from which a sandbox's commands are forked.

An OCI runtime's `exec` takes ten milliseconds, most of them for moving a process into cgroups (a
grace period of the kernel per move) and joining namespaces anew. The spawner does both once: it
joins the limits when the sandbox is made, has the runtime start the container as its own child
(which so is limited from its first instruction), then joins the container's namespaces. A
command is one clone of it, made ahead of time and born in a cgroup of its own, that gives up
everything it could ever use and executes. The spawner itself stays outside the container's pid
namespace: no process inside can name it.
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

from forkyard.shim import copying, kernel
from forkyard.shim.cgroups import SandboxGroup
from forkyard.shim.hierarchies import Hierarchies
from forkyard.shim.marks import MarkedProcesses
from forkyard.shim.protocol import Message, receive_rights
from forkyard.shim.terminal import open_terminal

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
_EXECUTING = b"x"
_ORDER = 3
_TRIES = 3
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
    terminal: Sequence[int] | None = None
    """Rows and columns of a terminal of its own, in place of the three descriptors."""
    copy: Sequence[str] | None = None
    """Direction and path: nothing is executed, but files are copied (shim/copying.py)."""
    capabilities: int = 0
    """What it keeps: nothing, but as root of a workspace with an image."""


class Started(NamedTuple):
    """A command that is being executed."""

    pid: int
    """As the caller's pid namespace numbers it."""
    group: str
    """Its tracking cgroup, which holds whatever it starts."""
    master: int | None = None
    """Our end of its terminal, where it has one."""


class Refusal(NamedTuple):
    """Why a command did not start: at which stage, and errno."""

    stage: str
    number: int


class Spawner:
    """The shim's end of its spawner process."""

    def __init__(self, hierarchies: Hierarchies | None, roots: dict[str, int]) -> None:
        """Fork it; which sandbox it serves is said by `join`."""
        self._group: SandboxGroup | MarkedProcesses | None = None
        self._count = 0
        self._next: tuple[str, socket.socket] | None = None
        self._channel, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self._channel.close()
            _serve(other, hierarchies, roots)
        other.close()

    def join(
        self, group: SandboxGroup | MarkedProcesses, name: str, rlimits: Mapping[str, int]
    ) -> None:
        """Have it moved into the limits of a sandbox; a failure is told by `run`.

        Args:
            group: Those limits.
            name: Of the sandbox.
            rlimits: What each command gets in place of a limit that no group enforces.
        """
        self._group = group
        self._ask({"op": "join", "name": name, "rlimits": dict(rlimits)}, [])

    def run(self, argv: Sequence[str], *, error_output: int) -> int:
        """Run a trusted program inside the limits, outside the container.

        Returns:
            Its exit status.

        Raises:
            OSError: The limits could not be joined.
        """
        assert self._group is not None  # noqa: S101 - nothing runs before `join`
        group = self._group.open()
        groups = [] if group is None else [group]
        self._ask({"op": "run", "argv": list(argv)}, [error_output, *groups])
        for descriptor in groups:
            os.close(descriptor)
        answer = self._answer()
        if "errno" in answer:
            raise OSError(answer["errno"], f"cannot join the cgroups: {answer['text']}")
        return int(answer["status"])

    def enter(
        self,
        init: int,
        filters: Sequence[str],
        capabilities: int = 0,
        processors: Sequence[int] | None = None,
    ) -> None:
        """Have it join the namespaces of the container's first process, given by pidfd.

        Args:
            init: The first process.
            filters: Compiled system call filters in hexadecimal, in the order to load them.
            capabilities: Most that any command may have; a mask.
            processors: On which commands run; None for all.

        A failure is told by the first `spawn`.
        """
        message = {"op": "enter", "filters": list(filters), "capabilities": capabilities}
        self._ask({**message, "processors": processors}, [init])

    def prepare(self, *, at_once: bool = False) -> None:
        """Have the next command's process forked now, so that nobody waits for it later.

        Args:
            at_once: Whether the command is on its way already: then it does not rehearse.

        It is born in a tracking group of its own and waits, still out of everybody's reach
        inside: not dumpable, and of a user that the container has not.
        """
        if self._next is not None:
            return
        assert self._group is not None  # noqa: S101 - nothing runs before `join`
        self._count += 1
        name = f"x{self._count}"
        self._group.add_exec(name)
        group = self._group.open(name)
        ours, theirs = socket.socketpair()
        try:
            groups = [] if group is None else [group]
            self._ask({"op": "fork", "at_once": at_once}, [theirs.fileno(), *groups])
        finally:
            theirs.close()
            if group is not None:
                os.close(group)
        self._next = (name, ours)

    def let_go(self) -> None:
        """End the process that waits for the next command, for which one is made when it comes."""
        if self._next is None:
            return
        assert self._group is not None  # noqa: S101 - it was prepared in a group of it
        (name, waiting), self._next = self._next, None
        with waiting:
            answer = self._answer()
        if "pid" in answer:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(answer["pid"], 0)  # it reads the end of what it waits for, and exits
        self._group.remove_exec(name)

    def spawn(self, command: Command, streams: tuple[int, int, int]) -> Started | Refusal:
        """Start a command in the container, with these descriptors as its 0, 1 and 2.

        Returns:
            The process, a child of the caller; or why the kernel, or the command's own name or
            directory, refused.
        """
        for _ in range(_TRIES):
            outcome = self._spawn(command, streams)
            if outcome is not None:
                return outcome
        return Refusal("join", errno.EIO)

    def _spawn(self, command: Command, streams: tuple[int, int, int]) -> Started | Refusal | None:
        self.prepare(at_once=True)
        assert self._next is not None  # noqa: S101 - just prepared
        assert self._group is not None  # noqa: S101 - as above
        (name, waiting), self._next = self._next, None
        with waiting:
            answer = self._answer()
            if "errno" in answer:
                self._group.remove_exec(name)
                return Refusal("join", answer["errno"])
            self._group.mark(name, answer["pid"])
            words, masters = b"", list[int]()
            with contextlib.suppress(ConnectionError):
                _send(waiting, command._asdict(), streams)
                while True:
                    chunk, received = receive_rights(waiting, 64)
                    masters += received
                    words += chunk
                    if not chunk:
                        break
        if words == _EXECUTING:
            return Started(answer["pid"], name, *masters)
        for master in masters:
            os.close(master)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(answer["pid"], 0)
        self._group.remove_exec(name)
        if not words:
            return None  # it was killed while it waited, by the memory limit: try another one
        stage, number = words.removeprefix(_EXECUTING).split(b":")
        return Refusal(_STAGES[int(stage)], int(number))

    def _ask(self, message: Message, descriptors: Sequence[int]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died: whoever reads next finds out
            _send(self._channel, message, descriptors)

    def _answer(self) -> Message:
        answer = _receive(self._channel)
        if answer is None:
            raise OSError(32, "the spawner died")
        return answer[0]

    def close(self) -> None:
        """Let it go; it ends when nobody can ask it for anything."""
        self._channel.close()
        if self._next is not None:
            self._next[1].close()
            self._next = None


def _send(channel: socket.socket, message: Message, descriptors: Sequence[int]) -> None:
    body = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([_HEADER.pack(len(body))], rights)
    channel.sendall(body)


def _receive(channel: socket.socket) -> tuple[Message, list[int]] | None:
    header, descriptors = receive_rights(channel, _HEADER.size)
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


def _serve(
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
        while (request := _receive(channel)) is not None:
            message, descriptors = request
            match message["op"]:
                case "join":
                    rlimits = message["rlimits"]
                    if hierarchies is not None:
                        trouble = _join(SandboxGroup(hierarchies, roots, message["name"]))
                case "run":
                    birthplace = descriptors[1] if births else -1
                    answer = trouble or _run(message["argv"], descriptors[0], birthplace)
                    _reply(channel, answer)
                case "enter":
                    trouble = trouble or _enter(descriptors[0], message)
                case "fork":
                    order, *groups = descriptors
                    at_once = message["at_once"]
                    group = groups[0] if groups else None
                    answer = trouble or _fork(order, group, rlimits, births=births, at_once=at_once)
                    _reply(channel, answer)
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
        _become(order, None if births else tracking, rlimits, at_once=at_once)
    return {"pid": child}


def _become(
    order: int, tracking: int | None, rlimits: Mapping[str, int], *, at_once: bool
) -> NoReturn:
    """Wait for a command, give up everything, and execute it."""
    stage = 0
    try:
        if tracking is not None:
            SandboxGroup.join_open(tracking)
        os.setsid()
        _prefer_as_victim()
        os.setgroups([])
        kernel.load_seccomp(LAST_FILTER)
        if order != _ORDER:
            os.dup2(order, _ORDER, inheritable=False)
            order = _ORDER
        kernel.close_from(_ORDER + 1)
        if not at_once:
            _rehearse()
        channel = socket.socket(fileno=order)  # closes the descriptor where it is let go
        request = _receive(channel)
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
        if message["terminal"] is None:
            os.write(order, _EXECUTING)
        else:
            _give(channel, open_terminal(*message["terminal"]))
        stage = 1
        os.chdir(message["directory"])
        if message["copy"] is not None:
            _copy(channel, *message["copy"])
        stage = 2
        _execute(message["argv"], message["variables"])
    except OSError as error:
        os.write(order, b"%d:%d" % (stage, error.errno or errno.EIO))
    finally:
        os._exit(127)


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


def _give(channel: socket.socket, master: int) -> None:
    """Hand the shim its end of the terminal; nothing of it is left with the command."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [master]))]
    channel.sendmsg([_EXECUTING], rights)
    os.close(master)


def _become_user(user: int) -> None:
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _execute(argv: list[str], variables: Mapping[str, str]) -> None:
    """Execute a program as execvp finds it; the first error that is not an absence is told.

    Only what is there is tried: a try that fails costs the kernel nearly as much as one that does
    not (measured: 0.7 ms for the three folders that usually come before /usr/bin).
    """
    if "/" in argv[0]:
        os.execve(argv[0], argv, variables)
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    for folder in variables.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, argv[0])
        if not os.access(path, os.F_OK):
            continue
        try:
            os.execve(path, argv, variables)
        except (FileNotFoundError, NotADirectoryError):
            continue
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
        _send(ours, {"argv": [], "variables": {}}, [ours.fileno()])
        received = _receive(theirs)
    if received is not None:
        descriptor = received[1][0]
        os.dup2(descriptor, descriptor)
        os.close(descriptor)
    _become_user(-1)
    os.chdir("/")
    for name in ("/nonexistent", "nonexistent"):
        with contextlib.suppress(OSError):
            _execute([name], {"PATH": "/nonexistent"})


def _prefer_as_victim() -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, _OOM_SCORE)
        os.close(descriptor)
