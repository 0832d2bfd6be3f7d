"""Which of several alike runs every time, and which in the long run only."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet


def first(value: object, *others: object) -> list[object]:
    """Give parameters of which the first runs always, and the others with `./dev test --deep`."""
    return [value, *(deep(other) for other in others)]


def deep(value: object, *, id: str | None = None) -> ParameterSet:  # noqa: A002 - pytest's own word
    """Give a parameter that runs with `./dev test --deep` only."""
    return pytest.param(value, marks=pytest.mark.deep, id=id)
