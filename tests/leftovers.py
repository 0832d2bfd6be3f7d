"""What a test session left on this machine: processes, mounts and cgroups.

Other sessions may run beside this one, so a thing counts only where it can be told to be ours: a
process by a folder of this session in its command line or environment (or its parents'), a mount
by that folder in its line, a cgroup by being new and having no living owner of another session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CGROUP_PARENT = "forkyard"
PATIENCE_SECONDS = 10.0
"""A process that was told to go needs a moment, and so does the kernel to take its groups."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine, as /proc shows it."""

    pid: int
    parent: int
    words: bytes
    """Command line and first environment."""

    def __str__(self) -> str:
        """Name it the way `ps` would."""
        command = self.words.partition(b"\0\0")[0].replace(b"\0", b" ")
        return f"process {self.pid}: {command.decode(errors='replace')[:160]}"


def processes() -> dict[int, Process]:
    """List what runs, zombies and kernel threads left out."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if words and state != "Z":
                pid = int(entry.name)
                found[pid] = Process(pid, int(parent), words + b"\0" + environment)
    return found


def cgroups() -> dict[str, list[Path]]:
    """Find the groups of all sandboxes, by name: one in each hierarchy, directly below ours."""
    found: dict[str, list[Path]] = {}
    for parent in (*CGROUPS.glob(CGROUP_PARENT), *CGROUPS.glob(f"*/{CGROUP_PARENT}")):
        # Other sessions' groups come and go while this one looks.
        with contextlib.suppress(OSError):
            for entry in os.scandir(parent):
                if entry.is_dir():
                    found.setdefault(entry.name, []).append(Path(entry.path))
    return found


class Session:
    """What there was before, and which folders are this session's."""

    def __init__(self) -> None:
        """Look at the machine as it is now."""
        self._cgroups = frozenset(cgroups())
        self._folders: list[bytes] = []

    def own(self, folder: Path) -> None:
        """Count whatever mentions this folder as ours."""
        self._folders.append(os.fsencode(folder))

    def leftovers(self) -> list[str]:
        """Give what is still there once everything had time to go."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := self._look()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _look(self) -> list[str]:
        running = processes()
        ours = [process for process in running.values() if self._is_ours(process)]
        mounts = [
            f"mount {line.split()[4]}"
            for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
            if any(os.fsdecode(folder) in line for folder in self._folders)
        ]
        groups = [
            f"cgroup {path}"
            for name, paths in sorted(cgroups().items())
            if name not in self._cgroups and not self._is_others(paths, running)
            for path in paths
        ]
        return [*map(str, ours), *mounts, *groups]

    def _is_ours(self, process: Process) -> bool:
        return process.pid != os.getpid() and any(name in process.words for name in self._folders)

    def _is_others(self, groups: Sequence[Path], running: dict[int, Process]) -> bool:
        """Whether a living process of another session's shim holds a sandbox's groups."""
        pids: list[int] = []
        # os.walk, unlike rglob, passes over a folder that vanishes under it.
        for folder in (folder for group in groups for folder, _, _ in os.walk(group)):
            with contextlib.suppress(OSError):
                pids += [int(line) for line in Path(folder, "cgroup.procs").read_text().split()]
        for pid in pids:
            chain = _ancestry(pid, running)
            if any(self._is_ours(process) for process in chain):
                return False
            if any(b"forkyard" in process.words for process in chain):
                return True
        return False


def _ancestry(pid: int, running: dict[int, Process]) -> list[Process]:
    chain: list[Process] = []
    while pid in running and len(chain) < 64:
        chain.append(running[pid])
        pid = running[pid].parent
    return chain


def stop_all(folder: Path) -> None:
    """End the server and whatever else was started for a state directory: TERM, then KILL."""
    marks: Sequence[bytes] = (os.fsencode(folder),)

    def still() -> list[int]:
        return [
            process.pid
            for process in processes().values()
            if process.pid != os.getpid() and any(mark in process.words for mark in marks)
        ]

    told: set[int] = set()

    def are_gone() -> bool:
        found = still()
        # a server that is ending may just have started a gateway in place of the one that did
        _signal([pid for pid in found if pid not in told], signal.SIGTERM)
        told.update(found)
        return not found

    if not _until(are_gone):
        _signal(still(), signal.SIGKILL)
        _until(lambda: not still())


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _until(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
