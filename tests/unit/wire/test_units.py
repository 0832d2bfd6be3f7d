"""Durations as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.wire import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45m", 2700), ("20s", 20), ("1h30m", 5400), ("2h", 7200), ("1h1m1s", 3661), ("0.5s", 0.5)],
)
def test_duration_is_read_when_written_with_units(text: str, seconds: float) -> None:
    """Hours, minutes and seconds, in this order."""
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "90", "5 m", "m", "-5m", "30m1h", "1d", "0s", "0h0m", "9999h", "\u0661s", "1.5h"]
)
def test_duration_is_refused_when_it_could_be_misread(text: str) -> None:
    """A number without unit, another order or nothing at all is no duration."""
    with pytest.raises(ValueError, match=r"duration|longer"):
        units.parse_duration(text)


@given(st.integers(min_value=1, max_value=int(units.LONGEST_SECONDS * 1000)))
def test_duration_comes_back_when_formatted_and_read(milliseconds: int) -> None:
    """Writing and reading are inverse to the millisecond."""
    seconds = milliseconds / 1000

    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds)
