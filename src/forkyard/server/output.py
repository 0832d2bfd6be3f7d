"""Streaming files that are still being written, without holding them in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

CHUNK_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.1
"""How late a follower may see new output; a look costs one fstat."""


async def stream_file(
    path: Path,
    *,
    offset: int,
    follow: bool,
    is_over: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Give a file's bytes from an offset, and with `follow` whatever comes until it is over.

    A file that is not there (yet) counts as empty. It is opened once, so a file that is moved to
    its final place meanwhile is still read to its end.

    Cancellation:
        Safe at any point; the descriptor is closed.
    """
    descriptor: int | None = None
    try:
        while True:
            last_look = not follow or is_over()
            if descriptor is None:
                descriptor = open_output(path)
            while descriptor is not None and (
                chunk := await asyncio.to_thread(os.pread, descriptor, CHUNK_BYTES, offset)
            ):
                offset += len(chunk)
                yield chunk
            if last_look:
                return
            await asyncio.sleep(FOLLOW_SECONDS)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_output(path: Path) -> int | None:
    """Open an output file that never is a link; None while it is not there."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def read_small(path: Path, size: int, limit: int) -> bytes | None:
    """Read an output file whole when it is within a limit; None when it is longer."""
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
    return None if len(content) > limit else content
