"""The helper process that unpacks one image layer: ``python -m forkyard.workspace.image_unpack``.

The blob is its standard input; its one argument is the job as JSON, its standard output one JSON
object, the report. It shuts itself into the layer's folder, with no capability but those for
giving files their owners and marks, before it reads the first byte. Standard library only.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import io
import json
import os
import resource
import sys
import tarfile
import zlib
from typing import BinaryIO, TypedDict, cast

from forkyard.shim import kernel
from forkyard.shim.ids import IDS
from forkyard.workspace.image_tar import Layer, Refused

MEMORY_BYTES = 1024**3
"""Of addresses. A header that claims to be gigabytes long ends here."""
_READ_BYTES = 1024**2
_INFLATE_BYTES = 1024**2
_CAPABILITIES = (0, 1, 3, 4, 21)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID; SYS_ADMIN: overlayfs's own marks are trusted attributes."""


class Job(TypedDict):
    """What is asked."""

    target: str
    opaque: str
    is_compressed: bool
    """By gzip; else it is the tar stream itself."""
    digest: str | None
    """Of the blob as it is, or None where somebody else looked after that."""
    diff_id: str
    """Of the tar stream, as the image's configuration names it."""
    entries_most: int
    bytes_most: int


class Blob(io.RawIOBase):
    """The blob as a tar stream, with both digests taken on the way and a length it cannot pass."""

    def __init__(self, source: BinaryIO, *, is_compressed: bool, bytes_most: int) -> None:
        """Read nothing yet."""
        super().__init__()
        self._source = source
        self._inflate = zlib.decompressobj(31) if is_compressed else None
        self._left = bytes_most
        self._pending = b""
        self.digest = hashlib.sha256()
        self.diff = hashlib.sha256()

    def readable(self) -> bool:
        """Be read from only."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Give some of the tar stream; 0 at its end."""
        chunk = self._next(min(len(buffer), _INFLATE_BYTES))
        buffer[: len(chunk)] = chunk
        self.diff.update(chunk)
        self._left -= len(chunk)
        if self._left < 0:
            raise Refused("it unpacks to more than may be unpacked")
        return len(chunk)

    def _next(self, most: int) -> bytes:
        while True:
            if self._inflate is None:
                return self._read(most)
            chunk = self._inflate.decompress(self._pending, most)
            self._pending = self._inflate.unconsumed_tail
            if chunk:
                return chunk
            if self._inflate.eof:
                # Streams may follow each other; zeros behind the last one are padding.
                rest = self._inflate.unused_data or self._read(_READ_BYTES)
                if not rest.strip(b"\0"):
                    while self._read(_READ_BYTES):
                        pass
                    return b""
                self._inflate, self._pending = zlib.decompressobj(31), rest
                continue
            if not self._pending:
                self._pending = self._read(_READ_BYTES)
                if not self._pending:
                    raise Refused("it ends early")

    def _read(self, most: int) -> bytes:
        chunk = self._source.read(most)
        self.digest.update(chunk)
        return chunk


def unpack(job: Job, source: BinaryIO, root: int) -> Layer:
    """Lay a blob out below an open folder.

    Raises:
        Refused: It is not the layer that it is said to be, or cannot be taken.
    """
    # Headers come on top of files: half a kilobyte an entry, rounded up, and long names.
    stream_most = job["bytes_most"] + 4096 * job["entries_most"]
    blob = Blob(source, is_compressed=job["is_compressed"], bytes_most=stream_most)
    layer = Layer(
        root=root,
        storage_id=IDS.storage_id,
        opaque=job["opaque"],
        entries_most=job["entries_most"],
        bytes_most=job["bytes_most"],
    )
    stream = io.BufferedReader(blob, _READ_BYTES)
    try:
        layer.take(stream)
        while stream.read(_READ_BYTES):
            pass
    except tarfile.TarError as error:
        raise Refused(f"it is no tar archive: {error}") from error
    except zlib.error as error:
        raise Refused(f"it cannot be decompressed: {error}") from error
    for name, expected, found in (
        ("digest", job["digest"], blob.digest),
        ("diff-id", job["diff_id"], blob.diff),
    ):
        if expected is not None and expected != f"sha256:{found.hexdigest()}":
            raise Refused(f"its {name} is sha256:{found.hexdigest()}, the image says {expected}")
    return layer


def shut_in(target: str) -> int:
    """Make a folder all that there is, give up nearly everything; give the folder's descriptor."""
    for name in ("ascii", "utf-8", "latin-1", "idna"):
        codecs.lookup(name)  # loaded from files that are out of sight in a moment
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0)
    os.chroot(target)
    os.chdir("/")
    with contextlib.suppress(OSError):
        kernel.unshare(kernel.CLONE_NEWNET)
    kernel.drop_bounding_capabilities()
    kernel.keep_capabilities(sum(1 << number for number in _CAPABILITIES))
    kernel.forbid_new_privileges()
    return os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def main() -> None:
    """Do one job and report."""
    job = cast("Job", json.loads(sys.argv[1]))
    report: dict[str, object] = {"error": None, "is_ours": False}
    try:
        root = shut_in(job["target"])
        layer = unpack(job, sys.stdin.buffer, root)
        report |= {
            "entries": layer.entries,
            "size_bytes": layer.size_bytes,
            "notes": dict(layer.notes),
        }
    except Refused as error:
        report["error"] = str(error)
    except MemoryError:
        report["error"] = "it needs more memory than any real one"
    except OSError as error:
        report |= {"error": error.strerror or str(error), "is_ours": True}
    except (ValueError, OverflowError, EOFError) as error:
        report["error"] = f"it is damaged: {type(error).__name__}"
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
