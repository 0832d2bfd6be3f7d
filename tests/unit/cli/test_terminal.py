"""The way out of a lent terminal."""

from __future__ import annotations

import pytest

from forkyard.cli.terminal import DetachedError, Escapes


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        (b"ls ~.\r", b"ls ~."),
        (b"~~.\r", b"~."),
        (b"a\r~x", b"a\r~x"),
        (b"~", b""),
    ],
)
def test_only_the_escape_at_the_start_of_a_line_is_taken(typed: bytes, passed: bytes) -> None:
    """Everything else reaches the workspace as it was typed."""
    assert Escapes().pass_on(typed).startswith(passed)


@pytest.mark.parametrize("pieces", [[b"~."], [b"~", b"."], [b"ls\r", b"~", b"."]])
def test_the_escape_leaves_however_it_was_cut(pieces: list[bytes]) -> None:
    """Keys come one at a time or together."""
    escapes = Escapes()

    with pytest.raises(DetachedError):
        assert [escapes.pass_on(piece) for piece in pieces] == []
