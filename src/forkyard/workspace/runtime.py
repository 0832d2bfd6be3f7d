"""Choosing an OCI runtime by really starting a container with it, and saying what is in force."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from forkyard.base.process import run_async
from forkyard.base.removal import remove_tree
from forkyard.config import Layout
from forkyard.errors import ForkyardError, SandboxUnavailableError
from forkyard.model.execution import ExecResult, ExecSpec
from forkyard.model.ids import ExecId, LayerId, WorkspaceId, new_exec_id, new_workspace_id
from forkyard.model.workspace import Environment, Limits, NetworkPolicy
from forkyard.shim.hierarchies import detect
from forkyard.shim.ids import IDS
from forkyard.shim.network import SEARCH_PATH
from forkyard.shim.protocol import Message
from forkyard.workspace.drivers.oci import configuration_digest, sandbox_document
from forkyard.workspace.interface import Isolation, SandboxSpec
from forkyard.workspace.limits import disk_protections

RUNTIMES = ("crun", "runc")
_OPTIONAL = {
    "skopeo": "templates have no image but `host`",
    "buildah": "no image is built from a Containerfile",
    "slirp4netns": "no network is `open`, that of a build's tasks included",
}
"""Program -> what is not to be had without it."""
_PROBE_SECONDS = 20.0
_PROBE_LAYER = LayerId("lay_000000000000")
_PROBE_LIMITS = Limits(memory_bytes=256 * 1024**2, processes=64, cpu_millicores=1000)
_STORAGE = (
    "rootless: overlay, one range of sub-ids for all workspaces"
    if IDS.is_rootless
    else "root: idmapped overlay, one private id range per workspace"
)
_LOOK = "cat /proc/self/status; echo uid: $(id -u); cat /proc/self/uid_map"
EXPECTED = {
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "Seccomp_filters": "3",
    "CapEff": "0000000000000000",
    "CapPrm": "0000000000000000",
    "CapBnd": "0000000000000000",
    "CapInh": "0000000000000000",
    "CapAmb": "0000000000000000",
    "uid": "1000",
}
"""What a command inside must read of itself, or the runtime is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An OCI runtime that really started a container here."""

    name: str
    path: str
    version: str


class Trial(Protocol):
    """Starts one sandbox from a document, runs one command, ends it again."""

    def __call__(self, document: Message, spec: ExecSpec) -> Awaitable[ExecResult]:
        """Give the command's result; WorkspaceError where the sandbox could not be made."""
        ...


class RuntimeProbe:
    """The choice of runtime, made once and remembered."""

    def __init__(self, layout: Layout, trial: Trial, runtimes: tuple[str, ...]) -> None:
        """Keep what to try, in this order, and how."""
        self._runtimes = runtimes
        self._layout = layout
        self._trial = trial
        self._lock = asyncio.Lock()
        self._chosen: Runtime | None = None
        self._isolation: Isolation | None = None

    async def runtime(self) -> Runtime:
        """Give the runtime to use.

        Raises:
            SandboxUnavailableError: None works; with each one's reason.
        """
        isolation = await self.isolation()
        if self._chosen is None:
            reasons = "; ".join(isolation.problems)
            raise SandboxUnavailableError(
                f"cannot isolate anything on this machine: {reasons}",
                hint="Install crun (or runc), then run `forkyard doctor`.",
            )
        return self._chosen

    async def isolation(self) -> Isolation:
        """Say what is in force; tries again each time while nothing works."""
        async with self._lock:
            if self._isolation is None or self._chosen is None:
                self._isolation = await self._look()
            return self._isolation

    async def _look(self) -> Isolation:
        problems: list[str] = []
        for name in self._runtimes:
            path = shutil.which(name, path=SEARCH_PATH)
            if path is None:
                problems.append(f"{name} is not installed")
                continue
            try:
                digest = await self._try(path)
            except ForkyardError as error:
                problems.append(f"{name} cannot start a container: {error.message}")
                continue
            version = await _version(path)
            self._chosen = Runtime(name=name, path=path, version=version)
            return Isolation(
                runtime=f"{name} {version}",
                storage_mode=_STORAGE,
                protections=_protections(),
                notes=(*problems, *_weaker(), *absent_programs(SEARCH_PATH)),
                digest=digest,
            )
        return Isolation(runtime=None, storage_mode="none", problems=tuple(problems))

    async def _try(self, path: str) -> str:
        workspace = new_workspace_id()
        layout = Layout(self._layout.run / f"probe-{workspace}")
        (layout.layer(_PROBE_LAYER) / "workspace").mkdir(parents=True)
        for folder in (layout.upper(workspace), layout.disk(workspace) / "work"):
            folder.mkdir(parents=True)
        spec = SandboxSpec(
            workspace=workspace,
            epoch=1,
            layers=(_PROBE_LAYER,),
            slot=0,
            environment=Environment(),
            limits=_PROBE_LIMITS,
            network=NetworkPolicy.NONE,
        )
        document = sandbox_document(spec, layout, path)
        try:
            return await self._check(document, workspace, layout)
        finally:
            with contextlib.suppress(OSError):
                remove_tree(layout.home, self._layout.trash)

    async def _check(self, document: Message, workspace: WorkspaceId, layout: Layout) -> str:
        exec_id: ExecId = new_exec_id()
        result = await self._trial(
            document,
            ExecSpec(
                id=exec_id,
                workspace=workspace,
                argv=("/bin/sh", "-c", _LOOK),
                working_directory="/",
                variables={"PATH": "/usr/bin:/bin"},
                timeout_seconds=_PROBE_SECONDS,
            ),
        )
        text = (layout.exec(workspace, exec_id) / "stdout").read_text(encoding="utf-8")
        seen = {
            key: value.strip()
            for key, _, value in (line.partition(":") for line in text.split("\n"))
        }
        wrong = [
            f"{key} is {seen.get(key, 'absent')} instead of {value}"
            for key, value in EXPECTED.items()
            if seen.get(key) != value
        ]
        if wrong or result.exit_code != 0:
            detail = result.detail or "; ".join(wrong)
            raise SandboxUnavailableError(f"a command inside is not confined: {detail}")
        return configuration_digest(document)


def _weaker() -> tuple[str, ...]:
    """Say what this user could have, and what stands in for it meanwhile."""
    if not IDS.is_rootless:
        return ()
    hierarchies = detect()
    lacking = [
        words
        for words, controller in (("memory", "memory"), ("cpu", "cpu"), ("process", "pids"))
        if hierarchies is None or controller not in hierarchies.limits
    ]
    if not lacking:
        return ()
    words = (
        f"no cgroup of this user's has what enforces limits of {', '.join(lacking)}: RLIMIT_DATA"
        " per process and RLIMIT_NPROC stand in, time limits hold; delegate the controllers to"
        " the user (systemd: `Delegate=yes`), or run as root"
    )
    return (words,)


def absent_programs(search_path: str) -> tuple[str, ...]:
    """Say what cannot be asked for here, since a program for it is not installed."""
    return tuple(
        f"{name} is not installed: {without}; install the package {name}"
        for name, without in _OPTIONAL.items()
        if shutil.which(name, path=search_path) is None
    )


def _protections() -> dict[str, str]:
    hierarchies = detect()
    layout = hierarchies.layout if hierarchies else "none"
    limits = hierarchies.limits if hierarchies else {}
    version = "v2" if layout == "v2" else "v1"
    enforced = {
        name: f"enforced by cgroup {version}" if controller in limits else "not enforced"
        for name, controller in (
            ("memory limit", "memory"),
            ("cpu limit", "cpu"),
            ("process limit", "pids"),
        )
    }
    return {
        "user namespace": "one range of sub-ids for all workspaces, none of them yours"
        if IDS.is_rootless
        else "a private range of 65536 ids per workspace",
        "between workspaces": "namespaces alone"
        if IDS.is_rootless
        else "namespaces and private id ranges",
        "capabilities": "none, in all five sets",
        "new privileges": "forbidden",
        "system calls": "allowlist, three stacked filters",
        "root file system": "read-only",
        "network": "empty namespace",
        "cgroups": layout,
        **enforced,
        **disk_protections(),
        "device access": "cgroup v1 device list"
        if "devices" in limits and layout != "v2"
        else "no device nodes (user namespace, nodev)",
    }


async def _version(path: str) -> str:
    finished = await run_async(
        [path, "--version"], variables={"PATH": SEARCH_PATH}, timeout_seconds=10
    )
    words = finished.stdout.decode(errors="replace").split("\n")[0].split()
    return words[-1] if words else "of unknown version"
