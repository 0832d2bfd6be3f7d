"""Frames of an attached exec: which, how long, the content. Both ways, over one connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from forkyard.shim.frames import (
    CELLS,
    END,
    ERROR_OUTPUT,
    HANG_UP,
    HEADER,
    INPUT,
    INPUT_END,
    LARGEST_BYTES,
    OUTPUT,
    SIZE,
    TAKEN_OVER,
    frame,
)

__all__ = [
    "END",
    "ERROR_OUTPUT",
    "HANG_UP",
    "INPUT",
    "INPUT_END",
    "OUTPUT",
    "TAKEN_OVER",
    "Frame",
    "FrameBuffer",
    "frame",
    "frames",
    "size_frame",
]


class Frame(NamedTuple):
    """One of them."""

    kind: bytes
    content: bytes


def size_frame(rows: int, columns: int) -> bytes:
    """Write what tells a terminal its size."""
    return frame(SIZE, CELLS.pack(min(rows, 0xFFFF), min(columns, 0xFFFF)))


class FrameBuffer:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        """Start empty."""
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take bytes in and give the frames that are now whole.

        Raises:
            ValueError: One is longer than the limit.
        """
        self._rest += chunk
        found: list[Frame] = []
        position = 0
        while len(self._rest) - position >= HEADER.size:
            kind, size = HEADER.unpack_from(self._rest, position)
            if size > LARGEST_BYTES:
                raise ValueError(f"a frame of {size} bytes is longer than the limit")
            start = position + HEADER.size
            if len(self._rest) < start + size:
                break
            found.append(Frame(kind, bytes(memoryview(self._rest)[start : start + size])))
            position = start + size
        del self._rest[:position]
        return found


async def frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """Give the frames of a stream as they come."""
    buffer = FrameBuffer()
    async for chunk in chunks:
        for one in buffer.feed(chunk):
            yield one
