"""What the helpers answer, checked and turned into values."""

from __future__ import annotations

from dataclasses import dataclass

from forkyard.candidate.trees import Entry
from forkyard.candidate.walker_main import raw
from forkyard.errors import InternalError

Answer = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """One changed path, as the walk found it."""

    path: bytes
    old: Entry | None
    new: Entry | None
    size: int


def _wrong(name: str) -> InternalError:
    return InternalError(f"cannot read a helper's answer: {name} is not of the agreed shape")


def number(value: object, name: str) -> int:
    """Give a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name)
    return value


def word(value: object, name: str) -> str:
    """Give a text."""
    if not isinstance(value, str):
        raise _wrong(name)
    return value


def optional_word(value: object, name: str) -> str | None:
    """Give a text or None."""
    return None if value is None else word(value, name)


def rows(answer: Answer, name: str, width: int) -> list[list[object]]:
    """Give a list of rows of one width."""
    value = answer.get(name)
    if not isinstance(value, list):
        raise _wrong(name)
    for row in value:
        if not isinstance(row, list) or len(row) != width:
            raise _wrong(name)
    return value


def words(answer: Answer, name: str) -> tuple[str, ...]:
    """Give a list of texts."""
    value = answer.get(name)
    if not isinstance(value, list):
        raise _wrong(name)
    return tuple(word(item, name) for item in value)


def pairs(answer: Answer, name: str) -> tuple[tuple[str, str], ...]:
    """Give rows of two texts."""
    return tuple((word(a, name), word(b, name)) for a, b in rows(answer, name, 2))


def sizes(answer: Answer, name: str) -> tuple[tuple[str, int], ...]:
    """Give rows of a text and a number."""
    return tuple((word(a, name), number(b, name)) for a, b in rows(answer, name, 2))


def counts(answer: Answer, name: str) -> dict[str, int]:
    """Give a map from text to number."""
    value = answer.get(name)
    if not isinstance(value, dict):
        raise _wrong(name)
    return {word(key, name): number(count, name) for key, count in value.items()}


def changes(answer: Answer) -> tuple[Changed, ...]:
    """Give the changed paths of a `take`, in order of path."""

    def entry(mode: object, oid: object) -> Entry | None:
        if mode is None:
            return None
        return Entry(number(mode, "mode"), bytes.fromhex(word(oid, "blob")))

    return tuple(
        Changed(
            path=raw(word(path, "path")),
            old=entry(old_mode, old_oid),
            new=entry(new_mode, new_oid),
            size=number(size, "size"),
        )
        for path, old_mode, new_mode, old_oid, new_oid, size in rows(answer, "changes", 6)
    )
