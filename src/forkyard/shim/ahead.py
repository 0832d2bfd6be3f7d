"""What is made ahead for a sandbox's next command, while nobody waits for it.

That is a desk for its output and a process that becomes it. A command that its server still writes
down is *held*: it gets all that it needs up to its execution, which the server's word begins.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import NamedTuple

from forkyard.shim.execs import Desk, RunningExec
from forkyard.shim.orders import command_of
from forkyard.shim.protocol import Message
from forkyard.shim.sandbox import Sandbox
from forkyard.shim.spawner import Held

_BUSY_SECONDS = 0.02
"""A command that was just started needs the processor more than the next one's preparation; most
are over by then."""
QUIET_SECONDS = 10.0
"""Without a command for so long, the process that was made ahead for one goes: it is a quarter of
an idle sandbox's memory, and saves three milliseconds."""


class _HeldExec(NamedTuple):
    owner: socket.socket
    """It is forgotten with that connection."""
    spec: Message
    held: Held


class Ahead:
    """The next command of one sandbox, from nothing at all to the point of its execution."""

    def __init__(self, sandbox: Sandbox, execs_folder: int, capabilities: int) -> None:
        """Know where commands run; nothing is made yet.

        Args:
            sandbox: It is made before anything is asked for here.
            execs_folder: An open folder, in which each command gets one.
            capabilities: What root of the workspace keeps; a mask.
        """
        self._sandbox = sandbox
        self._execs_folder = execs_folder
        self._root_capabilities = capabilities
        self._desk: Desk | None = None
        self._held: _HeldExec | None = None
        self._prepare_at: float | None = None
        self._quiet_at: float | None = None

    def begin(self, *, at_once: bool) -> None:
        """Make the first process; with `at_once` a command is on its way already."""
        self._sandbox.spawner.prepare(at_once=at_once)
        self._prepare_at = _later() if at_once else time.monotonic()

    def hold(self, owner: socket.socket, spec: Message) -> None:
        """Make a command ready while its server still writes down that it was asked for.

        One at a time is; what fails here fails once more at its start, which tells it.
        """
        if self._held is not None:
            return
        with contextlib.suppress(OSError):
            self._prepare_at = self._quiet_at = None
            self._desk = self._desk or Desk(self._execs_folder)
            command = command_of(spec, self._capabilities(spec))
            held = self._sandbox.spawner.hold(command, self._desk.streams)
            if held is not None:
                self._held = _HeldExec(owner, spec, held)

    def drop(self, *, owner: socket.socket | None = None, name: str | None = None) -> None:
        """Forget what is held; where an owner or a name is given, only if it is theirs."""
        held = self._held
        if held is None or owner not in (None, held.owner) or name not in (None, held.spec["id"]):
            return
        self._held = None
        self._sandbox.spawner.drop(held.held)
        self._prepare_at = _later()

    def start(self, spec: Message) -> RunningExec:
        """Start a command with what is there for it; what is not is made.

        Raises:
            FileExistsError: There was one of that name before.
            OSError: Its output cannot be kept.
        """
        if self._held is not None and self._held.spec != spec:
            self.drop()
        self._prepare_at, self._quiet_at = _later(), None
        self._desk = self._desk or Desk(self._execs_folder)
        try:
            self._desk.assign(spec["id"], spec["output_bytes"])
        except OSError:
            self.drop()
            raise
        desk, self._desk = self._desk, None
        held, self._held = self._held, None
        return RunningExec(
            spec,
            desk=desk,
            group=self._sandbox.group,
            spawner=self._sandbox.spawner,
            capabilities=self._capabilities(spec),
            held=None if held is None else held.held,
        )

    def _capabilities(self, spec: Message) -> int:
        return self._root_capabilities if spec["user"] == 0 else 0

    def hurry(self) -> None:
        """A command is over: make ready for the next one as soon as nothing else is to do."""
        if self._prepare_at is not None:
            self._prepare_at = time.monotonic()

    def next_ticks(self) -> list[float]:
        """When `tick` has something to do, in monotonic seconds."""
        return [when for when in (self._prepare_at, self._quiet_at) if when is not None]

    def tick(self, now: float, *, is_furnished: bool) -> None:
        """Make ahead what is due, or let it go after a quiet time."""
        if self._prepare_at is not None and now >= self._prepare_at:
            self._prepare(is_furnished=is_furnished)
        if self._quiet_at is not None and now >= self._quiet_at:
            self._quiet_at = None
            with contextlib.suppress(OSError):
                self._sandbox.spawner.let_go()

    def _prepare(self, *, is_furnished: bool) -> None:
        """Make both; what cannot be made is told when it is needed."""
        self._prepare_at = None
        # A later command is not to be told of what struck before it.
        self._sandbox.group.memory_kills()
        with contextlib.suppress(OSError):
            self._sandbox.spawner.prepare()
        if self._desk is None:
            with contextlib.suppress(OSError):
                self._desk = Desk(self._execs_folder)
        if is_furnished:
            self._quiet_at = time.monotonic() + QUIET_SECONDS


def _later() -> float:
    return time.monotonic() + _BUSY_SECONDS
