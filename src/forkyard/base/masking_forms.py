r"""The shapes in which a secret may come out: plain, escaped, percent-encoded, hex, base64.

A form is a row of steps, each a choice of a few byte strings. So one form covers every mixture:
each character of a value may be itself, ``%2D``, ``\u002d``, ``\x2d`` or ``&amp;``; hexadecimal
digits may stand apart; base64 may start at any of its three alignments, be of either alphabet and
be wrapped into lines.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import product

PREFIX_BYTES = 3
"""By so many bytes a place is told from all others before anything else is looked at."""

LEAST_LINE = 16
"""Lines of a value that has several are looked for by themselves from this length on."""

Step = tuple[bytes, ...]

_SHORT_ESCAPES = {
    '"': (b'\\"',),
    "\\": (b"\\\\",),
    "/": (b"\\/",),
    "'": (b"\\'",),
    "\n": (b"\r\n", b"\\n", b"\\r\\n", b"%0D%0A", b"%0d%0a"),
    "\r": (b"\\r",),
    "\t": (b"\\t",),
    "\b": (b"\\b",),
    "\f": (b"\\f",),
    " ": (b"+",),
}
_ENTITIES = {
    "&": (b"&amp;",),
    "<": (b"&lt;",),
    ">": (b"&gt;",),
    '"': (b"&quot;", b"&#34;"),
    "'": (b"&#39;", b"&#x27;"),
}
_LINE_ENDS = (b"", b"\n", b"\r\n", b"\\n", b"\\r\\n", b"%0A", b"%0D%0A")
_BETWEEN_DIGITS = (b"", b" ", b":", b"-", b"\n", b"\r\n", b"\\n")
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PADDING = (b"=", b"%3D", b"%3d", b"\\u003d", b"\\u003D")


class Form:
    """One shape of one secret."""

    def __init__(self, name: str, steps: Iterable[Step]) -> None:
        """Take the steps in their order.

        Args:
            name: Of the secret.
            steps: Each with the byte strings that may stand there; an empty one: optional.
        """
        self.name = name
        self._steps = tuple(steps)
        self.longest = sum(max(map(len, step)) for step in self._steps)

    @cached_property
    def _regex(self) -> re.Pattern[bytes]:
        # Made when the form's beginning is first seen, which for most never happens.
        return re.compile(b"".join(_choice(step) for step in self._steps), re.DOTALL)

    def prefixes(self) -> set[bytes]:
        """Give every way to begin, cut to PREFIX_BYTES."""
        found: set[bytes] = {b""}
        for step in self._steps:
            if all(len(one) >= PREFIX_BYTES for one in found):
                break
            found = {
                one if len(one) >= PREFIX_BYTES else (one + more)[:PREFIX_BYTES]
                for one, more in product(found, step)
            }
        return found

    def is_at(self, buffer: bytes, position: int) -> bool:
        """Say whether the whole form stands at a position: quick, and silent on its length."""
        return self._regex.match(buffer, position) is not None

    def match(self, buffer: bytes, position: int) -> tuple[int | None, bool]:
        """Match at a position.

        Returns:
            Where the longest match ends (None: there is none), and whether more bytes after the
            buffer's end could change that.
        """
        is_open = False
        end = len(buffer)
        places = {position}
        for step in self._steps:
            following = set()
            for place in places:
                for choice in step:
                    if buffer.startswith(choice, place):
                        following.add(place + len(choice))
                    elif place + len(choice) > end and choice.startswith(buffer[place:]):
                        is_open = True
            if not following:
                return None, is_open
            places = following
        return max(places), is_open


def forms_of(name: str, value: str) -> Iterator[Form]:
    """Give every form of a secret's value, and of the longer lines of one with several."""
    value = value.strip()
    yield Form(name, [_character(one) for one in value])
    content = value.encode()
    yield Form(name, _hexadecimal(content))
    for before in range(3):
        yield Form(name, _base64(content, before))
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        for line in lines:
            # The first and last line of a key in PEM are no secret.
            if len(line) >= LEAST_LINE and not line.startswith("-----"):
                yield Form(name, [_character(one) for one in line])


@lru_cache(maxsize=4096)
def _character(one: str) -> Step:
    raw = one.encode()
    units = one.encode("utf-16-be").hex()
    escaped = ["".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))]
    escaped.append("".join(f"%{byte:02x}" for byte in raw))
    escaped.append("".join(f"\\x{byte:02x}" for byte in raw))
    ways = [raw, *(text.encode() for text in escaped)]
    ways += ["".join(f"\\u{units[at : at + 4].upper()}" for at in range(0, len(units), 4)).encode()]
    ways += ["".join(f"%{byte:02X}" for byte in raw).encode()]
    ways += ["".join(f"\\x{byte:02X}" for byte in raw).encode()]
    ways += [*_SHORT_ESCAPES.get(one, ()), *_ENTITIES.get(one, ())]
    return tuple(dict.fromkeys(ways))


def _hexadecimal(content: bytes) -> Iterator[Step]:
    for number, byte in enumerate(content):
        if number:
            yield _BETWEEN_DIGITS
        yield tuple(dict.fromkeys((b"%02x" % byte, b"%02X" % byte)))


def _base64(content: bytes, before: int) -> Iterator[Step]:
    """Give the characters that depend on the value only, then what its last bits may become."""
    padded = bytes(before) + content
    bits = 8 * len(padded)
    characters = base64.b64encode(padded)[: bits // 6]
    depend_on_others = -(-8 * before // 6)
    for number, character in enumerate(characters[depend_on_others:]):
        if number:
            yield _LINE_ENDS
        yield _letter(character)
    left = bits % 6
    if left:
        # The last character's high bits are the value's, its low bits those of what follows.
        high = (padded[-1] & ((1 << left) - 1)) << (6 - left)
        possible = [_letter(_ALPHABET[high + low]) for low in range(1 << (6 - left))]
        ended = [
            first + sign * (1 if left == 4 else 2)  # noqa: PLR2004 - two bytes of three: one sign
            for first in possible[0]
            for sign in _PADDING
        ]
        yield (b"", *ended, *(one for step in possible for one in step))


@lru_cache(maxsize=128)
def _letter(character: int) -> Step:
    one = bytes((character,))
    match one:
        case b"+":
            return (b"+", b"-", b"%2B", b"%2b", b"\\u002b", b"\\u002B")
        case b"/":
            return (b"/", b"_", b"%2F", b"%2f", b"\\/", b"\\u002f", b"\\u002F")
        case _:
            return (one,)


def _choice(step: Step) -> bytes:
    if len(step) == 1:
        return re.escape(step[0])
    return b"(?:" + b"|".join(re.escape(one) for one in step) + b")"
