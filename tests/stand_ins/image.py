"""The image that carries the seed's tag: Debian 12, the Go that Debian has, the test authority.

It is laid out as the real one is: Go in /usr/local/go and found by the image's own PATH only,
modules in /go which everybody may write, no user but root, an index of one platform.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from stand_ins.hosts import DEBIAN_MIRROR
from stand_ins.packages import SUITE

REPOSITORY = "library/golang"
TAG = "1.26-bookworm"
GO = "golang-1.19-go"
"""Whatever Go Debian 12 has."""
INCLUDED = (GO, "ca-certificates", "curl", "git")
VARIABLES = {
    "PATH": "/go/bin:/usr/local/go/bin"
    ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "GOPATH": "/go",
    "GOTOOLCHAIN": "local",
}
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/log")
_PATIENCE_SECONDS = 30.0


def make_root(root: Path, authority: Path) -> None:
    """Make the image's files, from the mirror that this machine itself installs from.

    Args:
        root: A folder that does not exist yet; its parent allows devices and set-id programs.
        authority: Certificate that the image is to trust.
    """
    subprocess.run(
        [
            *("debootstrap", "--variant=minbase", f"--keyring={_KEYRING}"),
            f"--include={','.join(INCLUDED)}",
            *(SUITE, str(root), mirror_of_this_machine()),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"},
    )
    (root / "usr/local/go").symlink_to("../lib/go-1.19")
    (root / "usr/local/share/ca-certificates").mkdir(exist_ok=True)
    shutil.copyfile(authority, root / "usr/local/share/ca-certificates/test-authority.crt")
    subprocess.run(
        ["chroot", str(root), "/usr/sbin/update-ca-certificates"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    for name in ("", "src", "bin"):
        folder = root / "go" / name
        folder.mkdir()
        folder.chmod(0o1777)
    sources = root / "etc/apt/sources.list"
    sources.write_text(f"deb [trusted=yes] http://{DEBIAN_MIRROR}/debian {SUITE} main\n")
    for name in _UNUSED:
        _empty(root / name)
    for name in ("var/cache/apt/archives", "var/lib/apt/lists"):
        _empty(root / name)
        (root / name / "partial").mkdir()
        (root / name / "partial").chmod(0o700)
    # What debootstrap lends a root file system of this machine's, no image carries.
    for name in ("etc/resolv.conf", "etc/hostname"):
        (root / name).unlink(missing_ok=True)


def mirror_of_this_machine() -> str:
    """Give the mirror of Debian that this machine's own package sources name."""
    folder = Path("/etc/apt")
    files = (*folder.glob("sources.list"), *sorted(folder.glob("sources.list.d/*")))
    for text in (path.read_text(errors="replace") for path in files):
        found = re.search(r"(?m)^URIs:\s*(\S+)", text) or re.search(
            r"(?m)^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+" + SUITE, text
        )
        if found and SUITE in text:
            return found[1]
    raise AssertionError(f"this machine's package sources name no mirror for {SUITE}")


def _empty(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


def make_layout(root: Path, folder: Path) -> None:
    """Pack a root file system as an image in OCI layout: an index of one platform and one layer."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    plain, packed = folder / "layer.tar", folder / "layer.tar.gz"
    with tarfile.open(plain, "w", format=tarfile.PAX_FORMAT) as tar:
        for entry in sorted(root.iterdir()):
            tar.add(entry, entry.name)
    with plain.open("rb") as file:
        unpacked = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        with gzip.GzipFile(packed, "wb", compresslevel=1, mtime=0) as stream:
            shutil.copyfileobj(file, stream, 1024**2)
    plain.unlink()
    layer = _keep(packed, blobs, _LAYER)
    config = _write(
        blobs,
        _CONFIG,
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Env": [f"{name}={value}" for name, value in VARIABLES.items()],
                "Cmd": ["bash"],
                "WorkingDir": "/go",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{unpacked}"]},
        },
    )
    manifest = _write(
        blobs,
        _MANIFEST,
        {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [layer]},
    )
    manifest["platform"] = {"architecture": "amd64", "os": "linux"}
    index = _write(
        blobs, _INDEX, {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [manifest]}
    )
    index["annotations"] = {"org.opencontainers.image.ref.name": TAG}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [index]}))


def _write(blobs: Path, kind: str, value: dict[str, Any]) -> dict[str, Any]:
    content = json.dumps(value).encode()
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _keep(path: Path, blobs: Path, kind: str) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = path.stat().st_size
    path.rename(blobs / digest)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def registry_settings(storage: Path, address: str, certificate: tuple[Path, Path] | None) -> str:
    """Write the settings of a docker-registry over a folder."""
    tls = ""
    if certificate is not None:
        tls = f", tls: {{certificate: {certificate[0]}, key: {certificate[1]}}}"
    return (
        "version: 0.1\nlog: {level: warn}\n"
        f"storage: {{filesystem: {{rootdirectory: {storage}}}, delete: {{enabled: false}}}}\n"
        f"http: {{addr: '{address}', secret: none{tls}}}\n"
    )


def fill_registry(layout: Path, storage: Path, scratch: Path) -> None:
    """Push an image in OCI layout to a registry of this folder, that runs meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = scratch / "registry.yml"
    settings.write_text(registry_settings(storage, f"127.0.0.1:{port}", None))
    registry = subprocess.Popen(
        ["docker-registry", "serve", str(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for("127.0.0.1", port)
        subprocess.run(
            [
                *("skopeo", "copy", "--quiet", "--all", "--dest-tls-verify=false"),
                *("--insecure-policy", f"oci:{layout}:{TAG}"),
                f"docker://127.0.0.1:{port}/{REPOSITORY}:{TAG}",
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    finally:
        registry.terminate()
        registry.wait(_PATIENCE_SECONDS)


def wait_for(host: str, port: int) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens at {host}:{port}"
            time.sleep(0.05)
        else:
            return
