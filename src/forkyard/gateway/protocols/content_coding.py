"""Compressed bodies: undone piece by piece, and never larger than said.

Agents compress what they ask, providers may compress what they answer. Both are hostile: a few
kilobytes can stand for gigabytes, so every step says how much may come out of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import zstandard

MOST_BODY_BYTES = 32 * 1024 * 1024
"""Of a request, before and after decoding."""
MOST_ANSWER_BYTES = 1024 * 1024 * 1024
"""Of one decoded answer; a stream of that length is no answer any more."""

_PIECE = 256 * 1024
_ZSTD_WINDOW = 8 * 1024 * 1024
_MOST_CODINGS = 2
_MOST_PARTS = 256
"""Members of gzip or frames of zstd: each costs far more work than its few bytes."""
_TAKEN = 64 * 1024
"""Compressed bytes at a time: what is left over of them is copied."""


class ContentError(Exception):
    """A body cannot be decoded; the words name no byte of it."""


class Decoder:
    """Undoes the content codings of one body as it comes."""

    def __init__(self, encoding: str, *, most_bytes: int = MOST_ANSWER_BYTES) -> None:
        """Start with nothing read.

        Args:
            encoding: The header's value, such as `gzip` or `deflate, gzip`; may be empty.
            most_bytes: More decoded bytes than this are an error.

        Raises:
            ContentError: A coding is unknown, or there are more than two.
        """
        names = [one.strip().lower() for one in encoding.split(",")]
        names = [one for one in names if one not in {"", "identity"}]
        if len(names) > _MOST_CODINGS:
            raise ContentError(f"it is compressed {len(names)} times over")
        self._steps = [_step(name) for name in reversed(names)]
        self._left = most_bytes
        self._most = most_bytes

    def feed(self, chunk: bytes) -> bytes:
        """Decode the next bytes.

        Raises:
            ContentError: They are not what the header says, or too many come out.
        """
        if not self._steps:
            self._count(chunk)
            return chunk
        return b"".join(self._decoded(chunk, 0))

    def end(self) -> None:
        """Say that the body is over.

        Raises:
            ContentError: It was cut.
        """
        if not all(step.is_over for step in self._steps):
            raise ContentError("its compressed body was cut")

    def _decoded(self, chunk: bytes, place: int) -> Iterator[bytes]:
        """Run one piece through this and the later steps, never holding more than a piece."""
        is_last = place == len(self._steps) - 1
        for piece in self._steps[place].undo(chunk):
            self._count(piece)
            if is_last:
                yield piece
            else:
                yield from self._decoded(piece, place + 1)

    def _count(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise ContentError(f"it is larger than {self._most} bytes when decoded")


def decoded(body: bytes, encoding: str, *, most_bytes: int = MOST_BODY_BYTES) -> bytes:
    """Decode a whole body.

    Raises:
        ContentError: It is not what the header says, was cut, or is too large.
    """
    decoder = Decoder(encoding, most_bytes=most_bytes)
    plain = decoder.feed(body)
    decoder.end()
    return plain


class _Inflate:
    """gzip, also of several members, and deflate with or without its two bytes of header."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._inflater = zlib.decompressobj(31) if is_gzip else None
        self._held = b""
        self._parts = 1
        self.is_over = False

    def undo(self, chunk: bytes) -> Iterator[bytes]:
        whole = self._held + chunk
        self._held = b""
        if not whole:
            return
        if self._inflater is None:
            if len(whole) == 1:
                self._held = whole
                return
            has_header = whole[0] & 0x0F == zlib.DEFLATED and int.from_bytes(whole[:2]) % 31 == 0
            self._inflater = zlib.decompressobj(15 if has_header else -15)
        for place in range(0, len(whole), _TAKEN):
            yield from self._inflated(whole[place : place + _TAKEN])

    def _inflated(self, rest: bytes) -> Iterator[bytes]:
        assert self._inflater is not None  # noqa: S101 - made by `undo`
        while rest:
            if self.is_over:
                if not self._is_gzip:
                    raise ContentError("its compressed body is followed by more")
                self._parts = _one_more(self._parts)
                self._inflater, self.is_over = zlib.decompressobj(31), False
            try:
                piece = self._inflater.decompress(rest, _PIECE)
            except zlib.error:
                raise ContentError("its body is not compressed as its header says") from None
            self.is_over = self._inflater.eof
            before = rest
            rest = self._inflater.unused_data if self.is_over else self._inflater.unconsumed_tail
            yield piece
            if not piece and len(rest) == len(before):
                raise ContentError("its compressed body does not go on")


class _Zstandard:
    """zstd with a window of 8 MiB at most, as browsers allow."""

    def __init__(self) -> None:
        self._make = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
        self._frame = self._make()
        self._parts = 1
        self.is_over = False

    def undo(self, chunk: bytes) -> Iterator[bytes]:
        # The library gives whatever comes out of what goes in, so little goes in at a time: 64
        # bytes of a frame hold at most a few blocks of 128 KiB.
        place = 0
        while place < len(chunk):
            if self.is_over:
                self._parts = _one_more(self._parts)
                self._frame, self.is_over = self._make(), False
            part = chunk[place : place + 64]
            try:
                piece = self._frame.decompress(part)
            except zstandard.ZstdError:
                raise ContentError("its body is not compressed as its header says") from None
            place += len(part)
            self.is_over = self._frame.eof
            if self.is_over:
                place -= len(self._frame.unused_data)
            yield piece


def _one_more(parts: int) -> int:
    if parts >= _MOST_PARTS:
        raise ContentError(f"its compressed body has more than {_MOST_PARTS} parts")
    return parts + 1


def _step(name: str) -> _Inflate | _Zstandard:
    match name:
        case "gzip" | "x-gzip":
            return _Inflate(is_gzip=True)
        case "deflate":
            return _Inflate(is_gzip=False)
        case "zstd":
            return _Zstandard()
        case _:
            raise ContentError("its content encoding is unknown")
