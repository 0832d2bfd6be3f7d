"""JSON that came from outside, read without trusting its shape."""

from __future__ import annotations

from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Object: TypeAlias = dict[str, Json]


def an_object(value: Json) -> Object:
    """Give the object, or an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Json) -> list[Object]:
    """Give the objects of a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(value: Json, default: str = "") -> str:
    """Give the string, or the default."""
    return value if isinstance(value, str) else default


def number(value: Json, default: int = 0) -> int:
    """Give the whole number, or the default."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def seconds(value: Json) -> float:
    """Give a time, 0 where none is said."""
    return float(value) if isinstance(value, int | float) else 0.0
