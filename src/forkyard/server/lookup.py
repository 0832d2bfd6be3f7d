"""Finding what a person meant: a whole id, a name, or an abbreviation that fits one thing only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from forkyard.errors import ConflictError, NotFoundError

SHORTEST_ABBREVIATION = 4
"""Hexadecimal digits; fewer fit too much by accident."""

_HEXADECIMAL = frozenset("0123456789abcdef")

T = TypeVar("T")


def find(
    kind: str,
    text: str,
    things: Mapping[str, T],
    *,
    prefix: str,
    names: Mapping[str, str] | None = None,
    hint: str | None = None,
) -> T:
    """Find one thing by name, whole id, or unique abbreviation of its id.

    Args:
        kind: The word for it in messages, such as ``workspace``.
        text: What the person typed.
        things: Candidates by id.
        prefix: Of the ids, such as ``ws``.
        names: Name -> id, where things of this kind have names.
        hint: How to list them.

    Raises:
        NotFoundError: Nothing fits.
        ConflictError: An abbreviation fits several.
    """
    if names is not None and text in names and names[text] in things:
        return things[names[text]]
    if text in things:
        return things[text]
    fitting = sorted(_fitting(text, things, prefix))
    if not fitting:
        reason = f"no such {kind}"
        if 0 < len(_digits(text, prefix)) < SHORTEST_ABBREVIATION:
            reason += f", and an abbreviation needs {SHORTEST_ABBREVIATION} digits or more"
        raise NotFoundError(f"cannot find {kind} {text!r}: {reason}", hint=hint)
    if len(fitting) > 1:
        shown = ", ".join(fitting[:4]) + (", ..." if len(fitting) > 4 else "")  # noqa: PLR2004 - as many as are shown
        raise ConflictError(
            f"cannot tell which {kind} {text!r} means: it fits {len(fitting)} of them ({shown})",
            hint="Give more digits.",
        )
    return things[fitting[0]]


def _digits(text: str, prefix: str) -> str:
    digits = text.removeprefix(f"{prefix}_")
    return digits if _HEXADECIMAL.issuperset(digits) else ""


def _fitting(text: str, ids: Iterable[str], prefix: str) -> list[str]:
    digits = _digits(text, prefix)
    if len(digits) < SHORTEST_ABBREVIATION:
        return []
    return [one for one in ids if one.startswith(f"{prefix}_{digits}")]
