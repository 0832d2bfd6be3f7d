"""Compressed bodies are undone, and a bomb is stopped while it is small."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from asking import chunked
from forkyard.gateway.protocols.content_coding import ContentError, Decoder, decoded


def raw_deflate(body: bytes) -> bytes:
    """Compress without any header, as some clients do under the name deflate."""
    made = zlib.compressobj(wbits=-15)
    return made.compress(body) + made.flush()


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "X-GZIP": gzip.compress,
    "deflate": zlib.compress,
    " Deflate ": raw_deflate,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("encoding", CODINGS)
@settings(deadline=None)
@given(body=st.binary(max_size=3000), cuts=st.lists(st.integers(0, 4000), max_size=9))
def test_gives_the_body_when_it_was_compressed(encoding: str, body: bytes, cuts: list[int]) -> None:
    """Each coding, whole and in pieces, also one upon another."""
    packed = CODINGS[encoding](body)
    assert decoded(packed, encoding) == body
    decoder = Decoder(encoding)
    assert b"".join(decoder.feed(one) for one in chunked(packed, cuts)) == body
    decoder.end()
    assert decoded(gzip.compress(packed), f"{encoding}, gzip") == body


def test_reads_on_when_a_body_has_several_members() -> None:
    """Members of gzip and frames of zstd may follow each other."""
    assert decoded(gzip.compress(b"a") + gzip.compress(b"b"), "gzip") == b"ab"
    pack = zstandard.ZstdCompressor().compress
    assert decoded(pack(b"a") + pack(b"b"), "zstd") == b"ab"


@pytest.mark.parametrize(
    ("encoding", "bomb"),
    [
        ("gzip", gzip.compress(bytes(40_000_000), 1)),
        ("gzip, gzip", gzip.compress(gzip.compress(bytes(40_000_000), 9))),
        ("deflate", raw_deflate(bytes(40_000_000))),
        ("zstd", zstandard.ZstdCompressor().compress(bytes(40_000_000))),
        (
            "zstd, zstd",
            zstandard.ZstdCompressor().compress(
                zstandard.ZstdCompressor().compress(bytes(40_000_000))
            ),
        ),
    ],
)
def test_stops_early_when_a_body_is_a_bomb(encoding: str, bomb: bytes) -> None:
    """What would be tens of megabytes is refused, and never was in memory."""
    tracemalloc.start()
    with pytest.raises(ContentError, match="larger than 1000000 bytes"):
        decoded(bomb, encoding, most_bytes=1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16_000_000


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_says_so_when_a_body_is_cut_or_broken(encoding: str) -> None:
    """A cut is told from damage, and both from a coding that is not known."""
    packed = CODINGS[encoding](b"hello" * 100)
    with pytest.raises(ContentError, match="was cut"):
        decoded(packed[:-3], encoding)
    with pytest.raises(ContentError, match="not compressed as its header says"):
        decoded(b"\x00\xff\xffnonsense" * 9, encoding)
    for unknown in ("br", "compress", "gzip;q=1"):
        with pytest.raises(ContentError, match="unknown"):
            Decoder(unknown)
    with pytest.raises(ContentError, match="3 times over"):
        Decoder("gzip, gzip, gzip")


def test_says_so_when_a_window_would_be_huge() -> None:
    """A zstd frame that wants more than 8 MiB of window is not opened."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = packed.compress(b"abc" * 1000) + packed.flush()
    with pytest.raises(ContentError, match="not compressed as its header says"):
        decoded(body, "zstd")
    with pytest.raises(ContentError, match="followed by more"):
        decoded(zlib.compress(b"a") + b"x", "deflate")
