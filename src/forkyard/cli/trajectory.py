"""An agent's transcript for people: what it said and did, and what it claims."""

from __future__ import annotations

import json
from collections.abc import Mapping

from forkyard.cli.output import clean, say, style

_SHOWN = 2000
"""Characters of one text; the file has them whole."""

Fields = Mapping[str, object]


def show_trajectory(content: bytes) -> None:
    """Write a trajectory file for people."""
    document = json.loads(content)
    for step in document["steps"]:
        if step["kind"] == "message":
            say(style(f"{clean(str(step['role']))}:", bold=True))
            _show(step["text"])
        else:
            say(style(f"{clean(str(step['tool']))}{_end(step)}", bold=True))
            _show(step["input"])
            _show(step["output"])
    _show_ends(document)


def _end(step: Fields) -> str:
    parts = []
    if step["exit_status"] is not None:
        parts.append(f"exit {step['exit_status']}")
    elif step["is_error"]:
        parts.append("failed")
    if step["milliseconds"] is not None:
        parts.append(f"{step['milliseconds']} ms")
    return f" ({', '.join(parts)})" if parts else ""


def _show(text: object) -> None:
    whole = str(text)
    cut = whole if len(whole) <= _SHOWN else f"{whole[:_SHOWN]}... [{len(whole)} characters]"
    for line in cut.splitlines():
        say(f"  {clean(line)}")


def _show_ends(document: Fields) -> None:
    claims, seen = document["claims"], document["observed"]
    say()
    for title, fields in (("The agent claims", claims), ("Observed", seen)):
        if not isinstance(fields, dict):
            continue
        told = [
            f"{name.replace('_', ' ')}: {clean(str(value))}"
            for name, value in fields.items()
            if value is not None and name != "final_text"
        ]
        say(f"{style(title, bold=True)}  {'; '.join(told)}")
    skipped = document["skipped_lines"]
    if skipped:
        say(f"{skipped} lines were not understood; `forkyard logs ATTEMPT` has them")
