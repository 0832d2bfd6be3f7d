"""Streaming files that are still being written, without holding them in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from forkyard.base.masking import MaskedStream, Masker

CHUNK_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.1
"""How late a follower may see new output; a look costs one fstat."""


async def stream_file(
    path: Path,
    *,
    offset: int,
    follow: bool,
    is_over: Callable[[], bool],
    is_cut: Callable[[], bool],
    masker: Masker,
) -> AsyncIterator[bytes]:
    """Give a file's bytes from an offset, and with `follow` whatever comes until it is over.

    Secrets are masked; what may be the beginning of one is not given when the server is only
    exiting (`is_cut`), for the next one knows how it goes on. The offset counts what is given:
    with masks the file is read from its start, since a secret may lie across the offset.

    A file that is not there (yet) counts as empty. It is opened once, so a file that is moved to
    its final place meanwhile is still read to its end.

    Cancellation:
        Safe at any point; the descriptor is closed.
    """
    descriptor: int | None = None
    stream = None if masker.is_idle else masker.stream()
    unwanted = 0
    if stream is not None:
        unwanted, offset = offset, 0
    try:
        while True:
            last_look = not follow or is_over()
            if descriptor is None:
                descriptor = open_output(path)
            is_read = descriptor is None
            while not is_read:
                size, chunk = await asyncio.to_thread(_read, descriptor, offset, stream)
                offset += size
                is_read = size == 0
                if is_read and last_look and stream is not None and not is_cut():
                    chunk = stream.finish()
                wanted, unwanted = chunk[unwanted:], max(0, unwanted - len(chunk))
                if wanted:
                    yield wanted
            if last_look:
                return
            await asyncio.sleep(FOLLOW_SECONDS)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _read(descriptor: int | None, offset: int, stream: MaskedStream | None) -> tuple[int, bytes]:
    """Read a piece; give how long it was, and what of it and what came before is certain."""
    chunk = b"" if descriptor is None else os.pread(descriptor, CHUNK_BYTES, offset)
    return len(chunk), chunk if stream is None or not chunk else stream.feed(chunk)


def open_output(path: Path) -> int | None:
    """Open an output file that never is a link; None while it is not there."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def read_small(path: Path, size: int, limit: int, masker: Masker) -> bytes | None:
    """Read an output file whole, masked, when it is within a limit; None when it is longer."""
    if size > limit:
        return None
    if size == 0:
        return b""
    descriptor = open_output(path)
    if descriptor is None:
        return b""
    try:
        content = os.read(descriptor, limit + 1)
    finally:
        os.close(descriptor)
    return None if len(content) > limit else masker.mask(content)
