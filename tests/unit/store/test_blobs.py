"""Blobs: named by content, whole or absent."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from forkyard.errors import NotFoundError
from forkyard.store.blobs import Blobs


def test_content_comes_back_when_put(tmp_path: Path) -> None:
    """Bytes, streams and files of the same content are one blob, and nothing else is left."""
    blobs = Blobs(tmp_path / "blobs")
    content = b"x" * 3_000_000
    digest = blobs.put(content)
    assert digest == hashlib.sha256(content).hexdigest()
    assert blobs.put(content) == digest
    assert blobs.put_stream(io.BytesIO(content)) == (digest, len(content))
    (tmp_path / "file").write_bytes(content)
    assert blobs.put_file(tmp_path / "file") == (digest, len(content))
    assert blobs.has(digest)
    assert blobs.read(digest) == content
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []


def test_nothing_is_left_when_stream_breaks(tmp_path: Path) -> None:
    """A half-read stream leaves no blob and no temporary file."""

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 0:
                raise OSError("gone")
            return super().read(min(size or 4, 4))

    blobs = Blobs(tmp_path / "blobs")
    with pytest.raises(OSError, match="gone"):
        blobs.put_stream(Broken(b"some bytes"))
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "0" * 63, "G" * 64])
def test_name_is_refused_when_it_is_no_digest(tmp_path: Path, name: str) -> None:
    """No text can name a file outside."""
    blobs = Blobs(tmp_path)
    with pytest.raises(NotFoundError):
        blobs.open(name)
    with pytest.raises(NotFoundError):
        blobs.open("0" * 64)
