"""Output as it is served: masked, by offsets that count what was given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forkyard.base.masking import Masker
from forkyard.server.output import read_small, stream_file

SECRET = b"sk-test-0123456789"
CONTENT = b"first\n" + SECRET + b"\nlast\n"
MASKED = b"first\n[secret KEY]\nlast\n"


def served(
    path: Path,
    *,
    offset: int = 0,
    follow: bool = False,
    is_cut: bool = False,
    is_idle: bool = False,
) -> bytes:
    """Read a stream to its end."""
    masker = Masker() if is_idle else Masker({"KEY": SECRET.decode()})

    async def read() -> bytes:
        chunks = stream_file(
            path,
            offset=offset,
            follow=follow,
            is_over=lambda: True,
            is_cut=lambda: is_cut,
            masker=masker,
        )
        return b"".join([chunk async for chunk in chunks])

    return asyncio.run(read())


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Give an output file with a secret in it."""
    path = tmp_path / "stdout"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("offset", range(len(MASKED) + 3))
def test_offset_counts_masked_bytes_when_served_again(output: Path, offset: int) -> None:
    """A client that was cut off goes on where it was, even within a mask or a secret."""
    assert served(output, offset=offset) == MASKED[offset:]
    assert served(output, offset=offset, is_idle=True) == CONTENT[offset:]


def test_possible_beginning_is_held_back_when_the_server_exits(tmp_path: Path) -> None:
    """It may be a secret in the next server's eyes; at the end of the output it is none."""
    path = tmp_path / "stdout"
    path.write_bytes(b"text sk-test-0123")

    assert served(path, follow=True, is_cut=True) == b"text "
    assert served(path, follow=True) == b"text sk-test-0123"
    assert served(path) == b"text sk-test-0123"
    assert served(tmp_path / "absent") == b""


def test_large_output_is_masked_when_a_secret_lies_across_pieces(tmp_path: Path) -> None:
    """Where the file is cut into pieces makes no difference."""
    path = tmp_path / "stdout"
    filler = b"." * (64 * 1024 - 5)
    path.write_bytes((filler + SECRET) * 3)

    assert served(path) == (filler + b"[secret KEY]") * 3


def test_small_output_is_masked_when_read_whole(output: Path) -> None:
    """The same for what travels inside an exec's answer."""
    masker = Masker({"KEY": SECRET.decode()})

    assert read_small(output, len(CONTENT), 100, masker) == MASKED
    assert read_small(output, len(CONTENT), 10, masker) is None
    assert read_small(output, len(CONTENT), 100, Masker()) == CONTENT
