"""Files that honest changes and test runners' settings share: the settings as the base has them.

A candidate may add a dependency to ``pyproject.toml``; it may not tell pytest there which plugins
to load. So the judge's fork gets the candidate's file with the base's settings in it. What cannot
be read is left as it is: the runner cannot read it either. Standard library only.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from datetime import date, datetime, time

MIXED_FILES = ("pyproject.toml", "package.json")

MOST_BYTES = 1024**2
"""No honest one is larger; one that is, is put back whole."""

Table = dict[str, object]
_Path = tuple[str, ...]

_TOML = re.compile(
    r"tool\.(?:pytest.*|coverage|tox|nox|poe|taskipy|hatch\.(?:envs|scripts)|pdm\.scripts"
    r"|rye\.scripts|pixi\.tasks|pixi\.feature)"
)
_JSON = re.compile(
    r"scripts|jest|mocha|ava|c8|nyc|tap|vitest|karma|jasmine|wtr|playwright|babel|wireit|nx|turbo"
    r"|pre-commit|husky"
)
"""Keys, joined by dots, that decide what runs when the project is tested."""

_DEPTH = 3


def with_base_settings(name: str, now: bytes | None, base: bytes | None) -> bytes | None:
    """Give a mixed file's content with the settings of the base.

    Args:
        name: Its last name.
        now: What the candidate has; None where it has no such file.
        base: What the base has; None where it has none.

    Returns:
        The content for the judge; None where there is to be no file. The very same bytes as
        `now` where the settings are the base's already, or cannot be read.
    """
    if now is not None and len(now) > MOST_BYTES:
        return base
    read, write, keys = _FORMATS[name]
    try:
        mine = {} if now is None else read(now)
        before = {} if base is None else read(base)
        wanted = dict(_settings(before, keys))
        if dict(_settings(mine, keys)) == wanted:
            return now
        for path in [path for path, _ in _settings(mine, keys)]:
            _remove(mine, path)
        for path, value in wanted.items():
            _set(mine, path, value)
        content = write(mine)
        if read(content) != mine:
            return base
    except (ValueError, RecursionError, TypeError):
        return now
    return content


def _settings(table: Table, keys: re.Pattern[str]) -> Iterable[tuple[_Path, object]]:
    """Give the parts of a table whose dotted keys match, outermost first."""
    pending: list[tuple[_Path, object]] = [((), table)]
    while pending:
        path, value = pending.pop()
        if path and keys.fullmatch(".".join(path)):
            yield path, value
        elif isinstance(value, dict) and len(path) < _DEPTH:
            pending.extend(((*path, str(key)), below) for key, below in value.items())


def _remove(table: Table, path: _Path) -> None:
    *above, last = path
    for key in above:
        below = table.get(key)
        if not isinstance(below, dict):
            return
        table = below
    table.pop(last, None)


def _set(table: Table, path: _Path, value: object) -> None:
    *above, last = path
    for key in above:
        below = table.get(key)
        if not isinstance(below, dict):
            # The candidate put something else in the place of a table that holds settings.
            below = table[key] = {}
        table = below
    table[last] = value


def _read_json(content: bytes) -> Table:
    # As node reads it: without a byte order mark, the last of equal keys counts.
    loaded = json.loads(content.decode("utf-8").removeprefix("\ufeff"))
    if not isinstance(loaded, dict):
        raise TypeError("not an object")
    return loaded


def _write_json(table: Table) -> bytes:
    return json.dumps(table, indent=2, ensure_ascii=True).encode() + b"\n"


def _read_toml(content: bytes) -> Table:
    return tomllib.loads(content.decode("utf-8"))


def _write_toml(table: Table) -> bytes:
    # Everything below the top as inline tables: nobody but a parser reads it.
    return "".join(f"{_text(key)} = {_value(value)}\n" for key, value in table.items()).encode()


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case int() | float():
            return repr(value)
        case datetime() | date() | time():
            return value.isoformat()
        case list():
            return "[" + ", ".join(_value(one) for one in value) + "]"
        case dict():
            rows = (f"{_text(key)} = {_value(one)}" for key, one in value.items())
            return "{" + ", ".join(rows) + "}"
        case _:
            raise TypeError(f"no TOML value: {value!r}")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_FORMATS: dict[str, tuple[Callable[[bytes], Table], Callable[[Table], bytes], re.Pattern[str]]] = {
    "pyproject.toml": (_read_toml, _write_toml, _TOML),
    "package.json": (_read_json, _write_json, _JSON),
}
