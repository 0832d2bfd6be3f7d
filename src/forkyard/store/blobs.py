"""Content-addressed files: the name is the sha256, so what is there is complete and right."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from forkyard.base.durable import make_directory, sync_directory
from forkyard.errors import NotFoundError, StoreError

_CHUNK = 1024 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """Blobs below one directory, as ``<2>/<sha256>``. Putting the same content twice is free."""

    def __init__(self, root: Path) -> None:
        """Keep the directory; it is created at the first put."""
        self._root = root

    def path(self, sha256: str) -> Path:
        """Give where a blob of that digest lies, whether it is there or not.

        Raises:
            NotFoundError: The text is no digest, so nothing can have that name.
        """
        if _DIGEST.fullmatch(sha256) is None:
            msg = f"cannot find blob {sha256!r}: it is not a sha256"
            raise NotFoundError(msg)
        return self._root / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Say whether a blob is there."""
        return self.path(sha256).is_file()

    def put(self, content: bytes) -> str:
        """Keep bytes; give their digest.

        Durability:
            Content and name are on disk when this returns.
        """
        digest = hashlib.sha256(content).hexdigest()
        try:
            # In use again: what removes old ones that nobody needs looks at this.
            os.utime(self.path(digest))
        except FileNotFoundError:
            descriptor, temporary = self._temporary()
            with os.fdopen(descriptor, "wb") as file:
                self._finish(file, temporary, content=content, digest=digest)
        return digest

    def put_stream(self, source: BinaryIO) -> tuple[str, int]:
        """Keep what a stream yields; give digest and size. Durability as for `put`."""
        hasher = hashlib.sha256()
        size = 0
        descriptor, temporary = self._temporary()
        try:
            with os.fdopen(descriptor, "wb") as file:
                while chunk := source.read(_CHUNK):
                    hasher.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
                self._finish(file, temporary, content=b"", digest=hasher.hexdigest())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return hasher.hexdigest(), size

    def put_file(self, path: Path) -> tuple[str, int]:
        """Keep a (trusted) file's content; give digest and size. Durability as for `put`."""
        with path.open("rb") as source:
            return self.put_stream(source)

    def open(self, sha256: str) -> BinaryIO:
        """Open a blob for reading.

        Raises:
            NotFoundError: It is not there.
        """
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError as error:
            msg = f"cannot find blob {sha256}"
            raise NotFoundError(msg) from error

    def read(self, sha256: str) -> bytes:
        """Give a blob's content; raises as `open`."""
        with self.open(sha256) as file:
            return file.read()

    def old(self, before: float) -> Iterator[Path]:
        """List the blobs that were put before a moment, and not again since."""
        for path in sorted(self._root.glob("[0-9a-f][0-9a-f]/*")):
            with contextlib.suppress(FileNotFoundError):
                if _DIGEST.fullmatch(path.name) and path.lstat().st_mtime < before:
                    yield path

    def _temporary(self) -> tuple[int, Path]:
        incoming = self._root / "incoming"
        make_directory(incoming)
        temporary = incoming / uuid.uuid4().hex
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(temporary, flags, 0o600), temporary

    def _finish(self, file: BinaryIO, temporary: Path, *, content: bytes, digest: str) -> None:
        target = self.path(digest)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            make_directory(target.parent)
            temporary.rename(target)
            sync_directory(target.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            msg = f"cannot keep blob {digest}: {error.strerror or error}"
            raise StoreError(
                msg, hint="Free space on the file system of the state directory."
            ) from error
