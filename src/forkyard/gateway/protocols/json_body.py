"""Strict JSON: what two parsers could read in two ways is refused, so nothing can hide in it."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn, TypeAlias

from forkyard.gateway.protocols.refusal import RequestError

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = dict[str, Json]

MOST_DEPTH = 64
MOST_MARKS = 200_000
"""Of commas and opening brackets outside of texts: a conversation of a million tokens has fewer.
A value costs some microseconds and a hundred bytes, so a body full of them costs minutes and
gigabytes otherwise."""
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""Also one that never ends: that is found once, not again from each quote within it."""
MOST_DIGITS = 32
"""Of one whole number; every number that an API knows has fewer."""


def marks(body: bytes) -> int:
    """Bound the number of values in a body, without parsing it; those in texts count too."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _has_too_many_marks(body: bytes) -> bool:
    """Count only those outside of texts; step by step, so that others have their turn."""
    found = end = 0
    for texts, text in enumerate(_TEXT.finditer(body)):
        found += marks(body[end : text.start()])
        end = text.end()
        if found > MOST_MARKS or texts > 2 * MOST_MARKS:  # no JSON has more texts than that
            return True
    return found + marks(body[end:]) > MOST_MARKS


def parse(body: bytes) -> JsonObject:
    """Read a request's body.

    Raises:
        RequestError: It is not one JSON object in UTF-8, repeats a key, nests deeper than
            `MOST_DEPTH`, has more values than `MOST_MARKS`, or holds a number that no API has.
    """
    if marks(body) > MOST_MARKS and _has_too_many_marks(body):
        raise RequestError(f"its body has more than {MOST_MARKS} commas and brackets")
    try:
        found: Json = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=_number,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise RequestError(f"its body is no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise RequestError(f"its body is no JSON at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(found, dict):
        raise RequestError("its body is no JSON object")
    _measure(found)
    return found


def write(value: JsonObject) -> bytes:
    """Write a body, compact and in the order that it was read in: prompt caches depend on it.

    Raises:
        RequestError: A text holds half of a surrogate pair, which no UTF-8 can carry.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError("a text in its body holds half of a surrogate pair") from None


def read_again(body: bytes) -> JsonObject:
    """Read what `write` wrote."""
    found: Json = json.loads(body)
    return found if isinstance(found, dict) else {}


def _object(pairs: list[tuple[str, Json]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RequestError("an object in its body has the same key twice")
    return found


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise RequestError(f"its body holds a number of {len(digits)} digits")
    return int(digits)


def _number(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        raise RequestError("its body holds a number that is too large")
    return found


def _constant(name: str) -> NoReturn:
    raise RequestError(f"its body holds {name}, which is no JSON")


def _measure(top: JsonObject) -> None:
    level: list[Json] = [top]
    for _ in range(MOST_DEPTH):
        below: list[Json] = []
        for one in level:
            inside = one.values() if isinstance(one, dict) else one
            if isinstance(inside, str | int | float | None):
                continue
            below += [each for each in inside if isinstance(each, dict | list)]
        if not below:
            return
        level = below
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(f"its body nests deeper than {MOST_DEPTH} levels")
