"""What agents wrote reaches a terminal as text, never as a command to it."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.cli.output import bytes_out, clean, clean_output, seconds, short, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain.py", "plain.py"),
        ("naïve/日本.py", "naïve/日本.py"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x1b]0;title\x07", "a\\x1b]0;title\\x07"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("x\u202eyp.py", "x\\u202eyp.py"),
        ("x\u200by", "x\\u200by"),
        ("x\x9by", "x\\x9by"),
        ("x\u2028y", "x\\u2028y"),
        ("x\ufeffy", "x\\ufeffy"),
        ("x\U000e0041y", "x\\U000e0041y"),
        (b"a\xff".decode("utf-8", "surrogateescape"), "a\\udcff"),
    ],
)
def test_what_would_act_on_a_terminal_is_shown_escaped(text: str, shown: str) -> None:
    """Control, format, bidirectional, separator and surrogate characters."""
    assert clean(text) == shown


@given(st.text())
def test_no_text_keeps_a_character_that_acts(text: str) -> None:
    """Whatever comes in, nothing of these categories comes out."""
    unsafe = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}

    assert [one for one in clean(text) if unicodedata.category(one) in unsafe] == []


def test_output_keeps_lines_and_colours_only() -> None:
    """Colours are harmless; moving the cursor, titles and clipboard writes are not."""
    text = "ok \x1b[32mgreen\x1b[0m\tx\r\n\x1b[2J\x1b]52;c;aGk=\x07\x1b[1;1Hdone\n"

    assert clean_output(text) == (
        "ok \x1b[32mgreen\x1b[0m\tx\n\\x1b[2J\\x1b]52;c;aGk=\\x07\\x1b[1;1Hdone\n"
    )


def test_a_file_or_pipe_gets_every_byte() -> None:
    """Only terminals get escapes."""
    target = io.BytesIO()
    bytes_out(b"\x1b[2J\xff\x00", target)

    assert target.getvalue() == b"\x1b[2J\xff\x00"


def test_columns_are_counted_as_terminals_do() -> None:
    """Wide characters take two, combining ones none."""
    assert (width("abc"), width("日本"), width("e\u0301")) == (3, 4, 1)


def test_times_and_ids_are_short() -> None:
    """As people read and type them."""
    assert [seconds(one) for one in (None, 0.04, 59.94, 61, 3720)] == [
        "-", "0.0s", "59.9s", "1m01s", "1h02m",
    ]  # fmt: skip
    assert short("cand_0123456789ab") == "cand_01234567"
