"""Image ``host``: what of this machine a sandbox is shown, and nothing besides.

The programs (``/usr``) are bound read-only; of ``/etc`` only the files named here appear, and only
when everybody on this machine may read them. Accounts, host names and resolver are written by us,
so a sandbox learns neither the machine's users nor its network. No home, no ``/run``, no ``/var``,
no registry settings (they hold passwords) and nothing of ``/opt`` is shown; toolchains that live
elsewhere are named one by one by `toolchains`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forkyard.model.workspace import USER_HOME, USER_ID, USER_NAME, NetworkPolicy

HOST_NAME = "workspace"

SLIRP_NAME_SERVER = "10.0.2.3"
"""Where slirp4netns answers DNS inside a sandbox with network `open`."""

EMPTY_DIRECTORIES = (
    "/dev",
    "/etc",
    "/home",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/srv",
    "/sys",
    "/tmp",  # noqa: S108 - a name inside the sandbox, where it is a file system of its own
    "/var",
    "/var/tmp",  # noqa: S108 - as above
    "/workspace",
)
"""The skeleton every host image has, some of it mount points of the runtime. A `bind` entry needs
its mount point made as well, a folder or file like its source."""

GENERATED_MOUNTS = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
"""Of what we write, what an image's own root file system is given as well: as single files."""

MERGED_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr on current systems, folders of their own on older ones."""

ETC_DIRECTORIES = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "fonts",
    "java",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "python3",
    "ssl/certs",
    "terminfo",
)
ETC_DIRECTORY_PATTERNS = ("java-*-openjdk", "python3.*")

ETC_FILES = (
    "bash.bashrc",
    "debian_version",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "networks",
    "os-release",
    "protocols",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/openssl.cnf",
    "timezone",
)

LARGEST_FILE_BYTES = 8 * 1024**2
"""An /etc file above this is not what its name says; it is left out."""

_PACKAGE_STATES = (
    ("dpkg", "var/lib/dpkg/status"),
    ("rpm", "usr/lib/sysimage/rpm/rpmdb.sqlite"),
    ("rpm", "var/lib/rpm/rpmdb.sqlite"),
    ("rpm", "var/lib/rpm/Packages"),
    ("apk", "lib/apk/db/installed"),
)

Kind = Literal["bind", "symlink", "file", "directory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """One thing in the root file system of a sandbox with image `host`."""

    kind: Kind
    """`bind`: source shown read-only; `symlink`: source is the link's text; `file`: content."""
    target: str
    """Absolute path inside the sandbox."""
    source: str | None = None
    content: bytes | None = None


def host_root(
    *,
    network: NetworkPolicy = NetworkPolicy.NONE,
    hosts: Mapping[str, str] | None = None,
    host: str = "/",
) -> tuple[HostEntry, ...]:
    """List the root file system of image `host`, parents before children.

    Args:
        network: Decides what the resolver file says.
        hosts: Names that resolve inside, with their addresses.
        host: Root of the machine that is shown; another one in tests.

    Returns:
        Directories, then binds, links and files; the same list as long as the machine's packages
        and settings stay the same.
    """
    root = Path(host)
    entries = [HostEntry(kind="directory", target=path) for path in EMPTY_DIRECTORIES]
    entries.append(HostEntry(kind="bind", target="/usr", source=str(root / "usr")))
    for name in MERGED_DIRECTORIES:
        entry = _merged(root, name)
        if entry is not None:
            entries.append(entry)
    entries += _etc_directories(root)
    for name in ETC_FILES:
        entry = _etc_file(root, name)
        if entry is not None:
            entries.append(entry)
    entries += _generated(network, hosts or {})
    return tuple(_with_parents(entries))


def host_packages(*, host: str = "/") -> str | None:
    """Give a digest of the machine's installed packages, or None where no package state is known.

    The sandbox runs the machine's own programs, so a snapshot says with which state it was built.
    """
    for manager, name in _PACKAGE_STATES:
        try:
            with (Path(host) / name).open("rb") as file:
                return f"{manager}:sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError:
            continue
    return None


def _merged(root: Path, name: str) -> HostEntry | None:
    path = root / name
    if path.is_symlink():
        return HostEntry(kind="symlink", target=f"/{name}", source=str(path.readlink()))
    if path.is_dir():
        return HostEntry(kind="bind", target=f"/{name}", source=str(path))
    return None


def _etc_directories(root: Path) -> list[HostEntry]:
    etc = root / "etc"
    names = list(ETC_DIRECTORIES)
    for pattern in ETC_DIRECTORY_PATTERNS:
        names += sorted(str(path.relative_to(etc)) for path in etc.glob(pattern))
    entries = []
    for name in names:
        path = etc / name
        if path.is_symlink():
            entry = _link(root, path, f"/etc/{name}")
            entries += [entry] if entry else []
        elif path.is_dir() and path.stat().st_mode & stat.S_IROTH:
            entries.append(HostEntry(kind="bind", target=f"/etc/{name}", source=str(path)))
    return entries


def _etc_file(root: Path, name: str) -> HostEntry | None:
    path, target = root / "etc" / name, f"/etc/{name}"
    try:
        if path.is_symlink():
            link = _link(root, path, target)
            if link is not None:
                return link
        facts = path.stat()
        if (
            not stat.S_ISREG(facts.st_mode)
            or not facts.st_mode & stat.S_IROTH
            or facts.st_size > LARGEST_FILE_BYTES
        ):
            return None
        return HostEntry(kind="file", target=target, content=path.read_bytes())
    except OSError:
        return None


def _link(root: Path, path: Path, target: str) -> HostEntry | None:
    """Keep a link as it is where its end is shown as well; otherwise its content is taken."""
    text = str(path.readlink())
    end = os.path.normpath(os.path.join(os.path.dirname(target), text))  # noqa: PTH118, PTH120 - text
    if end.startswith("/usr/") and (root / end.lstrip("/")).exists():
        return HostEntry(kind="symlink", target=target, source=text)
    return None


def _generated(network: NetworkPolicy, hosts: Mapping[str, str]) -> list[HostEntry]:
    resolver = (
        f"nameserver {SLIRP_NAME_SERVER}\n" if network is NetworkPolicy.OPEN else "# no network\n"
    )
    texts = {
        "passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"{USER_NAME}:x:{USER_ID}:{USER_ID}:{USER_NAME}:{USER_HOME}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group": f"root:x:0:\n{USER_NAME}:x:{USER_ID}:\nnogroup:x:65534:\n",
        "hostname": f"{HOST_NAME}\n",
        "hosts": (
            f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost {HOST_NAME}\n"
            + "".join(f"{address} {name}\n" for name, address in hosts.items())
        ),
        "resolv.conf": resolver,
        "nsswitch.conf": (
            "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
            "protocols: files\nservices: files\nrpc: files\n"
        ),
        "profile": 'PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"\nexport PATH\n',
    }
    return [
        HostEntry(kind="file", target=f"/etc/{name}", content=text.encode())
        for name, text in texts.items()
    ]


def _with_parents(entries: list[HostEntry]) -> list[HostEntry]:
    """Name the folders that nested entries need, each before what lies in it."""
    known = {"/"}
    result = []
    for entry in entries:
        for parent in reversed(Path(entry.target).parents):
            if str(parent) not in known:
                result.append(HostEntry(kind="directory", target=str(parent)))
                known.add(str(parent))
        if entry.kind == "directory" and entry.target in known:
            continue
        known.add(entry.target)
        result.append(entry)
    return result
