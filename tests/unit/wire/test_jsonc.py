"""JSON with comments: what is a comment, what is a string, and where the lines are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.wire.jsonc import MOST_CHARACTERS, load

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=20,
)


@given(JSON)
def test_plain_json_is_read_as_it_is_when_it_has_no_comment(value: Any) -> None:  # noqa: ANN401 - JSON
    """Nothing inside a string is taken for a comment or a trailing comma."""
    assert load(json.dumps(value)) == value
    assert load(json.dumps(value, indent=1, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // one\n "b": 2,}', {"a": 1, "b": 2}),
        ("/* first */ [1, /* two, */ 2, // end\n]", [1, 2]),
        ('{"url": "http://x//y", "c": "/* no */"}', {"url": "http://x//y", "c": "/* no */"}),
        ('{"a": ",}"}', {"a": ",}"}),
        ('{"a": "\\\\", /* , */ }', {"a": "\\"}),
        ("\ufeff{}", {}),
    ],
)
def test_comments_and_last_commas_are_passed_over_when_they_are_none_of_a_string(
    text: str, value: object
) -> None:
    """As editors write it."""
    assert load(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{\n// fine\n"a": 1\n"b": 2}', "line 4"),
        ("{} {}", "line 1"),
        ("{}\n/* never closed", "line 2: a comment is never closed"),
        ("/*/", "never closed"),
        ("/*" * 400_000, "never closed"),
        ("[" * 100_000, "nested too deep"),
        (" " * (MOST_CHARACTERS + 1), "at most"),
    ],
)
def test_what_is_no_json_is_refused_with_its_line_when_it_cannot_be_read(
    text: str, reason: str
) -> None:
    """One clause, never a traceback."""
    with pytest.raises(ValueError, match=reason):
        load(text)


def test_a_row_of_comments_is_read_once_when_nothing_ends_it() -> None:
    """However many ways there are to cut it: this would go on until the end of days."""
    with pytest.raises(ValueError, match="line 1: "):
        load('{"a": 1,' + "/**/ " * 2000 + "x}")
