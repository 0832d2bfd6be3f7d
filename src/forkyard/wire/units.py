"""Durations as people write them: ``45m``, ``20s``, ``1h30m``."""

from __future__ import annotations

import re

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
