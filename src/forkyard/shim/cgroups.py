"""Control groups of one sandbox on v1, v2 and hybrid hosts, by descriptor.

The shim makes them itself and starts the container inside: three milliseconds less than the
runtime's own way, the same names on every layout, and one group per exec, so that ending an
exec ends whatever it left behind. Limits sit on the sandbox's group; kill works on the tracking
hierarchy (v2 where there is one, also without controllers; else the v1 freezer, else pids).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Collection
from typing import NamedTuple

from forkyard.shim.hierarchies import Hierarchies, open_roots
from forkyard.shim.ids import IDS

PARENT = "forkyard"
_CPU_PERIOD_MICROSECONDS = 100_000
_DEVICES = (
    *("c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm"),
    *("c 5:0 rwm", "c 5:2 rwm", "c 136:* rwm"),
    *("b *:* m", "c *:* m", "c 10:200 rwm"),
)
"""null, zero, full, random, urandom, tty, ptmx, pts. The last row grants nothing that is there to
be reached (no such node, no way to make one), but runc wants to grant it to a group below ours."""
_REMOVE_PATIENCE_SECONDS = 5.0
"""A killed process leaves its group within milliseconds; past this something is very wrong."""


class GroupLimits(NamedTuple):
    """What the sandbox's group enforces; None means no limit."""

    memory_bytes: int | None = None
    processes: int | None = None
    cpu_millicores: int | None = None


def stand_ins(limits: GroupLimits, enforced: Collection[str]) -> dict[str, int]:
    """Give the resource limits of each command where no controller enforces the sandbox's.

    Memory is that of one process, and what it may write to: addresses that are only reserved, as
    many runtimes do by the gigabyte, do not count. Processes are those of the workspace's user.
    """
    found = {}
    if limits.memory_bytes is not None and "memory" not in enforced:
        found["RLIMIT_DATA"] = limits.memory_bytes
    if limits.processes is not None and "pids" not in enforced:
        found["RLIMIT_NPROC"] = limits.processes
    return found


class SandboxGroup:
    """The groups of one sandbox, reachable also after the v2 tree left this mount namespace."""

    def __init__(self, hierarchies: Hierarchies, roots: dict[str, int], name: str) -> None:
        """Name the groups; nothing is made yet.

        Args:
            hierarchies: Where the controllers are.
            roots: The hierarchies, opened (`open_roots`).
            name: Of the sandbox.
        """
        self._hierarchies = hierarchies
        self._name = name
        self._roots = roots
        self._tracking = self._roots[hierarchies.tracking]
        self.known_memory_kills = 0
        """What `memory_kills` counted last."""

    def create(self, limits: GroupLimits) -> None:
        """Make the groups and set the limits.

        Raises:
            OSError: A limit that was asked for cannot be enforced here.
        """
        for root in self._roots.values():
            self._make_below_parent(root)
        self._limit(limits)
        self._restrict_devices()

    def _make_below_parent(self, root: int) -> None:
        for last in (False, False, False, True):
            self._make(root, PARENT)
            try:
                if self._hierarchies.layout == "v2":
                    self._enable_controllers(root)
                self._make(root, f"{PARENT}/{self._name}")
            except FileNotFoundError:
                # Another installation took the empty parent away in between (`remove_parent`).
                if last:
                    raise
            else:
                return

    def _make(self, root: int, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755, dir_fd=root)

    def _enable_controllers(self, root: int) -> None:
        wanted = " ".join(f"+{name}" for name in self._hierarchies.limits)
        for path in ("cgroup.subtree_control", f"{PARENT}/cgroup.subtree_control"):
            self._write(root, path, wanted)

    def _limit(self, limits: GroupLimits) -> None:
        v2 = self._hierarchies.layout == "v2"
        if limits.memory_bytes is not None and self._may("memory"):
            value = str(limits.memory_bytes)
            if v2:
                self._set("memory", "memory.max", value)
                self._set("memory", "memory.oom.group", "0")
                with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                    self._set("memory", "memory.swap.max", "0")
            else:
                self._set("memory", "memory.limit_in_bytes", value)
                with contextlib.suppress(OSError):  # a kernel without swap accounting
                    self._set("memory", "memory.memsw.limit_in_bytes", value)
        if limits.processes is not None and self._may("pids"):
            self._set("pids", "pids.max", str(limits.processes))
        if limits.cpu_millicores is not None and self._may("cpu"):
            quota = limits.cpu_millicores * _CPU_PERIOD_MICROSECONDS // 1000
            if v2:
                self._set("cpu", "cpu.max", f"{quota} {_CPU_PERIOD_MICROSECONDS}")
            else:
                self._set("cpu", "cpu.cfs_period_us", str(_CPU_PERIOD_MICROSECONDS))
                self._set("cpu", "cpu.cfs_quota_us", str(quota))

    def _may(self, controller: str) -> bool:
        """Whether it is there; where root lacks one, a limit that needs it is refused."""
        return controller in self._hierarchies.limits or not IDS.is_rootless

    def _restrict_devices(self) -> None:
        # On v2 this takes a BPF program; there the user namespace, nodev mounts and the missing
        # mknod call stand alone.
        if "devices" in self._hierarchies.limits and self._hierarchies.layout != "v2":
            self._set("devices", "devices.deny", "a")
            for rule in _DEVICES:
                self._set("devices", "devices.allow", rule)

    def _set(self, controller: str, file: str, value: str) -> None:
        point = self._hierarchies.limits.get(controller)
        if point is None:
            raise OSError(errno.EOPNOTSUPP, f"this machine has no {controller} cgroup controller")
        self._write(self._roots[point], f"{PARENT}/{self._name}/{file}", value)

    def _write(self, root: int, path: str, value: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=root)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)

    def _read(self, root: int, path: str) -> str:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
        try:
            text = b""
            # A read of a whole megabyte at once would map and unmap that much each time.
            while chunk := os.read(descriptor, 1 << 16):
                text += chunk
            return text.decode()
        finally:
            os.close(descriptor)

    def stand_ins(self, limits: GroupLimits) -> dict[str, int]:
        """Give what each command is limited by where this machine lacks a controller."""
        return stand_ins(limits, self._hierarchies.limits)

    def mark(self, name: str, pid: int) -> None:
        """Do nothing: a process is known by its group."""

    def add_exec(self, name: str) -> None:
        """Make the tracking group of one exec."""
        self._make(self._tracking, f"{PARENT}/{self._name}/{name}")

    def join(self) -> None:
        """Move the calling process, which has no threads, into the limits.

        By `tasks`, not `cgroup.procs`: for a thread that moves itself the kernel takes no lock
        that waits out a grace period, which is ten milliseconds on an idle machine. On v2, which
        has no such file, nothing is moved: whatever counts is born in the group (`births`).
        """
        if self._hierarchies.layout == "v2":
            return
        for point, root in self._roots.items():
            if point != self._hierarchies.tracking or not self._hierarchies.unified:
                self._write(root, f"{PARENT}/{self._name}/tasks", "0")

    @property
    def births(self) -> bool:
        """Whether a process can be born in a tracking group instead of being moved there."""
        return self._hierarchies.unified

    def open(self, name: str = ".") -> int:
        """Open a tracking group's directory; by default the sandbox's own."""
        return os.open(
            f"{PARENT}/{self._name}/{name}",
            os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
            dir_fd=self._tracking,
        )

    @staticmethod
    def join_open(group: int) -> None:
        """Move the calling process, which has no threads, into an open v1 tracking group."""
        descriptor = os.open("tasks", os.O_WRONLY | os.O_CLOEXEC, dir_fd=group)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)

    def processes(self, name: str) -> list[int]:
        """List the pids of one tracking group, as this pid namespace numbers them."""
        try:
            text = self._read(self._tracking, f"{PARENT}/{self._name}/{name}/cgroup.procs")
        except FileNotFoundError:
            return []
        return [int(pid) for pid in text.split() if pid != "0"]

    def signal(self, name: str, number: int) -> None:
        """Signal every process of one tracking group."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, name: str) -> None:
        """Kill every process of one tracking group, forkers included."""
        if self._hierarchies.unified:
            try:
                self._write(self._tracking, f"{PARENT}/{self._name}/{name}/cgroup.kill", "1")
            except FileNotFoundError:
                if not self.processes(name):
                    return
            else:
                return
        deadline = time.monotonic() + _REMOVE_PATIENCE_SECONDS
        while self.processes(name) and time.monotonic() < deadline:
            self.signal(name, signal.SIGKILL)

    def freeze(self, patience_seconds: float) -> bool:
        """Freeze every process of the sandbox; False where its cgroup has no means to.

        Raises:
            OSError: Something still ran after so long; `thaw` takes it back.
        """
        top = f"{PARENT}/{self._name}"
        if self._hierarchies.unified:
            order, told, word = ("cgroup.freeze", "1"), "cgroup.events", "frozen 1"
        elif self._hierarchies.tracking == self._hierarchies.limits.get("freezer"):
            order, told, word = ("freezer.state", "FROZEN"), "freezer.state", "FROZEN"
        else:
            return False
        self._write(self._tracking, f"{top}/{order[0]}", order[1])
        deadline = time.monotonic() + patience_seconds
        while word not in self._read(self._tracking, f"{top}/{told}").splitlines():
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"it still runs after {patience_seconds:g} s")
            time.sleep(0.0005)  # v1 offers no event for it
        return True

    def thaw(self) -> None:
        """Let every process of the sandbox run. Idempotent."""
        for file, value in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
            with contextlib.suppress(OSError):
                self._write(self._tracking, f"{PARENT}/{self._name}/{file}", value)

    def remove_exec(self, name: str) -> bool:
        """Remove an empty tracking group; False while something still lives in it."""
        try:
            os.rmdir(f"{PARENT}/{self._name}/{name}", dir_fd=self._tracking)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def sweep(self) -> None:
        """Kill all that runs in this sandbox and remove its groups. Idempotent.

        Raises:
            OSError: A group is still busy after a bounded wait.
        """
        self.thaw()  # what is frozen by v1 does not die
        top = f"{PARENT}/{self._name}"
        deadline = time.monotonic() + _REMOVE_PATIENCE_SECONDS
        for root in dict.fromkeys([self._tracking, *self._roots.values()]):
            while True:
                self._kill_tree(root, top)
                if self._remove_tree(root, top):
                    break
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, f"cgroup {top} is still busy")
                time.sleep(0.001)  # the kernel offers no event for a v1 group getting empty

    def _kill_tree(self, root: int, top: str) -> None:
        with contextlib.suppress(OSError):
            self._write(root, f"{top}/cgroup.kill", "1")
            return
        with contextlib.suppress(FileNotFoundError):
            for folder, _, _, _ in os.fwalk(top, dir_fd=root):
                with contextlib.suppress(OSError):
                    for pid in self._read(root, f"{folder}/cgroup.procs").split():
                        if pid != "0":
                            os.kill(int(pid), signal.SIGKILL)

    def _remove_tree(self, root: int, top: str) -> bool:
        try:
            folders = [folder for folder, _, _, _ in os.fwalk(top, topdown=False, dir_fd=root)]
        except FileNotFoundError:
            return True
        for folder in folders:
            try:
                os.rmdir(folder, dir_fd=root)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def memory_kills(self) -> int:
        """Count how often the memory limit killed in this sandbox."""
        self.known_memory_kills = self._count_memory_kills()
        return self.known_memory_kills

    def _count_memory_kills(self) -> int:
        point = self._hierarchies.limits.get("memory")
        if point is None:
            return 0
        file = "memory.events" if self._hierarchies.layout == "v2" else "memory.oom_control"
        with contextlib.suppress(OSError):
            for line in self._read(
                self._roots[point], f"{PARENT}/{self._name}/{file}"
            ).splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0


def sweep(hierarchies: Hierarchies, name: str) -> None:
    """Kill and remove every group of a sandbox by name, whoever made it. Idempotent.

    Raises:
        OSError: A group is still busy after a bounded wait.
    """
    roots = open_roots(hierarchies)
    try:
        SandboxGroup(hierarchies, roots, name).sweep()
    finally:
        for root in roots.values():
            os.close(root)


def thaw(hierarchies: Hierarchies, name: str) -> None:
    """Let a sandbox run that a shim froze and died: on v1 it could not even die. Idempotent."""
    roots = open_roots(hierarchies)
    try:
        SandboxGroup(hierarchies, roots, name).thaw()
    finally:
        for root in roots.values():
            os.close(root)


def cpu_seconds(hierarchies: Hierarchies, name: str) -> float | None:
    """Say how long a sandbox's processes have computed; None where this machine does not count."""
    group = f"{PARENT}/{name}"
    with contextlib.suppress(OSError, ValueError, IndexError):
        if hierarchies.unified:  # counted by the kernel also where no controller is on
            with open(f"{hierarchies.tracking}/{group}/cpu.stat", encoding="ascii") as file:
                return int(file.readline().split()[1]) / 1e6
        point = hierarchies.limits["cpu"]
        with open(f"{point}/{group}/cpuacct.usage", encoding="ascii") as file:
            return int(file.read()) / 1e9
    return None


def remove_parent(hierarchies: Hierarchies) -> None:
    """Remove the group above all sandboxes where no sandbox of anybody is left. Idempotent."""
    for point in dict.fromkeys([hierarchies.tracking, *hierarchies.limits.values()]):
        with contextlib.suppress(OSError):  # in use, or gone
            os.rmdir(f"{point}/{PARENT}")


def existing(hierarchies: Hierarchies) -> list[str]:
    """List the names of all sandbox groups on this machine."""
    names: dict[str, None] = {}
    for point in dict.fromkeys([hierarchies.tracking, *hierarchies.limits.values()]):
        with contextlib.suppress(OSError), os.scandir(f"{point}/{PARENT}") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    names[entry.name] = None
    return list(names)
