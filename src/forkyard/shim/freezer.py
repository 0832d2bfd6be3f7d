"""Holding a running sandbox still, so that its files can be copied as they are at one instant.

By the v2 or v1 freezer where the sandbox has a cgroup; else every process is stopped by signal,
again and again until none is left that runs. Whoever asked is waited for only so long, and not at
all once its connection is gone: a sandbox never stays frozen for want of a server.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

from forkyard.shim.cgroups import SandboxGroup
from forkyard.shim.marks import MarkedProcesses
from forkyard.shim.protocol import Message

PATIENCE_SECONDS = 10.0
"""A process within a system call, such as one that copies a large file up, ends that first."""
_POLL_SECONDS = 0.001
_STOPPED = "TtZX"


class Freezer:
    """Freezes and thaws all that runs in one sandbox."""

    def __init__(self, group: SandboxGroup | MarkedProcesses, spared: tuple[int, ...]) -> None:
        """Keep what to freeze, and which processes of ours to spare where there is no cgroup."""
        self._group = group
        self._spared = spared
        self._stopped: set[int] = set()
        self._since = 0.0
        self.until: float | None = None
        """When it is thawed without being asked; None while nothing is frozen."""
        self.owner: object = None
        """Whoever asked for it."""
        self.waiting: list[tuple[object, Message]] = []
        """What was asked of the sandbox meanwhile, in order, and by whom."""

    @property
    def is_frozen(self) -> bool:
        """Whether it is frozen now."""
        return self.until is not None

    def freeze(self, owner: object, seconds: float) -> None:
        """Freeze; when this returns nothing in the sandbox runs.

        Raises:
            OSError: Something still ran after a bounded wait, and all runs on; or it is frozen.
        """
        if self.is_frozen:
            raise OSError(errno.EBUSY, "it is frozen for somebody else")
        self._since = time.monotonic()
        try:
            if not self._group.freeze(PATIENCE_SECONDS):
                self._stop_all()
        except OSError:
            self._release()
            raise
        self.owner, self.until = owner, time.monotonic() + seconds

    def thaw(self) -> float:
        """Let it run again; give for how long it did not. Idempotent."""
        if not self.is_frozen:
            return 0.0
        self._release()
        self.owner, self.until = None, None
        return time.monotonic() - self._since

    def _release(self) -> None:
        self._group.thaw()
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    def _stop_all(self) -> None:
        """Stop every process of this pid namespace but ours, until two looks find all stopped."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        before: set[int] = set()
        while True:
            pids = self._others()
            running = {pid for pid in pids if not _is_stopped(pid)}
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped.add(pid)
            if not running and pids == before:
                return
            before = pids
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"{len(running)} processes do not stop")
            if running:
                time.sleep(_POLL_SECONDS)  # no event tells that a signal has taken effect

    def _others(self) -> set[int]:
        mine = {os.getpid(), *self._spared}
        return {int(name) for name in os.listdir("/proc") if name.isdigit()} - mine


def _is_stopped(pid: int) -> bool:
    """Say whether all threads of a process are stopped, or over."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0].decode()
            if state not in _STOPPED:
                return False
    except (FileNotFoundError, ProcessLookupError):
        return True  # it is gone; who remains is asked at the next look
    return True
