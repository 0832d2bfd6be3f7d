"""Secrets by name: what a name and a value may be, and what may be told about one."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME_SHAPE = r"[A-Za-z][A-Za-z0-9._-]{0,63}"
NAME_RULE = (
    "letters, digits, '_', '-' and '.', starting with a letter, 64 characters at most, such as"
    " ANTHROPIC_API_KEY"
)

LEAST_BYTES = 8
"""Less could not be masked in output without masking ordinary words, and protects nothing."""

MOST_BYTES = 16 * 1024
"""A private key with its certificate chain fits; masking holds back output by a few times this."""

_SHAPE = re.compile(NAME_SHAPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Everything that may be told about a secret; nothing here is derived from its value."""

    name: str
    id: str = ""
    """`sec_` and random digits, new with each value: two settings can be told apart."""
    set_at: str = ""
    trouble: str | None = None
    """Why its value cannot be read, where that is so."""


def is_secret_name(text: str) -> bool:
    """Say whether a text may be a secret's name."""
    return _SHAPE.fullmatch(text) is not None


def value_problem(value: str) -> str | None:
    """Say what is wrong with a value, as a clause that holds nothing of it."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8 text"
    if size < LEAST_BYTES:
        return f"it has {size} bytes, and less than {LEAST_BYTES} cannot be masked in output"
    if size > MOST_BYTES:
        return f"it has {size} bytes, {MOST_BYTES} are the most"
    if "\0" in value:
        return "it holds a NUL character"
    if len(value.strip()) < LEAST_BYTES:
        return f"it has less than {LEAST_BYTES} characters besides white space"
    if "\n" not in value and value != value.strip():
        return "it starts or ends with white space"
    return None
