"""A template file's ``vars``: named values with defaults, put in where ``{{ vars.NAME }}`` stands.

The form is this long so that nothing in a ``run:`` block is taken for it: neither a shell's
``$HOME`` and ``${X}``, nor a Go template's ``{{ .X }}``, nor ``${{ vars.X }}`` of a CI file. It is
replaced in values after the YAML was read: a value can add no key, and every line stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from forkyard.wire.fields import Problems, Section, did_you_mean, kind
from forkyard.wire.yaml import Node, Path

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
KEY = "vars"

_USE = re.compile(r"(?<!\$)\{\{ *vars\.([A-Za-z0-9_.-]+) *\}\}", re.ASCII)
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)

Value = str | int | bool


def read_vars(section: Section, given: Mapping[str, str]) -> dict[str, Value]:
    """Read names and defaults, and put the given values in their place.

    Args:
        section: The `spec`.
        given: Values of one build or run, as text; each takes the type of its default.

    Returns:
        Every name with the value that holds. What is wrong is noted.
    """
    below = section.section(KEY)
    values: dict[str, Value] = {}
    if below is not None:
        for name, node in below.values.items():
            below.asked.add(name)
            if NAME.fullmatch(name) is None:
                below.problem(name, f"{name!r} is no name: use letters, digits and '_'")
            elif isinstance(node.value, str | int):
                values[name] = node.value
            else:
                below.problem(
                    name, f"must be text, a whole number or a flag, not {kind(node.value)}"
                )
    for name, text in given.items():
        if name not in values:
            what = f"{name!r} is no variable of this template{did_you_mean(name, values)}"
            section.problems.add(what, path=(KEY, name))
            continue
        found = _like(values[name], text)
        if found is None:
            wanted = "true or false" if isinstance(values[name], bool) else "a whole number"
            section.problems.add(
                f"must be {wanted} as its default is, not {text[:40]!r}", path=(KEY, name)
            )
        else:
            values[name] = found
    return values


def read_values(section: Section) -> tuple[tuple[str, str], ...]:
    """Read the `vars` of a task file: which values a template is to be built with."""
    below = section.section(KEY)
    found: list[tuple[str, str]] = []
    for name, node in () if below is None else below.values.items():
        if below is not None and not isinstance(node.value, str | int):
            below.problem(name, f"must be text, a whole number or a flag, not {kind(node.value)}")
        elif isinstance(node.value, str | int):
            found.append((name, as_text(node.value)))
    return tuple(sorted(found))


def as_text(value: Value) -> str:
    """Write a value as it stands in a longer text, and on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def put_in(node: Node, values: Mapping[str, Value], problems: Problems, path: Path = ()) -> Node:
    """Give a node with every use of a variable replaced; unknown names are noted.

    A text that is one use and nothing else becomes the value itself, number or flag too.
    """
    if isinstance(node.value, dict):
        children = {
            key: child if not path and key == KEY else put_in(child, values, problems, (*path, key))
            for key, child in node.value.items()
        }
        return replace(node, value=children)
    if isinstance(node.value, list):
        return replace(
            node,
            value=[
                put_in(child, values, problems, (*path, index))
                for index, child in enumerate(node.value)
            ],
        )
    if not isinstance(node.value, str) or "{{" not in node.value:
        return node
    text = node.value
    for name in dict.fromkeys(_USE.findall(text)):
        if name not in values:
            what = f"{{{{ vars.{name} }}}} is not among the template's vars"
            problems.add(what + did_you_mean(name, values), line=node.line, path=("spec", *path))
    whole = _USE.fullmatch(text.strip())
    if whole is not None and whole[1] in values:
        return replace(node, value=values[whole[1]])
    return replace(
        node,
        value=_USE.sub(lambda use: as_text(values[use[1]]) if use[1] in values else use[0], text),
    )


def _like(default: Value, text: str) -> Value | None:
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text)
    if isinstance(default, int):
        return int(text) if _INTEGER.fullmatch(text) else None
    return text
