"""Frames of an attached exec: which, how long, the content. Both ways, over one connection."""

from __future__ import annotations

import struct

HEADER = struct.Struct("!cI")
LARGEST_BYTES = 1024**2
INPUT, INPUT_END, SIZE, HANG_UP = b"i", b"e", b"w", b"h"
"""To the command: bytes, their end, its terminal's rows and columns, that its window is closed."""
OUTPUT, ERROR_OUTPUT, END, TAKEN_OVER = b"o", b"x", b"q", b"t"
"""From it: bytes of two streams, that it is over, that somebody else is attached now."""
CELLS = struct.Struct("!HH")


def frame(kind: bytes, content: bytes = b"") -> bytes:
    """Write one frame."""
    return HEADER.pack(kind, len(content)) + content
