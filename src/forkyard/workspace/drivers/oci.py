"""The sandbox's configuration: what the container is, and what it is denied.

The document goes to the shim, which mounts, limits and starts; nothing here touches the system.
Its digest (`configuration_digest`) names the protections that a benchmark or manifest was made
under.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from forkyard.config import Layout
from forkyard.model.execution import ExecSpec
from forkyard.model.workspace import USER_HOME, USER_ID, WORKSPACE_ROOT, NetworkPolicy
from forkyard.shim.id_maps import Extent
from forkyard.shim.ids import IDS
from forkyard.shim.listeners import EGRESS, EGRESS_PLACE, address_of
from forkyard.shim.stage import FIRST_PROCESS, STAGE
from forkyard.workspace.drivers.first_process import PLACE, first_process
from forkyard.workspace.drivers.root_tree import ensure_root, is_copied
from forkyard.workspace.drivers.seccomp import RootKind, filters
from forkyard.workspace.image_host import GENERATED_MOUNTS, HOST_NAME, HostEntry, host_root
from forkyard.workspace.interface import SandboxSpec
from forkyard.workspace.limits import processors_of

Document = dict[str, Any]

MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
NAMESPACES = ("pid", "ipc", "uts", "mount", "network", "user", "cgroup")
CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")

INIT = ("/bin/sh", "-c", "while :; do sleep 2147483647 & wait $!; done")
"""The container's first process. It reaps whatever is orphaned, and as the container's root
without capabilities it is out of the reach of the user that commands run as."""

ROOT_CAPABILITIES = sum(
    1 << number
    for number in (
        0,  # CHOWN
        1,  # DAC_OVERRIDE
        3,  # FOWNER
        4,  # FSETID
        5,  # KILL
        6,  # SETGID
        7,  # SETUID
        18,  # SYS_CHROOT: package managers run scripts by chroot(2), also into `/`
        31,  # SETFCAP
    )
)
"""What a command as root of a workspace with an image has, in the sandbox's own user namespace:
what installing packages takes. Neither of a file nor of a program can it get more."""

PROCESSORS = "/sys/devices/system/cpu"
"""Where the C library counts processors."""

BUILDER_CAPABILITIES = ROOT_CAPABILITIES | sum(
    1 << number
    for number in (
        8,  # SETPCAP: the builder takes capabilities from what it runs
        10,  # NET_BIND_SERVICE, 13 NET_RAW, 27 MKNOD, 29 AUDIT_WRITE: it asks for them for that
        13,
        21,  # SYS_ADMIN: it mounts and leaves namespaces
        27,
        29,
    )
)
"""What root of a sandbox made to build an image has, in that sandbox's own user namespace."""

TMP_BYTES = 1024**3
"""Most that /tmp holds; it also counts against the memory limit."""

_OOM_SCORE = {} if IDS.is_rootless else {"oomScoreAdj": 0}
"""Commands get 500 (shim/becoming.py): they are the memory limit's victims, not the first process.
An ordinary user may raise his own score, but not lower it."""

RUNTIME_OPTIONS = {"crun": ("--cgroup-manager=disabled",), "runc": ()}
_FRESH = ("/tmp/", "/var/tmp/")  # noqa: S108 - paths inside
_RESERVED = ("/bin", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/usr", WORKSPACE_ROOT)


def sandbox_document(spec: SandboxSpec, layout: Layout, runtime: str) -> Document:
    """Build what the shim is given for one sandbox.

    Args:
        spec: What to run.
        layout: Where layers and the workspace's disk are.
        runtime: Absolute path of crun or runc.
    """
    is_image = spec.environment.image is not None
    processors = processors_of(spec.limits, spec.slot)
    entries = () if is_image else _host_root(spec.network, spec.providers)
    binds = [entry for entry in entries if entry.kind == "bind" and not is_copied(entry)]
    return {
        "workspace": spec.workspace,
        "epoch": spec.epoch,
        "runtime": runtime,
        "runtime_options": list(RUNTIME_OPTIONS[Path(runtime).name]),
        "layers_directory": str(layout.layers),
        # Without layers it is made ahead, and furnished once its files are known.
        "layers": list(spec.layers) or None,
        "disk": str(layout.disk(spec.workspace)),
        "sandbox": str(layout.sandbox(spec.workspace)),
        "execs": str(layout.workspace(spec.workspace) / "execs"),
        "id_map": IDS.mount_map(spec.slot),
        "user": IDS.sandbox_id(spec.slot, USER_ID),
        # In an image's workspace they are in its base layer, and paths may be its root's links.
        "folders": [] if is_image else [WORKSPACE_ROOT, USER_HOME],
        "is_image": is_image,
        "first_process": first_process().hex() if is_image else None,
        "capabilities": _root_capabilities(spec),
        "writable": _writable(spec),
        "limits": {
            "memory_bytes": spec.limits.memory_bytes,
            "processes": spec.limits.processes,
            "cpu_millicores": spec.limits.cpu_millicores,
            "disk_bytes": spec.limits.disk_bytes,
            "disk_inodes": spec.limits.disk_inodes,
            "disk_is_hard": spec.limits.disk_is_hard and spec.limits.disk_bytes is not None,
        },
        "processors": processors,
        "network": spec.network.value,
        "gateway": _gateway(spec, layout),
        "egress": _egress(spec, layout),
        "filters": [program.hex() for program in filters(spawner=True, root=_root_kind(spec))],
        "root": _image_root(layout.roots, spec.network, spec.providers)
        if is_image
        else _root(layout.roots, spec.network, spec.providers, _mount_points(spec)),
        "staged": [mount.source for mount in spec.environment.mounts] + _locked(spec, binds),
        "config": _container(spec, IDS.sandbox(spec.slot), binds),
    }


def _locked(spec: SandboxSpec, binds: list[HostEntry]) -> list[str]:
    """List what of the host must be read-only before the container is there.

    Who may mount inside could make writable again what was made read-only inside.
    """
    return [entry.source or "" for entry in binds] if spec.environment.is_builder else []


def _bind_sources(spec: SandboxSpec, binds: list[HostEntry]) -> list[str]:
    first = len(spec.environment.mounts)
    if spec.environment.is_builder:
        return [f"{STAGE}/staged/{first + index}" for index in range(len(binds))]
    return [entry.source or "" for entry in binds]


def _root_kind(spec: SandboxSpec) -> RootKind:
    if spec.environment.is_builder:
        return "builder"
    return "none" if spec.environment.image is None else "image"


def _root_capabilities(spec: SandboxSpec) -> int:
    """Give what commands as root of the workspace have; with image `host` there is no such root."""
    return {"none": 0, "image": ROOT_CAPABILITIES, "builder": BUILDER_CAPABILITIES}[
        _root_kind(spec)
    ]


def _gateway(spec: SandboxSpec, layout: Layout) -> Document | None:
    if spec.network not in (NetworkPolicy.GATEWAY, NetworkPolicy.ALLOWLIST) or not spec.providers:
        return None
    return {"socket": str(layout.gateway_socket), "providers": list(spec.providers)}


def _egress(spec: SandboxSpec, layout: Layout) -> Document | None:
    if spec.network is not NetworkPolicy.ALLOWLIST:
        return None
    return {"socket": str(layout.egress_socket), "allow": list(spec.allow)}


@functools.cache
def _host_root(network: NetworkPolicy, providers: tuple[str, ...]) -> tuple[HostEntry, ...]:
    # Read once per server: hundreds of small files of /etc would cost each start milliseconds.
    hosts = {name: address_of(index) for index, name in enumerate(providers)}
    if network is NetworkPolicy.ALLOWLIST:
        hosts[EGRESS] = EGRESS_PLACE[0]
    return host_root(network=network, hosts=hosts)


@functools.cache
def _root(
    roots: Path,
    network: NetworkPolicy,
    providers: tuple[str, ...],
    mount_points: tuple[str, ...],
) -> str:
    return str(ensure_root(roots, _host_root(network, providers), mount_points))


@functools.cache
def _image_root(roots: Path, network: NetworkPolicy, providers: tuple[str, ...]) -> str:
    """Give the folder with the few files of ours that an image's root file system is shown."""
    entries = _host_root(network, providers)
    ours = [one for one in entries if one.target in GENERATED_MOUNTS and one.kind == "file"]
    return str(ensure_root(roots, ours, ()))


def _mount_points(spec: SandboxSpec) -> tuple[str, ...]:
    targets = [
        USER_HOME,
        WORKSPACE_ROOT,
        PROCESSORS,
        *(mount.target for mount in spec.environment.mounts),
    ]
    source = _repository_target(spec)
    if source is not None:
        targets.append(source)
    return tuple(target for target in targets if not _is_covered(target))


def _is_covered(target: str) -> bool:
    """Say whether a place lies in a file system that the runtime makes: then it makes the place."""
    return target.startswith(_FRESH)


def _repository_target(spec: SandboxSpec) -> str | None:
    source = spec.environment.repository_source
    if source is None or any(source == top or source.startswith(f"{top}/") for top in _RESERVED):
        return None
    return source


def _writable(spec: SandboxSpec) -> dict[str, str]:
    """Folders of the workspace and where they appear; the shim opens them, past no link."""
    if spec.environment.image is not None:
        return {}  # all of it is
    places = {WORKSPACE_ROOT: WORKSPACE_ROOT, USER_HOME: USER_HOME}
    target = _repository_target(spec)
    if target is not None:
        places[f"{WORKSPACE_ROOT}/repo"] = target
    return places


def _mount(target: str, kind: str, source: str, *options: str) -> Document:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}


def _container(spec: SandboxSpec, map_rows: tuple[Extent, ...], binds: list[HostEntry]) -> Document:
    tmp_bytes = min(TMP_BYTES, (spec.limits.memory_bytes or 2 * TMP_BYTES) // 2)
    safe = ("nosuid", "nodev")
    mounts = [
        _mount("/proc", "proc", "proc", *safe, "noexec"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "noexec", "mode=755", "size=64k"),
        _mount(
            "/dev/pts",
            "devpts",
            "devpts",
            "nosuid",
            "noexec",
            "newinstance",
            "ptmxmode=0666",
            "mode=0620",
        ),
        _mount("/dev/shm", "tmpfs", "shm", *safe, "noexec", "mode=1777", "size=64m"),  # noqa: S108 - a path inside the sandbox
        _mount("/tmp", "tmpfs", "tmpfs", *safe, "mode=1777", f"size={tmp_bytes}"),  # noqa: S108 - a path inside the sandbox
        _mount("/var/tmp", "tmpfs", "tmpfs", *safe, "mode=1777", f"size={tmp_bytes}"),  # noqa: S108 - a path inside the sandbox
    ]
    mounts += [
        _mount(entry.target, "bind", source, "rbind", "ro", *safe)
        for entry, source in zip(binds, _bind_sources(spec, binds), strict=True)
    ]
    mounts += [
        _mount(mount.target, "bind", f"{STAGE}/staged/{index}", "rbind", "ro", *safe)
        for index, mount in enumerate(spec.environment.mounts)
    ]
    if spec.environment.image is None and processors_of(spec.limits, spec.slot) is not None:
        # An image may lack the place, and is not to be changed.
        mounts.append(
            _mount(PROCESSORS, "bind", f"{STAGE}/processors", "bind", "ro", "noexec", *safe)
        )
    # The workspace's own folders are mounted by the shim, once the container is there; the
    # runtime only has to make the places that lie in a file system of its own.
    mounts += [
        _mount(target, "bind", f"{STAGE}/empty", "bind", "ro", *safe)
        for target in _writable(spec).values()
        if _is_covered(target)
    ]
    image = spec.environment.image
    if image is not None:
        mounts += [
            _mount(target, "bind", f"{STAGE}/root{target}", "bind", "ro", *safe, "noexec")
            for target in GENERATED_MOUNTS
        ]
        mounts.append(_mount(PLACE, "bind", f"{STAGE}/{FIRST_PROCESS}", "bind", "ro", *safe))
    ids = [{"containerID": row.inside, "hostID": row.outside, "size": row.size} for row in map_rows]
    return {
        "ociVersion": "1.0.2",
        "hostname": HOST_NAME,
        "root": {"path": f"{STAGE}/root", "readonly": True}
        if image is None
        else {"path": f"{STAGE}/merged", "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(INIT) if image is None else [PLACE],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
            **_OOM_SCORE,
            "capabilities": {name: [] for name in CAPABILITY_SETS},
            "rlimits": [{"type": "RLIMIT_CORE", "hard": 0, "soft": 0}],
        },
        "mounts": mounts,
        "annotations": {
            "run.oci.seccomp_bpf_data": base64.b64encode(filters(spawner=False)[0]).decode(),
        },
        "linux": {
            "namespaces": [{"type": name} for name in NAMESPACES],
            "uidMappings": ids,
            "gidMappings": ids,
            "rootfsPropagation": "private",
            "maskedPaths": list(MASKED_PATHS),
            "readonlyPaths": list(READ_ONLY_PATHS),
        },
    }


def exec_document(spec: ExecSpec, *, disk_bytes: int | None) -> Document:
    """Build what the shim is given for one exec."""
    return {
        "id": spec.id,
        "argv": list(spec.argv),
        "variables": dict(spec.variables),
        "working_directory": spec.working_directory,
        "timeout_seconds": spec.timeout_seconds,
        "grace_seconds": spec.grace_seconds,
        "output_bytes": spec.output_bytes,
        "keep_background": spec.keep_background,
        "user": 0 if spec.as_root else USER_ID,
        "file_bytes": disk_bytes,
        "has_input": spec.has_input,
        "attended": spec.attended,
        "copy": None if spec.copy is None else list(spec.copy),
        "terminal": None if spec.terminal is None else list(spec.terminal),
    }


def configuration_digest(document: Document) -> str:
    """Digest the parts of a sandbox document that protect, leaving out what names one workspace."""
    config = document["config"]
    protections = {
        "filters": document["filters"],
        "namespaces": config["linux"]["namespaces"],
        "masked": config["linux"]["maskedPaths"],
        "readonly": config["linux"]["readonlyPaths"],
        "process": config["process"],
        "root_readonly": config["root"]["readonly"],
        "options": [[mount["destination"], mount["options"]] for mount in config["mounts"]],
        "limits": document["limits"],
        "network": document["network"],
    }
    return hashlib.sha256(json.dumps(protections, sort_keys=True).encode()).hexdigest()
