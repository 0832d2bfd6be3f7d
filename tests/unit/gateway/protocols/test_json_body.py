"""Bodies that two parsers could read in two ways are refused in words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asking import CHAT, MESSAGES, RESPONSES, SMALLEST, STREAM_GENERATE, asked, refusal
from forkyard.gateway.interface import Outcome
from forkyard.gateway.protocols.interface import Rebuilt
from forkyard.gateway.protocols.json_body import MOST_DEPTH, MOST_MARKS, Json, parse, write
from forkyard.gateway.protocols.refusal import RequestError

HOSTILE = (
    (b'{"model":"a","model":"b"}', "same key twice"),
    (b'{"a":{"x":1,"\\u0078":2}}', "same key twice"),
    (b"[" * 100_000, "nests deeper"),
    (b'{"a":' * 65 + b"1" + b"}" * 65, "nests deeper"),
    (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "nests deeper"),
    (b'{"a":1' + b"0" * 40 + b"}", "number of 41 digits"),
    (b'{"a":' + b"9" * 100_000 + b"}", "number of 100000 digits"),
    (b'{"a":1e999}', "too large"),
    (b'{"a":NaN}', "NaN"),
    (b'{"a":-Infinity}', "-Infinity"),
    (b"\xff\xfe{}", "no UTF-8 at byte 0"),
    ('{"a":1}'.encode("utf-16"), "no UTF-8"),
    (b"\xef\xbb\xbf{}", "no JSON"),
    (b"", "no JSON at character 0"),
    (b'{"a":1}{"b":2}', "no JSON at character 7"),
    (b'{"a":"\x01"}', "no JSON"),
    (b"[]", "no JSON object"),
    (b'"text"', "no JSON object"),
)


@pytest.mark.parametrize(("body", "words"), HOSTILE)
@pytest.mark.parametrize("target", SMALLEST)
def test_refuses_in_words_when_a_body_is_hostile(target: str, body: bytes, words: str) -> None:
    """Each trick gets a 400 that says what it was, and counts as the agent's."""
    found = refusal(target, body)
    assert found.answer.status == 400
    assert words in found.reason
    assert found.outcome is Outcome.BAD_REQUEST


@pytest.mark.parametrize("target", [MESSAGES, RESPONSES, CHAT])
def test_refuses_half_a_surrogate_pair_when_it_would_be_sent(target: str) -> None:
    """A text that no UTF-8 can carry is not sent."""
    text = json.dumps(SMALLEST[target][1]).replace("hello", "\\ud800")
    assert "half of a surrogate pair" in refusal(target, text.encode()).reason
    whole = asked(target, text.replace("\\ud800", "\\ud83d\\ude00").encode())
    assert isinstance(whole, Rebuilt)
    assert "\N{GRINNING FACE}" in whole.body.decode()


def test_passes_when_the_depth_is_just_allowed() -> None:
    """The limit itself is allowed."""
    body = b'{"a":' * MOST_DEPTH + b"1" + b"}" * MOST_DEPTH
    assert write(parse(body)) == body
    assert refusal(STREAM_GENERATE, b'{"a":' + body + b"}").answer.status == 400


VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), VALUES, max_size=5))
def test_gives_back_what_was_read_when_it_is_written(value: dict[str, Json]) -> None:
    """Reading and writing change nothing, nor does a second time."""
    written = write(parse(json.dumps(value).encode()))
    assert json.loads(written) == value
    assert write(parse(written)) == written


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b"0," * MOST_MARKS + b"0]}",
        b'{"a":["x' + b'","' * MOST_MARKS + b'"]}',
        b"{" + b'""' * (2 * MOST_MARKS + 2) + b"," * MOST_MARKS,
        b'{"a":"' + rb"\"" * MOST_MARKS + b'",' + b"," * MOST_MARKS,
    ],
)
def test_is_refused_before_it_is_parsed_when_it_has_too_many_values(body: bytes) -> None:
    """Whatever its texts look like."""
    with pytest.raises(RequestError, match="commas and brackets"):
        parse(body)


def test_passes_when_its_texts_have_many_commas() -> None:
    """Code has, and costs nothing for that; neither does a text that never ends."""
    text = 'a[0], {"b"}, ' * MOST_MARKS
    assert parse(json.dumps({"a": text}).encode()) == {"a": text}
    with pytest.raises(RequestError, match="no JSON at"):
        parse(b'{"a":"' + b'\\",' * MOST_MARKS)
