"""The name in a TLS greeting, however it is cut, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.gateway.egress.hello import MOST_BYTES, Hello, HelloError, server_name
from origins import client_hello

REAL = client_hello("good.example.org")


def extension(kind: int, content: bytes) -> bytes:
    """Give one extension of a greeting."""
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def name_list(*names: bytes, kind: int = 0) -> bytes:
    """Give the extension that names hosts."""
    inner = b"".join(bytes([kind]) + len(one).to_bytes(2, "big") + one for one in names)
    return extension(0, len(inner).to_bytes(2, "big") + inner)


def body(*extensions: bytes) -> bytes:
    """Give a greeting's body with these extensions."""
    whole = b"".join(extensions)
    return bytes(34) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(whole).to_bytes(2, "big") + whole


def records(message: bytes, size: int) -> bytes:
    """Cut a handshake message into records of so many bytes."""
    parts = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(b"\x16\3\1" + len(part).to_bytes(2, "big") + part for part in parts)


def feed(content: bytes, size: int = 1 << 20) -> str | None:
    """Feed content in pieces; give the name once it is known."""
    hello = Hello()
    for start in range(0, len(content), size):
        if (found := hello.feed(content[start : start + size])) is not None:
            assert hello.content == content[: start + size]
            return found
    return None


@given(st.integers(min_value=1, max_value=2000), st.integers(min_value=1, max_value=2000))
def test_the_name_is_found_however_a_real_greeting_is_cut(segment: int, record: int) -> None:
    """In segments of any length, and in records of any length."""
    assert feed(REAL, segment) == "good.example.org"
    assert feed(records(REAL[5:], record), segment) == "good.example.org"


@given(st.integers(min_value=0, max_value=len(REAL) - 1))
def test_nothing_is_said_when_a_greeting_is_not_whole(length: int) -> None:
    """A part of one is waited for, never guessed from."""
    assert feed(REAL[:length]) is None


@given(st.binary(max_size=600))
def test_bytes_of_any_kind_end_in_a_name_or_a_refusal(content: bytes) -> None:
    """Nothing else is raised."""
    for given_bytes in (content, b"\x16\3\1" + content, REAL[:9] + content):
        with contextlib.suppress(HelloError):
            feed(given_bytes)
    with contextlib.suppress(HelloError):
        server_name(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "does not begin with a TLS"),
        (b"SSH-2.0-x\r\n", "does not begin with a TLS"),
        (b"\x80\x2e\1\3\1", "does not begin with a TLS"),
        (b"\x17\3\3\0\1x", "does not begin with a TLS"),
        (b"\x16\3\1\0\0", "wrong length"),
        (b"\x16\3\1\x40\1", "wrong length"),
        (b"\x16\2\0\0\1x", "does not begin with a TLS"),
        (b"\x16\3\1\0\4\2\0\0\0", "of a client"),
        (b"\x16\3\1\0\4\1\1\0\0", "of a client"),
        (REAL[:5] + b"\x16\3\1" + REAL[5:], "."),
        (client_hello(None), r"names no host \(SNI\)"),
    ],
)
def test_what_is_no_greeting_with_a_name_is_refused(content: bytes, words: str) -> None:
    """Other protocols, odd records, and greetings without a name."""
    with pytest.raises(HelloError, match=words):
        assert feed(content + bytes(MOST_BYTES)) is not None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (body(), "names no host"),
        (body(name_list(b"a.example.org", b"b.example.org")), "exactly one"),
        (body(name_list(b"a.example.org", kind=1)), "exactly one"),
        (body(name_list(b"a.example.org"), name_list(b"b.example.org")), "twice"),
        (body(name_list(b"a.example.org"), extension(0xFE0D, b"x")), "ECH"),
        (body(name_list(b"a.example.org"), extension(0xFFCE, b"x")), "ECH"),
        (body(extension(0, b"")), "cut short"),
        (body(extension(0, b"\0\0")), "names no host"),
        (body(name_list(b"\xff.org")), "ASCII"),
        (body(name_list(b"a.example.org")) + b"x", "after its end"),
        (body(name_list(b"a.example.org"))[:-1], "cut short"),
        (bytes(34) + b"\x21" + bytes(33), "session"),
    ],
)
def test_a_greeting_is_refused_when_its_name_cannot_be_trusted(content: bytes, words: str) -> None:
    """None, two, hidden, or beside other bytes."""
    with pytest.raises(HelloError, match=words):
        server_name(content)


def test_reserved_values_are_passed_over_when_a_client_greases() -> None:
    """Extensions that nobody knows are there to keep readers honest."""
    greased = body(extension(0x0A0A, b""), name_list(b"a.example.org"), extension(0x3A3A, b"\0"))

    assert server_name(greased) == "a.example.org"
