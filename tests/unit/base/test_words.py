"""Words that fit what they count."""

from __future__ import annotations

from forkyard.base.words import counted


def test_a_thing_is_in_the_plural_when_it_is_not_one() -> None:
    """Also where there is none."""
    told = [counted(number, "ignored file") for number in (0, 1, 2)]

    assert told == ["0 ignored files", "1 ignored file", "2 ignored files"]
