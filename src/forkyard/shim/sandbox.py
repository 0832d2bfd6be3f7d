"""Making and unmaking the isolation of one workspace, inside the shim's own namespaces."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time

from forkyard.shim import kernel, mounts, network, volume
from forkyard.shim.cgroups import GroupLimits, SandboxGroup
from forkyard.shim.files import read_bytes, write_bytes
from forkyard.shim.listeners import (
    EGRESS,
    EGRESS_PLACE,
    PORT,
    Handover,
    address_of,
    listen_inside,
)
from forkyard.shim.marks import MarkedProcesses
from forkyard.shim.protocol import Message
from forkyard.shim.stage import FIRST_PROCESS, STAGE, Stage

_UNMOUNT_PATIENCE_SECONDS = 5.0


class SandboxError(Exception):
    """The sandbox could not be made; the message is one clause for a person."""


class Sandbox:
    """One container over one overlay, with its cgroups."""

    def __init__(self, stage: Stage, spec: Message, directory: int) -> None:
        """Keep what to make.

        Args:
            stage: What was made before the spec was known.
            spec: As the fleet wrote it (workspace/drivers/oci.py).
            directory: Descriptor of the workspace's sandbox folder.
        """
        self._spec = spec
        self._directory = directory
        self._stage = stage
        self.spawner = stage.spawner
        self.group: SandboxGroup | MarkedProcesses = (
            SandboxGroup(stage.hierarchies, stage.roots, self.name)
            if stage.hierarchies is not None
            else MarkedProcesses()
        )
        self.init_pid = 0
        self.init_descriptor = -1
        self._network: network.OpenNetwork | None = None
        self.handovers: list[Handover] = []
        """Where the gateway, and the allowlist's proxy, are to answer for this sandbox."""

    @property
    def name(self) -> str:
        """Name of cgroup and container: the workspace and its epoch."""
        return f"{self._spec['workspace']}-{self._spec['epoch']}"

    @property
    def _is_image(self) -> bool:
        """Whether the container's root file system is the workspace itself, an image below it."""
        return bool(self._spec["is_image"])

    @property
    def pillars(self) -> tuple[int, ...]:
        """Processes without which there is no sandbox."""
        return (self.init_pid, self.spawner.pid)

    def make(self) -> None:
        """Make all of it but the workspace's files; `unmake` undoes it, also half-way.

        Raises:
            SandboxError: With the reason and the values.
        """
        try:
            self._make_groups()
            self._open_host()
            self._map_storage()
            self._mount_root()
            if self._spec["first_process"] is not None:
                self._put_first_process()
            if self._is_image:
                # Its root is the workspace's files: without them there is no container.
                self._mount_workspace(self._spec["layers"])
            self._run_container()
            if self._spec["network"] == "open":
                self._network = network.OpenNetwork(self.init_pid)
                self._network.start()
            self._listen()
        except OSError as error:
            raise SandboxError(str(error)) from error

    def furnish(self, layers: list[str]) -> None:
        """Mount the workspace's files, and show them in the container; nothing ran in it before.

        Args:
            layers: Names below the layers' folder, topmost first.

        Raises:
            SandboxError: With the reason and the values.
        """
        if self._is_image:
            return
        try:
            self._mount_workspace(layers)
            self._show_workspace()
        except OSError as error:
            raise SandboxError(str(error)) from error

    def _listen(self) -> None:
        gateway, egress = self._spec["gateway"], self._spec["egress"]
        if gateway is not None:
            names = gateway["providers"]
            places = [(address_of(index), PORT) for index in range(len(names))]
            self._hand_over(gateway["socket"], names, places)
        if egress is not None:
            self._hand_over(egress["socket"], [EGRESS], [EGRESS_PLACE], {"allow": egress["allow"]})

    def _hand_over(
        self,
        path: str,
        names: list[str],
        places: list[tuple[str, int]],
        extra: Message | None = None,
    ) -> None:
        folder = self._stage.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        made = dict(zip(names, listen_inside(self.init_descriptor, places), strict=True))
        name, workspace = os.path.basename(path), self._spec["workspace"]
        self.handovers.append(Handover(folder, name, workspace, made, extra))

    def _open_host(self) -> None:
        stage, flags = self._stage, os.O_PATH | os.O_DIRECTORY
        self._layers = stage.open(self._spec["layers_directory"], flags)
        self._disk = stage.open(self._spec["disk"], flags)
        if self._spec["limits"]["disk_is_hard"]:
            image = os.open("image", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._disk)
            os.close(self._disk)
            volume.mount_image(image, f"{STAGE}/volume")
            os.close(image)
            self._disk = os.open(f"{STAGE}/volume", flags | os.O_CLOEXEC)
        self._root = stage.open(self._spec["root"], flags)
        for index, source in enumerate(self._spec["staged"]):
            # A toolchain in somebody's home: the mapped root could not walk down to it.
            target = f"{STAGE}/staged/{index}"
            os.mkdir(target, 0o755)
            descriptor = stage.open(source, flags)
            kernel.clone_mount(descriptor, target, user_namespace=None, readonly=True)
            os.close(descriptor)

        if self._spec["processors"] is not None:
            self._write_processors(len(self._spec["processors"]))

    @staticmethod
    def _write_processors(count: int) -> None:
        """Make what the C library counts processors by."""
        folder = f"{STAGE}/processors"
        os.mkdir(folder, 0o755)
        for name in ("online", "possible", "present"):
            write_bytes(f"{folder}/{name}", f"0-{count - 1}\n".encode() if count > 1 else b"0\n")
        for number in range(count):
            os.mkdir(f"{folder}/cpu{number}", 0o755)

    def _make_groups(self) -> None:
        limits = self._spec["limits"]
        wanted = GroupLimits(
            memory_bytes=limits["memory_bytes"],
            processes=limits["processes"],
            cpu_millicores=limits["cpu_millicores"],
        )
        self.group.create(wanted)
        self.spawner.join(self.group, self.name, self.group.stand_ins(wanted))

    def _map_storage(self) -> None:
        mapping = self._stage.mapping
        namespace = None if mapping is None else mapping.descriptor(self._spec["id_map"])
        try:
            kernel.clone_mount(
                self._layers, f"{STAGE}/layers", user_namespace=namespace, readonly=True
            )
            kernel.clone_mount(
                self._disk, f"{STAGE}/disk", user_namespace=namespace, readonly=False
            )
        finally:
            if namespace is not None:
                os.close(namespace)

    def _mount_workspace(self, layers: list[str]) -> None:
        # Relative names: the mount table inside shows these words and no path of the host.
        os.chdir(f"{STAGE}/layers")
        try:
            mounts.mount_view(layers, f"{STAGE}/merged", upper="../disk/upper", work="../disk/work")
        finally:
            os.chdir("/")
        # Without the `0 0 1` extent in the id map overlayfs turns read-only without a word.
        if os.statvfs(f"{STAGE}/merged").f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, "the workspace's files came up read-only")
        self._ensure_folders()

    def _show_workspace(self) -> None:
        # What lies in the workspace is the agent's: a folder that became a link would show
        # whatever of the host the link names. Where it is shown, though, is ours: the container's
        # root is read-only, and its first process is all that ever ran there.
        merged = os.open(f"{STAGE}/merged", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        trees: dict[str, int] = {}
        try:
            for folder, target in self._spec["writable"].items():
                found = kernel.open_beneath(
                    merged, os.fsencode(folder.lstrip("/")), os.O_PATH | os.O_DIRECTORY
                )
                trees[target] = kernel.clone_tree(found)
                os.close(found)
            kernel.setns(self.init_descriptor, kernel.CLONE_NEWNS)
            try:
                for target, tree in trees.items():
                    kernel.attach(tree, target)
            finally:
                self._stage.come_back()
        finally:
            for descriptor in (merged, *trees.values()):
                os.close(descriptor)

    def _ensure_folders(self) -> None:
        """Make the user's folders where they are missing, past no link: the tree is the agent's."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        for folder in self._spec["folders"]:
            current = os.open(f"{STAGE}/merged", flags)
            for part in folder.strip("/").split("/"):
                try:
                    below = os.open(part, flags, dir_fd=current)
                except FileNotFoundError:
                    os.mkdir(part, 0o755, dir_fd=current)
                    below = os.open(part, flags, dir_fd=current)
                    os.chown(below, self._spec["user"], self._spec["user"])
                os.close(current)
                current = below
            os.close(current)

    def _mount_root(self) -> None:
        kernel.clone_mount(self._root, f"{STAGE}/roots", user_namespace=None, readonly=True)
        os.chdir(f"{STAGE}/roots")
        try:
            mounts.mount_view(["tree", "empty"], f"{STAGE}/root")
        finally:
            os.chdir("/")

    def _put_first_process(self) -> None:
        path = f"{STAGE}/{FIRST_PROCESS}"
        write_bytes(path, bytes.fromhex(self._spec["first_process"]))
        os.chmod(path, 0o755)  # noqa: S103 - a program of ours, in a private mount namespace

    def _run_container(self) -> None:
        write_bytes(f"{STAGE}/bundle/config.json", json.dumps(self._spec["config"]).encode())
        log = os.open(
            "runtime.log",
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
            0o600,
            dir_fd=self._directory,
        )
        runtime = self._spec["runtime"]
        try:
            status = self.spawner.run(
                [
                    runtime,
                    "--root=/run/runtime",
                    *self._spec["runtime_options"],
                    "run",
                    "--detach",
                    f"--pid-file={STAGE}/pid",
                    f"--bundle={STAGE}/bundle",
                    self.name,
                ],
                error_output=log,
            )
        finally:
            os.close(log)
        if status != 0:
            raise SandboxError(
                f"{os.path.basename(runtime)} ended with status {status}: {self._runtime_log()}"
            )
        self.init_pid = int(read_bytes(f"{STAGE}/pid"))
        self.init_descriptor = kernel.pidfd_open(self.init_pid)
        self.spawner.enter(
            self.init_descriptor,
            self._spec["filters"],
            self._spec["capabilities"],
            self._spec["processors"],
        )

    def _runtime_log(self) -> str:
        with contextlib.suppress(OSError):
            descriptor = os.open("runtime.log", os.O_RDONLY, dir_fd=self._directory)
            try:
                text = os.read(descriptor, 4096).decode(errors="replace")
            finally:
                os.close(descriptor)
            return " ".join(text.split())[-400:] or "it printed nothing"
        return "its log cannot be read"

    def unmake(self) -> None:
        """Kill everything, unmount, and remove the cgroups. Idempotent.

        Raises:
            OSError: Something is still busy after a bounded wait.
        """
        if self._network is not None:
            self._network.stop()
            self._network = None
        while self.handovers:
            self.handovers.pop().close()
        self.spawner.close()
        self.group.sweep()
        for target in ("root", "roots", "merged", "disk", "volume", "layers"):
            _unmount(f"{STAGE}/{target}")


def _unmount(target: str) -> None:
    deadline = time.monotonic() + _UNMOUNT_PATIENCE_SECONDS
    while True:
        try:
            kernel.unmount(target)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return
            # A dying container's own namespace still holds it for an instant. Never lazily: a
            # process that survives would go on writing into what is about to become a layer.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        else:
            return
