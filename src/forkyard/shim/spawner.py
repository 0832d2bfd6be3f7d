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

import contextlib
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from forkyard.shim.cgroups import SandboxGroup
from forkyard.shim.hierarchies import Hierarchies
from forkyard.shim.marks import MarkedProcesses
from forkyard.shim.orders import EXECUTING, STAGES, Command, receive, send
from forkyard.shim.protocol import Message, receive_rights
from forkyard.shim.spawner_process import serve

_TRIES = 3


class Started(NamedTuple):
    """A command that is being executed."""

    pid: int
    """As the caller's pid namespace numbers it."""
    group: str
    """Its tracking cgroup, which holds whatever it starts."""
    master: int | None = None
    """Our end of its terminal, where it has one."""


class Held(NamedTuple):
    """A command that has everything, and executes when it is told so."""

    pid: int
    group: str
    channel: socket.socket


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
            serve(other, hierarchies, roots)
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

    def hold(self, command: Command, streams: tuple[int, int, int]) -> Held | None:
        """Give a command to the process that waits for one, up to the point of execution.

        Returns:
            What `release` or `drop` takes; None where that failed, which `spawn` will tell.
        """
        given = self._give(command._replace(is_held=True), streams)
        return None if isinstance(given, Refusal) else given

    def release(
        self, held: Held, command: Command, streams: tuple[int, int, int]
    ) -> Started | Refusal:
        """Let a held command execute; `spawn` the same one where it was killed meanwhile."""
        with contextlib.suppress(ConnectionError):
            held.channel.send(b"\n")
        return self._outcome(held) or self.spawn(command, streams)

    def drop(self, held: Held) -> None:
        """End a held command, which has not begun."""
        assert self._group is not None  # noqa: S101 - it was prepared in a group of it
        held.channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(held.pid, 0)
        self._group.remove_exec(held.group)

    def _spawn(self, command: Command, streams: tuple[int, int, int]) -> Started | Refusal | None:
        given = self._give(command, streams)
        return given if isinstance(given, Refusal) else self._outcome(given)

    def _give(self, command: Command, streams: tuple[int, int, int]) -> Held | Refusal:
        self.prepare(at_once=True)
        assert self._next is not None  # noqa: S101 - just prepared
        assert self._group is not None  # noqa: S101 - as above
        (name, waiting), self._next = self._next, None
        answer = self._answer()
        if "errno" in answer:
            waiting.close()
            self._group.remove_exec(name)
            return Refusal("join", answer["errno"])
        self._group.mark(name, answer["pid"])
        with contextlib.suppress(ConnectionError):
            send(waiting, command._asdict(), streams)
        return Held(answer["pid"], name, waiting)

    def _outcome(self, given: Held) -> Started | Refusal | None:
        assert self._group is not None  # noqa: S101 - it was prepared in a group of it
        words, masters = b"", list[int]()
        with given.channel, contextlib.suppress(ConnectionError):
            while True:
                chunk, received = receive_rights(given.channel, 64)
                masters += received
                words += chunk
                if not chunk:
                    break
        if words == EXECUTING:
            return Started(given.pid, given.group, *masters)
        for master in masters:
            os.close(master)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(given.pid, 0)
        self._group.remove_exec(given.group)
        if not words:
            return None  # it was killed while it waited, by the memory limit: try another one
        stage, number = words.removeprefix(EXECUTING).split(b":")
        return Refusal(STAGES[int(stage)], int(number))

    def _ask(self, message: Message, descriptors: Sequence[int]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died: whoever reads next finds out
            send(self._channel, message, descriptors)

    def _answer(self) -> Message:
        answer = receive(self._channel)
        if answer is None:
            raise OSError(32, "the spawner died")
        return answer[0]

    def close(self) -> None:
        """Let it go; it ends when nobody can ask it for anything."""
        self._channel.close()
        if self._next is not None:
            self._next[1].close()
            self._next = None
