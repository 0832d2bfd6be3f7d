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


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("200k", 200_000), ("5M", 5_000_000), ("1.5k", 1500), ("0.000001M", 1)],
)
def test_count_is_read_when_written_with_or_without_suffix(text: str, count: int) -> None:
    """Thousands and millions, exactly."""
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "5m", "5 MB", "1e6", "1.0001k", "9999999M"])
def test_count_is_refused_when_it_could_be_misread(text: str) -> None:
    """A fraction of a token is none, and a unit that is not ours is not guessed."""
    with pytest.raises(ValueError, match=r"whole number|from 1"):
        units.parse_count(text)


@given(st.integers(min_value=1, max_value=units.MOST_TOKENS))
def test_count_is_read_back_when_written(count: int) -> None:
    """What we print can be pasted."""
    assert units.parse_count(units.format_count(count)) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "0.0000001", "1000001", "$5", "1,5"])
def test_money_is_refused_when_it_is_no_exact_amount(text: str) -> None:
    """Nothing is rounded: micro-dollars are the finest there is."""
    with pytest.raises(ValueError, match=r"dollar"):
        units.parse_usd(text)


@given(st.integers(min_value=1, max_value=units.MOST_MICRO_USD))
def test_money_is_read_back_when_written(micro_usd: int) -> None:
    """To the micro-dollar."""
    assert units.parse_usd(units.format_usd(micro_usd)) == micro_usd
