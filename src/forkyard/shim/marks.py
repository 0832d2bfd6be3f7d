"""Telling the processes of one command from all others where we may make no cgroup.

Each command is born in a UTS namespace of its own, and so is whatever it starts: leaving one takes
a capability and a system call that nothing inside has. So the namespace is a mark that cannot be
shed. Nothing is limited by it, and nothing needs to be removed: it ends with its last process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

from forkyard.shim.cgroups import GroupLimits, stand_ins

_ROUNDS = 3
"""Of killing what is seen, before everything is halted for it: some fork faster than we look."""
_PATIENCE_SECONDS = 5.0


class MarkedProcesses:
    """What `cgroups.SandboxGroup` does, by marks. The calling process is 1 of its pid namespace."""

    known_memory_kills = 0
    births = False

    def __init__(self) -> None:
        """Begin without a command."""
        self._marks: dict[str, int] = {}

    def create(self, limits: GroupLimits) -> None:
        """Do nothing: no limit can be enforced, and none is left out unsaid (`doctor`)."""

    def stand_ins(self, limits: GroupLimits) -> dict[str, int]:
        """Give what each command is limited by instead: weaker, and said so by `doctor`."""
        return stand_ins(limits, ())

    def add_exec(self, name: str) -> None:
        """Do nothing: a mark comes with the process."""

    def mark(self, name: str, pid: int) -> None:
        """Remember the mark of a command's first process, which is still ours."""
        with contextlib.suppress(OSError):
            # Held open, so that its number is not given to another one.
            self._marks[name] = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)

    def open(self, name: str = ".") -> int | None:
        """Give nothing to be born in."""
        del name
        return None

    def processes(self, name: str) -> list[int]:
        """List the living processes that carry a command's mark."""
        mark = self._marks.get(name)
        if mark is None:
            return []
        wanted = f"uts:[{os.fstat(mark).st_ino}]"
        return [pid for pid in _all() if wanted in _namespaces(pid)]

    def signal(self, name: str, number: int) -> None:
        """Signal every process of one command."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, name: str) -> None:
        """Kill every process of one command, forkers included."""
        for _ in range(_ROUNDS):
            if not self.processes(name):
                return
            self.signal(name, signal.SIGKILL)
        # One signal to all at once, which no fork slips through: nothing runs while we look.
        os.kill(-1, signal.SIGSTOP)
        try:
            self.signal(name, signal.SIGKILL)
        finally:
            os.kill(-1, signal.SIGCONT)

    def freeze(self, patience_seconds: float) -> bool:
        """Say that there is no freezer: `freezer.Freezer` stops all by signal."""
        del patience_seconds
        return False

    def thaw(self) -> None:
        """Do nothing, as `freeze`."""

    def remove_exec(self, name: str) -> bool:
        """Forget a command; False while something of it still lives."""
        if self.processes(name):
            return False
        mark = self._marks.pop(name, None)
        if mark is not None:
            os.close(mark)
        return True

    def sweep(self) -> None:
        """Kill all that runs in this sandbox, helpers of ours included. Idempotent.

        Raises:
            OSError: Something still lives after a bounded wait.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            if not any(_lives(pid) for pid in _all() if pid != os.getpid()):
                return
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "killed processes are still there")
            time.sleep(0.001)  # the kernel offers no event for processes that are not our children

    def memory_kills(self) -> int:
        """Count nothing: there is no memory limit."""
        return 0


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _namespaces(pid: int) -> set[str]:
    """Give the UTS namespaces of a process's threads; of one whose first thread ended, too."""
    try:
        return {os.readlink(f"/proc/{pid}/ns/uts")}
    except OSError:
        found = set()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    found.add(os.readlink(f"/proc/{pid}/task/{thread}/ns/uts"))
        return found


def _lives(pid: int) -> bool:
    return bool(_namespaces(pid))
