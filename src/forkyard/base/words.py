"""Words that fit what they count."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Give a number and its thing, in the plural unless it is one."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
