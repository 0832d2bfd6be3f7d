"""Durations, token counts and money as people write them: ``1h30m``, ``5M``, ``2.50``."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

LONGEST_SECONDS = 30 * 86400.0
"""A longer time limit is a slip of the unit, not a wish."""

_DURATION = re.compile(
    r"(?:(?P<h>\d{1,6})h)?(?:(?P<m>\d{1,6})m)?(?:(?P<s>\d{1,8}(?:\.\d{1,3})?)s)?", re.ASCII
)


def parse_duration(text: str) -> float:
    """Read a duration.

    Returns:
        Seconds, more than 0.

    Raises:
        ValueError: With a clause that says what a duration looks like.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        msg = f"{text!r} is not a duration; write it with units, such as 45m, 20s or 1h30m"
        raise ValueError(msg)
    hours, minutes, seconds = (found[name] or "0" for name in ("h", "m", "s"))
    total = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    if total <= 0:
        msg = f"{text!r} must be longer than 0s"
        raise ValueError(msg)
    if total > LONGEST_SECONDS:
        msg = f"{text!r} is longer than {format_duration(LONGEST_SECONDS)}, the longest accepted"
        raise ValueError(msg)
    return total


def format_duration(seconds: float) -> str:
    """Write seconds the way `parse_duration` reads them."""
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    parts = [f"{hours}h"] if hours else []
    if minutes:
        parts.append(f"{minutes}m")
    if rest or not parts:
        parts.append(f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s")
    return "".join(parts)


MOST_TOKENS = 10**12
MOST_MICRO_USD = 10**12
"""A million dollars: a larger budget is a slip, not a wish."""

_COUNT = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?([kM]?)", re.ASCII)
_FACTORS = {"": 1, "k": 1000, "M": 1_000_000}
_MICRO = 1_000_000


def parse_count(text: str) -> int:
    """Read a whole number that may end in ``k`` or ``M``.

    Raises:
        ValueError: With a clause that says what a number looks like.
    """
    found = _COUNT.fullmatch(text.strip())
    exact = None
    if found is not None:
        exact = Decimal(f"{found[1]}.{found[2] or 0}") * _FACTORS[found[3]]
    if exact is None or exact != int(exact):
        msg = f"{text!r} is not a whole number; write it as 200000, 200k or 5M"
        raise ValueError(msg)
    if not 1 <= exact <= MOST_TOKENS:
        msg = f"{text!r} must be from 1 to {format_count(MOST_TOKENS)}"
        raise ValueError(msg)
    return int(exact)


def format_count(count: int) -> str:
    """Write a whole number the way `parse_count` reads it, as short as it can be."""
    for suffix in ("M", "k"):
        factor = _FACTORS[suffix]
        if count >= factor and count % (factor // 1000) == 0:
            whole, rest = divmod(count, factor)
            digits = f"{rest * 1000 // factor:03d}".rstrip("0")
            return f"{whole}.{digits}{suffix}" if digits else f"{whole}{suffix}"
    return str(count)


def parse_usd(text: str) -> int:
    """Read an amount of US dollars, such as ``20`` or ``0.000001``.

    Returns:
        Micro-dollars, more than 0.

    Raises:
        ValueError: With a clause that says what an amount looks like.
    """
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount.as_tuple().digits == ():
        msg = f"{text!r} is no amount of US dollars; write it as 20 or 2.50"
        raise ValueError(msg)
    if not 0 < amount <= MOST_MICRO_USD // _MICRO:
        msg = f"{text!r} must be more than 0 and at most {MOST_MICRO_USD // _MICRO} US dollars"
        raise ValueError(msg)
    micro = amount * _MICRO
    if micro != int(micro):
        msg = f"{text!r} is finer than a millionth of a dollar"
        raise ValueError(msg)
    return int(micro)


def format_usd(micro_usd: int) -> str:
    """Write micro-dollars as dollars: cents at least, and no digit that is not there."""
    whole, rest = divmod(micro_usd, _MICRO)
    digits = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{digits}"
