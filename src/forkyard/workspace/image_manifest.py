"""Manifests and configurations of OCI images, read as a stranger's text."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from dataclasses import dataclass

DOCUMENT_BYTES = 4 * 1024**2
"""Most that a manifest or configuration may be; registries hold the same line."""
LAYERS_MOST = 127
"""As many as other engines take."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_COMPRESSIONS = {"": "", "tar": "", "tar+gzip": "gzip", "tar+zstd": "zstd", "tar.gzip": "gzip"}


class Unusable(Exception):  # noqa: N818 - reads as the sentence it carries
    """Something of an image cannot be believed or used; the reason alone, for a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One content-addressed file of an image."""

    digest: str
    size_bytes: int
    compression: str = ""
    """`gzip`, `zstd`, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an image is put together from, lowest layer first."""

    digest: str
    config: Blob
    layers: tuple[Blob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What an image says of itself."""

    diff_ids: tuple[str, ...]
    """Digests of the layers' tar streams, lowest first."""
    variables: dict[str, str]


def architecture() -> str:
    """Give this machine's name among images."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def digest_of(content: bytes) -> str:
    """Give the digest of a document."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def is_digest(text: object) -> bool:
    """Say whether it is a digest, fit to be a file's name."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def choose(content: bytes) -> str | None:
    """Give the digest of this machine's manifest where the document is a list of several.

    Raises:
        Unusable: None of them is for this machine, or several are.
    """
    document = _document(content)
    listed = document.get("manifests")
    if document.get("mediaType") not in _INDEXES and not isinstance(listed, list):
        return None
    found: list[str] = []
    others: list[str] = []
    for one in listed if isinstance(listed, list) else ():
        entry = one if isinstance(one, dict) else {}
        of = entry.get("platform")
        if not is_digest(entry.get("digest")):
            raise Unusable("its list of manifests has an entry without a digest")
        if isinstance(of, dict):
            name = f"{of.get('os')}/{of.get('architecture')}"
            if name != f"linux/{architecture()}":
                others.append(name[:40])
                continue
        found.append(str(entry["digest"]))
    if not found:
        named = ", ".join(sorted(set(others))) or "nothing"
        raise Unusable(f"it has {named}, and nothing for linux/{architecture()}")
    # The first that fits is what other engines take as well (variants stand behind it).
    if len(set(found)) > 1 and not others:
        raise Unusable(f"it holds {len(set(found))} images, and which one is meant is not said")
    return found[0]


def read_manifest(content: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        Unusable: It is none that can be used.
    """
    document = _document(content)
    layers = document.get("layers")
    if document.get("schemaVersion") != 2 or not isinstance(layers, list):  # noqa: PLR2004 - the format's version
        raise Unusable("its manifest is of no known kind")
    if len(layers) > LAYERS_MOST:
        raise Unusable(f"it has {len(layers)} layers, {LAYERS_MOST} are the most")
    return Manifest(
        digest=digest_of(content),
        config=_blob(document.get("config")),
        layers=tuple(_layer(one) for one in layers),
    )


def read_configuration(content: bytes, manifest: Manifest) -> Configuration:
    """Read the configuration that a manifest names.

    Raises:
        Unusable: It is another one, or none that can be used here.
    """
    if digest_of(content) != manifest.config.digest:
        raise Unusable(
            f"its configuration is {digest_of(content)}, the manifest says {manifest.config.digest}"
        )
    document = _document(content)
    system, machine = document.get("os"), document.get("architecture")
    if (system, machine) != ("linux", architecture()):
        told = ascii(f"{system}/{machine}"[:40])
        raise Unusable(f"it is for {told}, this machine is linux/{architecture()}")
    root = document.get("rootfs")
    diff_ids = root.get("diff_ids") if isinstance(root, dict) else None
    if not isinstance(diff_ids, list) or not all(map(is_digest, diff_ids)):
        raise Unusable("its configuration does not name its layers")
    if len(diff_ids) != len(manifest.layers):
        raise Unusable(
            f"its configuration names {len(diff_ids)} layers, its manifest {len(manifest.layers)}"
        )
    config = document.get("config")
    listed = config.get("Env") if isinstance(config, dict) else None
    variables = {}
    for line in listed if isinstance(listed, list) else ():
        name, _, value = str(line).partition("=")
        if _VARIABLE.fullmatch(name) and "\0" not in value:
            variables[name] = value
    return Configuration(diff_ids=tuple(diff_ids), variables=variables)


def _document(content: bytes) -> dict[str, object]:
    if len(content) > DOCUMENT_BYTES:
        raise Unusable(f"one of its documents is larger than {DOCUMENT_BYTES} bytes")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unusable("one of its documents is no JSON") from error
    if not isinstance(document, dict):
        raise Unusable("one of its documents is no JSON object")
    return document


def _blob(value: object) -> Blob:
    entry = value if isinstance(value, dict) else {}
    size = entry.get("size")
    if not is_digest(entry.get("digest")) or not isinstance(size, int) or size < 0:
        raise Unusable("its manifest names a blob without a digest or size")
    return Blob(digest=entry["digest"], size_bytes=size)


def _layer(value: object) -> Blob:
    blob = _blob(value)
    kind = str(value.get("mediaType", "")) if isinstance(value, dict) else ""
    if "nondistributable" in kind or "foreign" in kind:
        raise Unusable(f"layer {blob.digest} is kept elsewhere ({kind[:80]!r}), and is not fetched")
    if kind.startswith("application/vnd.docker.image.rootfs.diff."):
        suffix = kind.removeprefix("application/vnd.docker.image.rootfs.diff.")
    elif kind.startswith("application/vnd.oci.image.layer.v1."):
        suffix = kind.removeprefix("application/vnd.oci.image.layer.v1.")
    else:
        suffix = "?"
    compression = _COMPRESSIONS.get(suffix)
    if compression is None:
        raise Unusable(f"layer {blob.digest} is of an unknown kind {kind[:80]!r}")
    return Blob(digest=blob.digest, size_bytes=blob.size_bytes, compression=compression)
