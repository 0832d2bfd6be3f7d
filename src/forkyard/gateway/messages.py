"""What server and gateway say to each other: one JSON object a line over `run/gateway.sock`.

The server's first line, and the answer to it:

    {"op": "hello", "version": V}         {"version": V, "pid": N, "ledger": ID}

After that it asks with a number, which the answer repeats:

    {"id": N, "op": "configure", "settings": {...}, "keys": {SECRET: VALUE}}
    {"id": N, "op": "grant", "grant": {...}}
    {"id": N, "op": "revoke", "workspace": W}          -> the workspace's newest entries
    {"id": N, "op": "entries", "after": S, "limit": L} -> ledger entries
    {"id": N, "op": "prune", "copied": {...}}          -> how many entries are gone
    {"id": N, "op": "quit"}                            it settles everything, then ends

    {"id": N, "result": ...}   or   {"id": N, "error": {"code": C, "message": M, "hint": H}}

What runs spend comes unasked, newest state last: {"op": "status", "run": {...}}. A shim says
`listen` instead of `hello` (shim/protocol.py).
"""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import TypeAdapter

from forkyard.errors import ConfigError, ForkyardError, InternalError
from forkyard.shim.protocol import Message

Value = TypeVar("Value")


_adapters: dict[type[object], TypeAdapter[object]] = {}


def _adapter(kind: type[object]) -> TypeAdapter[object]:
    found = _adapters.get(kind)
    if found is None:
        found = _adapters[kind] = TypeAdapter(kind)
    return found


def read(kind: type[Value], content: object) -> Value:
    """Build a value of a dataclass from what JSON gave.

    Raises:
        ValueError: It does not fit.
    """
    found = _adapter(kind).validate_python(content)
    if not isinstance(found, kind):
        raise ValueError(f"not a {kind.__name__}")  # noqa: TRY004 - the peer's fault
    return found


def written(value: object) -> object:
    """Give a value in words of JSON."""
    found: object = _adapter(type(value)).dump_python(value, mode="json")
    return found


def written_error(error: ForkyardError) -> dict[str, object]:
    """Give an error in words of JSON."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def read_error(content: object) -> ForkyardError:
    """Build an error again; one of an unknown kind is an internal one."""
    if not isinstance(content, dict):
        return InternalError("cannot understand the gateway: its error is no object")
    kind = ForkyardError.by_code.get(str(content.get("code")), InternalError)
    hint = content.get("hint")
    message = str(content.get("message"))
    if kind is ConfigError:
        return ConfigError(message, hint=None if hint is None else str(hint))
    return kind(message, hint=None if hint is None else str(hint))


def message(line: bytes) -> Message:
    """Read one line.

    Raises:
        ValueError: It is no JSON object.
    """
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("a message is no object")  # noqa: TRY004 - the peer's fault
    return found


def read_keys(content: object) -> dict[str, str]:
    """Read keys by the names of their secrets; no error shows any of them.

    Raises:
        ValueError: They are something else.
    """
    if not isinstance(content, dict) or not all(isinstance(one, str) for one in content.values()):
        raise ValueError("keys are texts by name")
    return {str(name): value for name, value in content.items()}
