"""What every sandbox needs, made before it is known which one: a spare shim waits on its stage.

Namespaces, the private /proc and /run, the spawner and a user namespace without a map are the
same for all; making them ahead takes ten milliseconds out of each start.
"""

from __future__ import annotations

import errno
import os

from forkyard.shim import kernel
from forkyard.shim.hierarchies import UNIFIED, detect, open_roots
from forkyard.shim.ids import IDS
from forkyard.shim.mounts import MappingNamespace, isolate_mounts
from forkyard.shim.spawner import Spawner

STAGE = "/run/w"
"""In the shim's private tmpfs: the container's mounts come from here, so that no path of the
state directory shows up inside and a mapped root can reach them."""
FIRST_PROCESS = "init"
"""Below the stage: the program that an image's container runs first."""
FOLDERS = (
    "",
    "/layers",
    "/disk",
    "/volume",
    "/merged",
    "/roots",
    "/root",
    "/bundle",
    "/staged",
    "/empty",
)


class Stage:
    """Private mounts, the cgroup hierarchies held open, and the helpers of one shim."""

    def __init__(self) -> None:
        """Make it; the calling process has a mount and a pid namespace of its own already.

        Raises:
            OSError: This machine lacks something that every sandbox needs.
        """
        # The host's /proc is still the one in sight: the only place to learn our pid out there.
        self.host_pid = os.readlink("/proc/self")
        isolate_mounts()
        # The tmpfs on /run covers what lies there on the host, which may be asked for by path.
        self._run = os.open("/run", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.hierarchies = detect()
        if self.hierarchies is None and not IDS.is_rootless:
            raise OSError(errno.EOPNOTSUPP, "no cgroup hierarchy is mounted below /sys/fs/cgroup")
        self.roots = open_roots(self.hierarchies) if self.hierarchies else {}
        self._hide_hybrid()
        safe = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("proc", "/proc", "proc", safe | kernel.MS_NOEXEC)
        kernel.mount("tmpfs", "/run", "tmpfs", safe, "mode=755,size=4m")
        for folder in FOLDERS:
            os.mkdir(f"{STAGE}{folder}", 0o755)
        self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self.spawner = Spawner(self.hierarchies, self.roots)
        self.mapping = None if IDS.is_rootless else MappingNamespace()

    def _hide_hybrid(self) -> None:
        """Keep the v2 tree of a hybrid host out of sight: crun 1.8 refuses such hosts.

        Open descriptors keep it reachable.
        """
        if IDS.is_rootless:
            if os.path.ismount(UNIFIED):  # it came with the namespace: it can only be covered
                kernel.mount("tmpfs", UNIFIED, "tmpfs", kernel.MS_RDONLY, "mode=0555,size=4k")
        elif self.hierarchies is not None and self.hierarchies.layout == "hybrid":
            kernel.unmount(self.hierarchies.tracking, kernel.MNT_DETACH)

    def come_back(self) -> None:
        """Return to this shim's mount namespace from another one."""
        kernel.setns(self._home, kernel.CLONE_NEWNS)

    def open(self, path: str, flags: int) -> int:
        """Open something of the host by its path."""
        if path == "/run" or path.startswith("/run/"):
            return os.open(f".{path[4:]}", flags | os.O_CLOEXEC, dir_fd=self._run)
        return os.open(path, flags | os.O_CLOEXEC)
