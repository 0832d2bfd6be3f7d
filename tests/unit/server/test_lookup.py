"""Names, whole ids and abbreviations."""

from __future__ import annotations

import pytest

from forkyard.errors import ConflictError, NotFoundError
from forkyard.server.lookup import find

THINGS = {"run_abcd11110000": 1, "run_abcd22220000": 2, "run_beef00000000": 3}


def ask(text: str) -> int:
    """Look for a run."""
    return find("run", text, THINGS, prefix="run", names={"mine": "run_beef00000000"})


@pytest.mark.parametrize(
    "text", ["mine", "run_beef00000000", "run_beef", "beef", "beef0000", "run_beef0"]
)
def test_what_fits_one_thing_finds_it(text: str) -> None:
    """Name, whole id, abbreviation with and without its prefix."""
    assert ask(text) == 3


@pytest.mark.parametrize("text", ["", "run_", "bee", "run_bee", "abce", "BEEF", "ws_beef", "mine2"])
def test_what_fits_nothing_is_not_found(text: str) -> None:
    """Fewer than four digits never fit."""
    with pytest.raises(NotFoundError, match="no such run"):
        ask(text)


def test_an_abbreviation_is_told_to_be_too_short_when_it_is() -> None:
    """The thing may well be there."""
    with pytest.raises(NotFoundError, match="needs 4 digits or more"):
        ask("run_bee")


def test_what_fits_several_is_a_conflict_that_names_them() -> None:
    """The person is told to give more digits."""
    with pytest.raises(ConflictError, match=r"fits 2 of them \(run_abcd1111.*run_abcd2222") as told:
        ask("abcd")
    assert told.value.hint == "Give more digits."
    assert ask("abcd1") == 1
