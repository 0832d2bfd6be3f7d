"""Writing for people and for programs. Text of agents never reaches a terminal as it is.

Results go to stdout, progress to stderr. A control character in a file name, a test's name or an
agent's output could move the cursor, change the title or paste into a shell: it is shown escaped.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import unicodedata
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import BinaryIO

import click

# Control, format (bidirectional overrides, zero width), surrogate, private, line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")


def clean(text: str, *, keep: str = "") -> str:
    """Escape every character that is not plainly visible, apart from those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one if one in keep or unicodedata.category(one) not in _UNSAFE else _escape(one)
        for one in text
    )


def _escape(one: str) -> str:
    number = ord(one)
    if number < 0x100:  # noqa: PLR2004 - two hexadecimal digits
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(one, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x1_0000 else f"\\U{number:08x}"  # noqa: PLR2004 - four hexadecimal digits


def clean_output(text: str) -> str:
    """Escape a command's output: lines, tabs and colours stay, nothing else that acts."""
    parts: list[str] = []
    position = 0
    for found in _COLOUR.finditer(text):
        parts.append(clean(text[position : found.start()], keep="\n\t"))
        parts.append(found.group())
        position = found.end()
    parts.append(clean(text[position:], keep="\n\t"))
    return "".join(parts).replace("\\r\n", "\n")


def is_terminal(stream: object) -> bool:
    """Say whether a person watches a stream, and wants it to move."""
    is_a_tty = getattr(stream, "isatty", lambda: False)
    return bool(is_a_tty()) and os.environ.get("TERM") != "dumb" and "CI" not in os.environ


def style(text: str, **options: bool | str) -> str:
    """Colour a text where stdout is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, **options)  # type: ignore[arg-type]


def say(text: str = "") -> None:
    """Write a line of the result."""
    click.echo(text)


def progress(text: str) -> None:
    """Write a line of progress."""
    click.echo(clean(text), err=True)


def as_json(value: object) -> None:
    """Write one JSON value as one line; models are written as they came over the wire."""
    click.echo(json.dumps(plain(value), ensure_ascii=True))


def plain(value: object) -> object:
    """Give the plain form of models and lists of them."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write columns, each as wide as its widest cell."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    if not cleaned:
        return
    widths = [
        max(width(row[column]) for row in [list(head), *cleaned]) for column in range(len(head))
    ]
    say(style(_line(head, widths), bold=True))
    for row in cleaned:
        say(_line(row, widths))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (wide - width(cell)) for cell, wide in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def width(text: str) -> int:
    """Count the columns a text takes on a terminal."""
    return sum(
        0
        if unicodedata.combining(one)
        else 2
        if unicodedata.east_asian_width(one) in {"W", "F"}
        else 1
        for one in text
    )


def short(identity: str) -> str:
    """Shorten an id to what people type."""
    prefix, _, digits = identity.partition("_")
    return f"{prefix}_{digits[:8]}" if digits else identity


def size_of(count: int | None) -> str:
    """Write a number of bytes for people."""
    if count is None:
        return "-"
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def age(moment: str) -> float:
    """Say how long ago a moment was, in seconds."""
    from datetime import UTC, datetime  # noqa: PLC0415 - light commands need no calendar

    return max(0.0, (datetime.now(tz=UTC) - datetime.fromisoformat(moment)).total_seconds())


def seconds(value: float | None) -> str:
    """Write a time span for people."""
    if value is None:
        return "-"
    if value < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def bytes_out(content: bytes, stream: BinaryIO | None = None) -> None:
    """Write a command's output: byte for byte into files and pipes, escaped on a terminal."""
    target = stream if stream is not None else sys.stdout.buffer
    if target.isatty():
        content = clean_output(content.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "backslashreplace"
        )
    target.write(content)
    target.flush()


class Out:
    """Where a command's output goes as it comes: as `bytes_out` does, whole lines on a terminal."""

    def __init__(self, target: BinaryIO) -> None:
        """Write to a stream."""
        self._target = target
        self._is_terminal = target.isatty()
        self._waiting = b""

    async def write(self, chunk: bytes) -> None:
        """Write a piece; a reader that is slow keeps nothing else waiting."""
        if not self._is_terminal:
            await asyncio.to_thread(bytes_out, chunk, self._target)
            return
        lines, newline, self._waiting = (self._waiting + chunk).rpartition(b"\n")
        bytes_out(lines + newline, self._target)

    def finish(self) -> None:
        """Write a last line that has no end."""
        if self._waiting:
            bytes_out(self._waiting, self._target)
            self._waiting = b""


async def stream_out(chunks: AsyncIterator[bytes], stream: BinaryIO | None = None) -> None:
    """Write a stream as `bytes_out` does, whole lines at a time on a terminal."""
    target = stream if stream is not None else sys.stdout.buffer
    waiting = b""
    async for chunk in chunks:
        if not target.isatty():
            bytes_out(chunk, target)
            continue
        waiting += chunk
        lines, newline, waiting = waiting.rpartition(b"\n")
        bytes_out(lines + newline, target)
    if waiting:
        bytes_out(waiting, target)


def tokens(value: int | None) -> str:
    """Write a number of tokens, short."""
    if value is None:
        return "-"
    for size, suffix in ((1_000_000, "M"), (1000, "k")):
        if value >= size:
            return f"{value / size:.1f}{suffix}"
    return str(value)


def usd(value: float | None) -> str:
    """Write an amount in US dollars: cents, or finer where there is less than one."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.6f}".rstrip("0")  # noqa: PLR2004 - cents say enough from here on
