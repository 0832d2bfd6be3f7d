"""Strict YAML: plain data only, each value with its line, and nothing that surprises.

Stricter than YAML 1.1 on purpose: only ``true`` and ``false`` are booleans (``on``, ``yes`` and
``no`` stay text), dates stay text, a key may appear once, tags and merge keys are refused, and
size, depth and what aliases expand to are bounded before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from forkyard.errors import ConfigError, Problem

MAX_BYTES = 1024**2
MAX_DEPTH = 32
MAX_NODES = 20_000
"""Counted with every alias expanded, so that ten short lines cannot stand for a billion values."""

Path = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_DECIMAL = re.compile(r"[-+]?[0-9]{1,17}\.[0-9]{1,17}", re.ASCII)
_PLAIN_TAG = "!"
_LOADER: type[yaml.CSafeLoader | yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value with the place it was written at."""

    value: str | int | float | bool | list[Node] | dict[str, Node] | None
    line: int
    """1-based; of the key where the value belongs to one."""
    count: int = 1
    """Values in it, itself included, aliases expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole file: its root and its name."""

    root: Node
    file: str | None = None

    @property
    def data(self) -> object:
        """The values alone, as dicts, lists and scalars."""
        return plain(self.root)

    def has(self, path: Path) -> bool:
        """Say whether the file says something at a path."""
        node: Node | None = self.root
        for part in path:
            node = None if node is None else _child(node, part)
        return node is not None

    def position(self, path: Path) -> int | None:
        """Give the line of the deepest part of a path that is really there."""
        node = self.root
        for part in path:
            below = _child(node, part)
            if below is None:
                break
            node = below
        return node.line


def plain(node: Node) -> object:
    """Give a node's value without positions."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def load(text: str, file: str | None = None) -> Document:
    """Read one YAML document.

    Args:
        text: The whole file.
        file: Its name, for messages.

    Returns:
        The document; an empty file has the value None.

    Raises:
        ConfigError: It is no YAML, or uses what is refused here; with line.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise _refusal(file, None, "the file is not UTF-8 text") from error
    if size > MAX_BYTES:
        raise _refusal(file, None, f"the file has {size} bytes, {MAX_BYTES} at most are accepted")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise _refusal(file, line, "there is a NUL character")
    builder = _Builder(file)
    try:
        root = builder.document(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context
        raise _refusal(file, mark.line + 1 if mark else None, f"not YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, max(error.position, 0)) + 1
        raise _refusal(file, line, "there is a character that YAML does not allow") from error
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        raise _refusal(file, None, f"not YAML: {error}") from error
    return Document(root=root, file=file)


def _refusal(file: str | None, line: int | None, message: str) -> ConfigError:
    problem = Problem(message=message, file=file, line=line)
    return ConfigError(
        f"cannot read {file or 'the text given'}: {message}",
        hint="Correct the file and try again.",
        problems=(problem,),
    )


def _child(node: Node, part: str | int) -> Node | None:
    if isinstance(node.value, dict) and isinstance(part, str):
        return node.value.get(part)
    if isinstance(node.value, list) and isinstance(part, int) and 0 <= part < len(node.value):
        return node.value[part]
    return None


class _Builder:
    """Builds nodes from parser events, so that limits strike before memory is spent."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.anchors: dict[str, Node | None] = {}
        self.made = 0

    def document(self, events: Iterator[Event]) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise _refusal(self.file, _line(event), "there is a second document")
                root = self._node(next(events), events, 0)
                end = next(events)
                if not isinstance(end, DocumentEndEvent):
                    raise _refusal(self.file, _line(end), "not YAML: unexpected content")
        return root or Node(value=None, line=1)

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise _refusal(self.file, line, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, AliasEvent):
            return self._alias(event, line)
        tag = getattr(event, "tag", None)
        if tag is not None and tag != _PLAIN_TAG:
            raise _refusal(self.file, line, f"tags such as {tag} are not accepted")
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self.anchors[anchor] = None
        self._count(1, line)
        if isinstance(event, MappingStartEvent):
            node = self._mapping(events, line, depth)
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(events, line, depth)
        elif isinstance(event, ScalarEvent):
            node = Node(value=self._scalar(event, line), line=line)
        else:
            raise _refusal(self.file, line, "not YAML: unexpected content")
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _alias(self, event: AliasEvent, line: int) -> Node:
        node = self.anchors.get(event.anchor or "")
        if node is None:
            raise _refusal(self.file, line, f"*{event.anchor} names no finished value")
        self._count(node.count, line)
        return node

    def _mapping(self, events: Iterator[Event], line: int, depth: int) -> Node:
        children: dict[str, Node] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key, at = self._key(event), _line(event)
            if key in children:
                first = children[key].line
                raise _refusal(self.file, at, f"{key!r} is given twice, first on line {first}")
            below = self._node(next(events), events, depth + 1)
            children[key] = Node(value=below.value, line=at, count=below.count)
        return Node(value=children, line=line, count=1 + sum(n.count for n in children.values()))

    def _key(self, event: Event) -> str:
        line = _line(event)
        if not isinstance(event, ScalarEvent) or event.tag not in {None, _PLAIN_TAG}:
            raise _refusal(self.file, line, "a key must be plain text")
        if event.anchor is not None:
            raise _refusal(self.file, line, "a key cannot carry an anchor")
        key = str(event.value)
        if key == "<<" and event.implicit[0]:
            raise _refusal(self.file, line, "merge keys (<<) are not accepted; write the keys out")
        self._check_text(key, line)
        return key

    def _sequence(self, events: Iterator[Event], line: int, depth: int) -> Node:
        children: list[Node] = []
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            children.append(self._node(event, events, depth + 1))
        return Node(value=children, line=line, count=1 + sum(n.count for n in children))

    def _scalar(self, event: ScalarEvent, line: int) -> str | int | float | bool | None:
        text = str(event.value)
        self._check_text(text, line)
        if not event.implicit[0]:  # quoted, or a block
            return text
        if text in {"", "~", "null"}:
            return None
        if text in {"true", "false"}:
            return text == "true"
        if _INTEGER.fullmatch(text):
            return int(text)
        if _DECIMAL.fullmatch(text):
            return float(text)
        return text

    def _check_text(self, text: str, line: int) -> None:
        if "\0" in text:
            raise _refusal(self.file, line, "there is a NUL character")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise _refusal(self.file, line, "there is half a surrogate pair, which is no text")

    def _count(self, number: int, line: int) -> None:
        self.made += number
        if self.made > MAX_NODES:
            raise _refusal(
                self.file, line, f"more than {MAX_NODES} values once aliases are expanded"
            )


def _line(event: Event) -> int:
    mark = event.start_mark
    return int(mark.line) + 1 if mark else 1
