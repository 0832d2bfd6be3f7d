"""Masking: every coding of a secret, every way of cutting the stream, and nothing else."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.base.masking import Masker

NAME = "ANTHROPIC_API_KEY"
MASK = b"[secret ANTHROPIC_API_KEY]"
SECRET = 'sk-ant-api03-Zq7/x+8K_"quoted"&more\'than-that~ü9'  # noqa: S105 - a test's own
PEM = "-----BEGIN KEY-----\nMIIBVgIBADANBgkqhkiG9w0BAQEFAASC\nabcd\n-----END KEY-----"


def _wrapped(content: bytes) -> bytes:
    return base64.encodebytes(content)


def _percent_all(content: bytes) -> bytes:
    return b"".join(b"%%%02x" % byte for byte in content)


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "raw": lambda content: content,
    "json": lambda content: json.dumps(content.decode()).encode(),
    "json-utf8": lambda content: json.dumps(content.decode(), ensure_ascii=False).encode(),
    "json-slashes": lambda content: json.dumps(content.decode()).replace("/", "\\/").encode(),
    "repr": lambda content: repr(content).encode(),
    "url": lambda content: urllib.parse.quote(content, safe="").encode(),
    "url-path": lambda content: urllib.parse.quote(content).encode(),
    "url-lower": _percent_all,
    "url-upper": lambda content: _percent_all(content).upper(),
    "url-form": lambda content: urllib.parse.urlencode({"key": content}).encode(),
    "hex": lambda content: content.hex().encode(),
    "hex-upper": lambda content: content.hex().upper().encode(),
    "hex-apart": lambda content: content.hex(" ").encode(),
    "base64": base64.b64encode,
    "base64-url": base64.urlsafe_b64encode,
    "base64-lines": _wrapped,
    "base64-in-url": lambda content: urllib.parse.quote(base64.b64encode(content)).encode(),
    "base64-in-json": lambda content: json.dumps(_wrapped(content).decode()).encode(),
}


def cut(content: bytes, size: int) -> Iterator[bytes]:
    """Cut bytes into pieces."""
    for start in range(0, len(content), size):
        yield content[start : start + size]


def masked(masker: Masker, content: bytes, size: int) -> bytes:
    """Mask a stream that comes in pieces."""
    stream = masker.stream()
    return b"".join([*(stream.feed(piece) for piece in cut(content, size)), stream.finish()])


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("before", [b"", b"k", b"ke", b"key=", b"Bearer \x00"])
@pytest.mark.parametrize("after", [b"", b"\n", b"x\xffy"])
def test_secret_is_masked_when_encoded(encoding: str, before: bytes, after: bytes) -> None:
    """Encoded together with what stands around it, at every alignment, whole and byte by byte."""
    text = encoding.startswith(("json", "base64-in-json"))
    around = (before, after.replace(b"\xff", b"z")) if text else (before, after)
    masker = Masker({NAME: SECRET})

    stream = b"first\n" + ENCODINGS[encoding](around[0] + SECRET.encode() + around[1]) + b"\nlast\n"
    whole = masker.mask(stream)

    assert whole.count(MASK) == 1
    assert whole.startswith(b"first\n")
    assert whole.endswith(b"\nlast\n")
    # What is left beside the mask is what stood beside the secret, and a few characters of coding.
    assert len(whole) < len(stream) - len(SECRET) + len(MASK) + 8
    assert {masked(masker, stream, size) for size in (1, 2, 3, 7, 64)} == {whole}


def test_text_passes_at_once_when_it_cannot_begin_a_secret() -> None:
    """A follower sees ordinary output as it comes; only a beginning is held back, then given."""
    stream = Masker({NAME: SECRET}).stream()

    assert stream.feed(b"compiling\n") == b"compiling\n"
    assert stream.feed(b"risk-ant-api") == b"ri"
    assert stream.feed(b"ary\n") == b"sk-antapiary\n".replace(b"antapi", b"ant-api")
    assert stream.finish() == b""


def test_secret_is_masked_at_once_when_it_is_complete() -> None:
    """The mask is given with the secret's last byte, not when the stream ends."""
    stream = Masker({NAME: "sk-live-0123456789"}).stream()

    assert stream.feed(b"key sk-live-01234567") == b"key "
    assert stream.feed(b"89\n") == MASK + b"\n"
    assert stream.found == {NAME}


def test_overlapping_secrets_leave_no_rest_when_masked() -> None:
    """A secret that begins within another is covered too, and so is a chain of them."""
    masker = Masker({"A": "abcdefgh-1", "B": "gh-1-ijklmn", "C": "aaaaaaaa"})

    assert masker.mask(b"<abcdefgh-1-ijklmn>") == b"<[secret A]>"
    assert masker.mask(b"<" + b"a" * 5000 + b">") == b"<[secret C]>"
    assert masked(masker, b"<" + b"a" * 5000 + b">", 3) == b"<[secret C]>"
    assert masker.mask(b"abcdefgh-1abcdefgh-1") == b"[secret A][secret A]"


def test_longer_secret_wins_when_both_begin_at_a_place() -> None:
    """No tail of the longer value is left."""
    masker = Masker({"LONG": "password-and-more", "SHORT": "password"})

    assert masker.mask(b"a password-and-more b password c") == b"a [secret LONG] b [secret SHORT] c"
    assert masked(masker, b"a password-and-mo", 1) == b"a [secret SHORT]-and-mo"


def test_lines_of_a_value_are_masked_when_printed_apart() -> None:
    """A key with several lines is found whole, with other line ends, and a long line by itself."""
    masker = Masker({"PEM": PEM + "\n"})

    assert masker.mask(PEM.encode()) == b"[secret PEM]"
    assert masker.mask(PEM.replace("\n", "\r\n").encode()) == b"[secret PEM]"
    assert masker.mask(b"> MIIBVgIBADANBgkqhkiG9w0BAQEFAASC <") == b"> [secret PEM] <"
    assert masker.mask(b"-----BEGIN KEY-----\nabcd\n") == b"-----BEGIN KEY-----\nabcd\n"


def test_replaced_value_is_masked_on_when_there_is_a_new_one() -> None:
    """What was printed before the change is still read afterwards."""
    masker = Masker({NAME: "first-value"})
    masker.replace({NAME: "second-value"})
    masker.replace({})

    assert masker.mask(b"first-value second-value") == MASK + b" " + MASK
    assert not masker.is_idle


def test_nothing_is_changed_when_there_is_no_secret() -> None:
    """Without secrets bytes pass as they are; values too short to mask are none."""
    masker = Masker({"SHORT": "1234567"})

    assert masker.is_idle
    assert masker.mask(b"\x00\xff 1234567") == b"\x00\xff 1234567"
    assert masker.mask_text("\udc80 1234567") == "\udc80 1234567"


def test_text_is_masked_when_it_holds_undecodable_bytes() -> None:
    """Text as the product keeps it, surrogates included, comes back but for the secret."""
    masker = Masker({NAME: SECRET})

    assert masker.mask_text(f"\udcff {SECRET} \ud800") == f"\udcff {MASK.decode()} \ud800"
    assert masker.names_in([b"sk-ant-", b"nothing"]) == ()
    assert masker.names_in(cut(SECRET.encode(), 5)) == (NAME,)


VALUES = st.text("abAB01-_/+%\\ \"'\n", min_size=8, max_size=24).filter(
    lambda value: len(value.strip()) >= 8
)
NOISE = st.binary(max_size=20) | st.text("abAB01-_/+%\\ \"'\n=", max_size=20).map(str.encode)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(VALUES, min_size=1, max_size=3),
    st.lists(st.tuples(NOISE, st.integers(0, 2), st.sampled_from(sorted(ENCODINGS))), max_size=5),
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_result_is_the_same_when_a_stream_is_cut_anywhere(
    values: list[str], parts: list[tuple[bytes, int, str]], sizes: list[int]
) -> None:
    """However a stream is cut: one result, and no secret in it, plain or encoded."""
    masker = Masker({f"N{number}": value for number, value in enumerate(values)})
    content = b"".join(
        noise + ENCODINGS[encoding](values[which % len(values)].strip().encode())
        for noise, which, encoding in parts
    )
    stream = masker.stream()
    pieces: list[bytes] = []
    position = 0
    while position < len(content):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream.feed(content[position : position + size]))
        position += size
    pieces.append(stream.finish())

    whole = masker.mask(content)
    assert b"".join(pieces) == whole
    for value in values:
        for form in ("raw", "hex", "url", "base64"):
            assert ENCODINGS[form](value.strip().encode()).rstrip(b"=") not in whole


@settings(max_examples=300, deadline=None)
@given(VALUES, st.lists(st.binary(max_size=30), max_size=5))
def test_all_else_is_unchanged_when_secrets_stand_between(value: str, noise: list[bytes]) -> None:
    """Where no coding of the value occurs by chance, only its plain copies are replaced."""
    value = f"Zz{value.strip()}zZ"  # letters that no noise below is made of
    clean = [bytes(byte % 10 + 48 for byte in one) for one in noise]

    masker = Masker({"NAME": value})

    assert masker.mask(value.encode().join(clean)) == b"[secret NAME]".join(clean)
