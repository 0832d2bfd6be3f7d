"""The provider's own ledger: what it billed, one JSON line a request, and what it saw of each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from scripted_model.scenario import Usage
from scripted_model.shapes import an_object, number, text


def fingerprint(key: str) -> str:
    """Name a key without telling it; the empty key has the empty name."""
    return hashlib.sha256(key.encode()).hexdigest()[:16] if key else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """One request, and what it cost."""

    at: float
    """Seconds since the epoch, when its answer began."""
    api: str
    """anthropic, responses, chat or gemini; empty for what costs nothing."""
    method: str
    path: str
    model: str
    scenario: str
    turn: int | None
    """None: a request on the side."""
    is_streaming: bool
    status: int | None
    """None: cut before the first byte."""
    outcome: str
    """complete, cut (by a fault) or client-gone."""
    fault: str
    """The name of the fault that fired; empty: none."""
    sent: int
    """Events."""
    usage: Usage
    """What is billed; all 0 for an error."""
    micro_usd: int
    key: str
    """Fingerprint."""
    header_names: tuple[str, ...]
    tools: tuple[str, ...]
    calls: tuple[str, ...]
    """Names of the tools that were called."""
    most_output: int | None
    body_bytes: int


class Ledger:
    """An append-only file; a line is with the kernel when `add` returns."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def add(self, bill: Bill) -> None:
        """Write one line."""
        line = json.dumps(asdict(bill), separators=(",", ":")).encode() + b"\n"
        os.write(self._descriptor, line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_bills(path: Path) -> tuple[Bill, ...]:
    """Read a ledger; a line that is just being written is left out."""
    if not path.exists():
        return ()
    lines = path.read_bytes().split(b"\n")[:-1]
    return tuple(_bill(line) for line in lines)


def total(bills: Iterable[Bill]) -> Usage:
    """Add up what was billed."""
    every = [one.usage for one in bills]
    return Usage(
        input=sum(one.input for one in every),
        cache_read=sum(one.cache_read for one in every),
        cache_write=sum(one.cache_write for one in every),
        cache_write_long=sum(one.cache_write_long for one in every),
        output=sum(one.output for one in every),
        reasoning=sum(one.reasoning for one in every),
    )


def _bill(line: bytes) -> Bill:
    row = an_object(json.loads(line))
    usage = {name: number(value) for name, value in an_object(row["usage"]).items()}
    at, turn, status, most = row["at"], row["turn"], row["status"], row["most_output"]
    return Bill(
        at=at if isinstance(at, float) else 0.0,
        api=text(row["api"]),
        method=text(row["method"]),
        path=text(row["path"]),
        model=text(row["model"]),
        scenario=text(row["scenario"]),
        turn=turn if isinstance(turn, int) else None,
        is_streaming=bool(row["is_streaming"]),
        status=status if isinstance(status, int) else None,
        outcome=text(row["outcome"]),
        fault=text(row["fault"]),
        sent=number(row["sent"]),
        usage=Usage(**usage),
        micro_usd=number(row["micro_usd"]),
        key=text(row["key"]),
        header_names=_strings(row["header_names"]),
        tools=_strings(row["tools"]),
        calls=_strings(row["calls"]),
        most_output=most if isinstance(most, int) else None,
        body_bytes=number(row["body_bytes"]),
    )


def _strings(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
