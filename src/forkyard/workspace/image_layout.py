"""Folders in OCI layout, read by descriptor: a sandbox or a stranger may have written them."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from forkyard.shim import kernel
from forkyard.workspace.image_manifest import (
    DOCUMENT_BYTES,
    Configuration,
    Manifest,
    Unusable,
    choose,
    digest_of,
    read_configuration,
    read_manifest,
)

_NESTED_MOST = 4


@dataclass(slots=True)
class OciLayout:
    """One layout folder held open; `close` it."""

    descriptor: int

    @classmethod
    def open(cls, folder: Path) -> OciLayout:
        """Open a folder that whoever asks may name as they like.

        Raises:
            OSError: There is none.
        """
        return cls(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    @classmethod
    def open_beneath(cls, root: Path, inside: str) -> OciLayout:
        """Open a folder below one that a sandbox wrote, past no link.

        Raises:
            OSError: There is none, or a link stands in the way.
        """
        above = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY
            return cls(kernel.open_beneath(above, os.fsencode(inside), flags))
        finally:
            os.close(above)

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self.descriptor)

    def image(self) -> tuple[Manifest, Configuration]:
        """Read the one image for this machine.

        Raises:
            Unusable: There is none, there are several, or it is not what its digests say.
        """
        content = self._read("index.json")
        for _ in range(_NESTED_MOST):
            digest = choose(content)
            if digest is None:
                break
            content = self._document(digest)
        manifest = read_manifest(content)
        return manifest, read_configuration(self._document(manifest.config.digest), manifest)

    def blob(self, digest: str) -> int:
        """Open a blob; its content is not looked at.

        Raises:
            Unusable: It is not there, or is no plain file.
        """
        return self._open(f"blobs/{digest.replace(':', '/', 1)}", digest)

    def _document(self, digest: str) -> bytes:
        content = self._content(self.blob(digest), digest)
        if digest_of(content) != digest:
            raise Unusable(f"its blob {digest} is {digest_of(content)} in truth")
        return content

    def _read(self, name: str) -> bytes:
        return self._content(self._open(name, name), name)

    def _open(self, path: str, told: str) -> int:
        try:
            descriptor = kernel.open_beneath(
                self.descriptor, path.encode(), os.O_RDONLY | os.O_NONBLOCK
            )
        except OSError as error:
            raise Unusable(f"its layout lacks {told}: {error.strerror or error}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Unusable(f"{told} of its layout is no plain file")
        return descriptor

    @staticmethod
    def _content(descriptor: int, told: str) -> bytes:
        with open(descriptor, "rb") as file:
            content = file.read(DOCUMENT_BYTES + 1)
        if len(content) > DOCUMENT_BYTES:
            raise Unusable(f"{told} of its layout is larger than {DOCUMENT_BYTES} bytes")
        return content
