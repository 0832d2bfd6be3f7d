"""Images that tests make themselves: tar layers entry by entry, and folders in OCI layout."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
APPLETS = (
    *("cat", "chmod", "chown", "chroot", "cp", "cut", "date", "dd", "echo", "env", "false"),
    *("find", "grep", "head", "id", "ln", "ls", "mkdir", "mount", "mv", "ps", "pwd", "readlink"),
    *("rm", "rmdir", "sed", "sh", "sleep", "sort", "stat", "tail", "test", "touch", "tr", "true"),
    *("uname", "wc", "which", "whoami", "xargs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a layer."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    link: str = ""
    pax: Mapping[str, str] = field(default_factory=dict)
    device: tuple[int, int] = (0, 0)


def folder(name: str, mode: int = 0o755, uid: int = 0) -> Entry:
    """Give a folder's entry."""
    return Entry(name=name, kind=tarfile.DIRTYPE, mode=mode, uid=uid, gid=uid)


def link(name: str, target: str) -> Entry:
    """Give a symbolic link's entry."""
    return Entry(name=name, kind=tarfile.SYMTYPE, link=target, mode=0o777)


def layer(*entries: Entry) -> bytes:
    """Write a tar stream."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.mode, info.linkname = entry.kind, entry.mode, entry.link
            info.uid, info.gid, info.mtime = entry.uid, entry.gid, 1_700_000_000
            info.devmajor, info.devminor = entry.device
            info.pax_headers = dict(entry.pax)
            info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content))
    return out.getvalue()


def tiny_root(*more: Entry) -> bytes:
    """Give a root file system of one static program under many names."""
    found = shutil.which("busybox")
    assert found is not None, "busybox is not installed"
    return layer(
        *(folder(name) for name in ("bin", "etc", "root", "usr", "usr/bin", "usr/local", "var")),
        folder("tmp", 0o1777),
        Entry(name="bin/busybox", content=Path(found).read_bytes(), mode=0o755),
        *(link(f"bin/{name}", "busybox") for name in APPLETS),
        Entry(name="etc/passwd", content=b"root:x:0:0:root:/root:/bin/sh\n"),
        Entry(name="etc/group", content=b"root:x:0:\n"),
        *more,
    )


def digest(content: bytes) -> str:
    """Give a content's digest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(slots=True)
class LayoutFolder:
    """A folder in OCI layout that is being written."""

    path: Path

    def blob(self, content: bytes) -> str:
        """Add a blob; give its digest."""
        name = digest(content)
        place = self.path / "blobs" / "sha256" / name.removeprefix("sha256:")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return name

    def document(self, value: object, kind: str) -> dict[str, object]:
        """Add a JSON document; give its descriptor."""
        content = json.dumps(value).encode()
        return {"mediaType": kind, "digest": self.blob(content), "size": len(content)}

    def layer(self, tar: bytes, compression: str = "gzip") -> dict[str, object]:
        """Add a layer; give its descriptor."""
        packed, kind = tar, LAYER
        if compression == "gzip":
            packed, kind = gzip.compress(tar, mtime=0), f"{LAYER}+gzip"
        elif compression == "zstd":
            done = subprocess.run(["zstd", "-qc"], input=tar, check=True, capture_output=True)
            packed, kind = done.stdout, f"{LAYER}+zstd"
        return {"mediaType": kind, "digest": self.blob(packed), "size": len(packed)}


def write_layout(
    path: Path,
    layers: Sequence[bytes],
    *,
    variables: Mapping[str, str] | None = None,
    compression: str = "gzip",
    config: Mapping[str, object] | None = None,
    descriptors: Sequence[dict[str, object]] | None = None,
) -> str:
    """Write an image as a folder in OCI layout.

    Args:
        path: Of the folder.
        layers: Tar streams, lowest first.
        variables: Of its configuration.
        compression: Of the layers.
        config: Instead of what the configuration would say.
        descriptors: Instead of the layers' own.

    Returns:
        Its manifest's digest.
    """
    made = LayoutFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    told: dict[str, object] = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {"Env": [f"{name}={value}" for name, value in (variables or {}).items()]},
        "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]},
        **(config or {}),
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": made.document(told, CONFIG),
        "layers": list(descriptors or [made.layer(one, compression) for one in layers]),
    }
    listed = made.document(manifest, MANIFEST)
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(listed["digest"])
