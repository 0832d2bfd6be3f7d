"""Reading a mapping key by key while collecting every problem, each with line and key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from forkyard.errors import ConfigError, Problem
from forkyard.wire import units
from forkyard.wire.yaml import Document, Node, Path

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
MAX_PROBLEMS = 100
MOST_ARGUMENT_BYTES = 128_000
"""Of one argument or variable: the kernel takes 128 KiB, its name and our wrapping included."""


@dataclass(slots=True)
class Problems:
    """What is wrong with one file so far."""

    file: str | None
    found: list[Problem] = field(default_factory=list)

    def add(self, message: str, *, line: int | None = None, path: Path = ()) -> None:
        """Note one more problem."""
        key = ".".join(str(part) for part in path) or None
        self.found.append(Problem(message=message, file=self.file, line=line, key=key))

    def raise_if_any(self) -> None:
        """Raise all of them at once, in the order of the file.

        Raises:
            ConfigError: There is at least one.
        """
        if not self.found:
            return
        ordered = sorted(self.found, key=lambda problem: problem.line or 0)
        shown = tuple(ordered[:MAX_PROBLEMS])
        count = len(ordered)
        thing = self.file or "the request"
        what = str(shown[0].message) if count == 1 else f"{count} problems"
        if count == 1 and shown[0].key:
            what = f"{shown[0].key}: {what}"
        hint = "Correct the lines named and try again."
        msg = f"cannot read {thing}: {what}"
        raise ConfigError(msg, hint=hint, problems=shown)


def argument_problem(text: str) -> str | None:
    """Say why a text cannot be given to a program as one argument or variable, or None."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MOST_ARGUMENT_BYTES:
        return (
            f"has {size} bytes, and a program takes {MOST_ARGUMENT_BYTES} at most; put the rest"
            " into a file of the repository"
        )
    return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give ``; did you mean X?`` where something known is close, else which are known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known here: {', '.join(names)}" if names else ""


def root_section(document: Document, problems: Problems) -> Section | None:
    """Open a document whose root must be a mapping."""
    value = document.root.value
    if isinstance(value, dict):
        return Section(value, (), document.root.line, problems)
    what = "the file is empty" if value is None else f"must be a mapping of keys, not {kind(value)}"
    problems.add(what, line=document.root.line)
    return None


def kind(value: object) -> str:
    """Name a value's type as a person would."""
    match value:
        case None:
            return "empty"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            short = value if len(value) <= 40 else value[:37] + "..."  # noqa: PLR2004 - one line
            return f"the text {short!r}"
        case list():
            return "a list"
        case _:
            return "a mapping"


class Section:
    """One mapping of the file; `finish` must be called once all known keys were asked for."""

    def __init__(
        self, values: Mapping[str, Node], path: Path, line: int, problems: Problems
    ) -> None:
        self.values = values
        self.path = path
        self.line = line
        self.problems = problems
        self.asked: set[str] = set()

    def has(self, key: str) -> bool:
        """Say whether the key is written, whatever its value."""
        return key in self.values

    def line_of(self, key: str) -> int:
        """Give the key's line, or the mapping's own where it is absent."""
        return self.values[key].line if key in self.values else self.line

    def problem(self, key: str | None, message: str) -> None:
        """Note a problem with one key, or with the mapping as a whole."""
        path = self.path if key is None else (*self.path, key)
        line = self.line if key is None else self.line_of(key)
        self.problems.add(message, line=line, path=path)

    def node(self, key: str, *, required: bool = False) -> Node | None:
        """Give a key's node; None (with a problem where required) when absent or empty."""
        self.asked.add(key)
        found = self.values.get(key)
        if found is None:
            if required:
                self.problem(key, "is missing")
            return None
        if found.value is None:
            self.problem(key, "is empty; give it a value or remove the key")
            return None
        return found

    def text(self, key: str, *, required: bool = False) -> str | None:
        """Read non-empty text."""
        found = self.node(key, required=required)
        if found is None:
            return None
        if not isinstance(found.value, str):
            self.problem(key, f"must be text, not {kind(found.value)}{_quote_it(found.value)}")
            return None
        if not found.value.strip():
            self.problem(key, "is empty; give it a value or remove the key")
            return None
        return found.value

    def argument(self, key: str, *, required: bool = False) -> str | None:
        """Read non-empty text that is given to a program whole."""
        found = self.text(key, required=required)
        if found is not None and (wrong := argument_problem(found)) is not None:
            self.problem(key, wrong)
            return None
        return found

    def name(self, key: str, *, required: bool = False) -> str | None:
        """Read a name: letters, digits, dot, dash and underscore."""
        found = self.text(key, required=required)
        if found is not None and NAME.fullmatch(found) is None:
            self.problem(key, f"{found!r} is no name: {NAME_RULE}")
            return None
        return found

    def choice(
        self, key: str, options: Iterable[str], unsupported: Mapping[str, str]
    ) -> str | None:
        """Read one of some words; words known but not supported yet are told apart from typos."""
        options = tuple(options)
        found = self.text(key)
        if found is None or found in options:
            return found
        if found in unsupported:
            self.problem(key, f"{found} is not supported yet{unsupported[found]}")
        else:
            self.problem(key, f"{found!r} is unknown{did_you_mean(found, options)}")
        return None

    def flag(self, key: str, *, default: bool) -> bool:
        """Read true or false."""
        found = self.node(key)
        if found is None:
            return default
        if not isinstance(found.value, bool):
            self.problem(key, f"must be true or false, not {kind(found.value)}")
            return default
        return found.value

    def integer(self, key: str, *, least: int, most: int, required: bool = False) -> int | None:
        """Read a whole number within bounds."""
        found = self.node(key, required=required)
        if found is None:
            return None
        if isinstance(found.value, bool) or not isinstance(found.value, int):
            self.problem(key, f"must be a whole number, not {kind(found.value)}")
            return None
        if not least <= found.value <= most:
            self.problem(key, f"is {found.value}, must be from {least} to {most}")
            return None
        return found.value

    def duration(self, key: str) -> float | None:
        """Read a duration such as 45m."""
        found = self.node(key)
        if found is None:
            return None
        if not isinstance(found.value, str):
            example = "such as 45m, 20s or 1h30m"
            self.problem(key, f"must be a duration {example}, not {kind(found.value)}")
            return None
        try:
            return units.parse_duration(found.value)
        except ValueError as error:
            self.problem(key, str(error))
            return None

    def count(self, key: str) -> int | None:
        """Read a whole number such as 200k or 5M."""
        return self._amount(key, units.parse_count, "a whole number such as 200k or 5M")

    def micro_usd(self, key: str) -> int | None:
        """Read an amount of US dollars; give micro-dollars."""
        return self._amount(key, units.parse_usd, "an amount of US dollars such as 20 or 2.50")

    def _amount(self, key: str, parse: Callable[[str], int], what: str) -> int | None:
        found = self.node(key)
        if found is None:
            return None
        if isinstance(found.value, bool) or not isinstance(found.value, int | float | str):
            self.problem(key, f"must be {what}, not {kind(found.value)}")
            return None
        try:
            return parse(str(found.value))
        except ValueError as error:
            self.problem(key, str(error))
            return None

    def section(self, key: str, *, required: bool = False) -> Section | None:
        """Open a mapping below."""
        found = self.node(key, required=required)
        if found is None:
            return None
        if not isinstance(found.value, dict):
            self.problem(key, f"must be a mapping, not {kind(found.value)}")
            return None
        return Section(found.value, (*self.path, key), found.line, self.problems)

    def sections(self, key: str, *, required: bool = False) -> tuple[Section, ...]:
        """Open a list of mappings."""
        opened: list[Section] = []
        for index, child in enumerate(self._list(key, required=required)):
            path = (*self.path, key, index)
            if isinstance(child.value, dict):
                opened.append(Section(child.value, path, child.line, self.problems))
            else:
                message = f"must be a mapping, not {kind(child.value)}"
                self.problems.add(message, line=child.line, path=path)
        return tuple(opened)

    def texts(self, key: str, check: Callable[[str], str | None]) -> tuple[str, ...]:
        """Read a list of texts; `check` gives what is wrong with one, or None."""
        values: list[str] = []
        for index, child in enumerate(self._list(key)):
            path = (*self.path, key, index)
            if not isinstance(child.value, str) or not child.value.strip():
                message = f"must be text, not {kind(child.value)}{_quote_it(child.value)}"
                self.problems.add(message, line=child.line, path=path)
                continue
            wrong = check(child.value)
            if wrong is not None:
                self.problems.add(wrong, line=child.line, path=path)
                continue
            values.append(child.value)
        return tuple(values)

    def variables(self, key: str, *, reserved: Mapping[str, str]) -> dict[str, str]:
        """Read a mapping of environment variables; reserved names map to the reason."""
        section = self.section(key)
        if section is None:
            return {}
        values: dict[str, str] = {}
        for name in section.values:
            if VARIABLE_NAME.fullmatch(name) is None:
                section.problem(name, f"{name!r} is no name of an environment variable")
            elif name in reserved:
                section.problem(name, reserved[name])
            else:
                node = section.values[name]
                if isinstance(node.value, str):
                    values[name] = node.value
                    if (wrong := argument_problem(node.value)) is not None:
                        section.problem(name, wrong)
                else:
                    found = f"{kind(node.value)}{_quote_it(node.value)}"
                    section.problem(name, f"must be text, not {found}")
        return values

    def finish(self, unsupported: Mapping[str, str] | None = None) -> None:
        """Refuse every key nobody asked for.

        Args:
            unsupported: Keys that exist elsewhere but not here yet -> what to do instead.
        """
        for key in self.values:
            if key in self.asked:
                continue
            if unsupported and key in unsupported:
                self.problem(key, f"is not supported yet{unsupported[key]}")
            else:
                self.problem(key, f"is an unknown key{did_you_mean(key, self.asked)}")

    def _list(self, key: str, *, required: bool = False) -> list[Node]:
        found = self.node(key, required=required)
        if found is None:
            return []
        if not isinstance(found.value, list):
            self.problem(key, f"must be a list, not {kind(found.value)}")
            return []
        return found.value


NAME_RULE = (
    "use letters, digits, '.', '-' and '_', starting with a letter or digit, 63 characters at most"
)


def _quote_it(value: object) -> str:
    return "; put it in quotes" if isinstance(value, bool | int | float) else ""
