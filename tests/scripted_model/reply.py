"""What one turn answers, before it is put in a provider's words; and what each API must offer."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scripted_model.scenario import Turn, Usage
from scripted_model.shapes import Object
from scripted_model.tools import Call, Tool, Toolbox

_CALL_ID = re.compile(r"_t(\d+)_\d+_")
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""How one of the agents is to be told that its work is done: by running an echo of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer, in the words of no provider."""

    id: str
    model: str
    text: str
    thinking: str
    calls: tuple[Call, ...]
    usage: Usage
    pieces: int
    is_cut: bool
    """The request allowed less output than the turn has."""


class Past(NamedTuple):
    """One step of a request's history: `call`, `round` (a call without an id), `text`, `user`."""

    kind: str
    call_id: str = ""


class Speaker(Protocol):
    """One API's words."""

    name: str

    def tools(self, body: Object) -> list[Tool]:
        """Read the tools that a request declares."""
        ...

    def history(self, body: Object) -> Iterator[Past]:
        """Read what was said before, in order."""
        ...

    def most_output(self, body: Object) -> int | None:
        """Read the limit that a request sets."""
        ...

    def told(self, usage: Usage) -> Usage:
        """Give the numbers as this API can tell them; that is what it bills."""
        ...

    def whole(self, reply: Reply) -> Object:
        """Answer in one piece."""
        ...

    def stream(self, reply: Reply, body: Object) -> Iterator[str]:
        """Answer in events."""
        ...

    def error(self, status: int, kind: str | None, message: str) -> Object:
        """Say what went wrong, with a status of its own."""
        ...

    def stream_error(self, kind: str | None, message: str) -> str:
        """Say what went wrong in a stream."""
        ...


def make_reply(
    turn: Turn,
    *,
    index: int,
    usage: Usage,
    most_output: int | None,
    tools: Iterable[Tool],
    working_directory: str | None,
    model: str,
    wants_submit: bool,
) -> Reply:
    """Play one turn with the tools that the agent has.

    Raises:
        UnplayableError: An action has no tool.
    """
    declared = list(tools)
    box = Toolbox(declared, working_directory)
    actions = turn.actions
    if not actions and wants_submit and declared:
        actions = ({"run": f"echo {SUBMIT}"},)
    calls = []
    for place, action in enumerate(actions):
        tool, arguments = box.play(action)
        suffix = f"_t{index}_{place}_{uuid.uuid4().hex[:12]}"
        calls.append(Call(suffix=suffix, tool=tool, arguments=arguments))
    return Reply(
        id=uuid.uuid4().hex[:20],
        model=model,
        text=turn.text,
        thinking=turn.thinking,
        calls=tuple(calls),
        usage=usage if most_output is None else usage.upto(most_output),
        pieces=turn.pieces,
        is_cut=most_output is not None and usage.output > most_output,
    )


def turn_index(history: Iterable[Past]) -> int:
    """Count the turns that a history holds."""
    index, has_text = 0, False
    for kind, call_id in history:
        if kind == "call":
            found = _CALL_ID.search(call_id)
            index, has_text = (int(found.group(1)) + 1 if found else index), False
        elif kind == "round" or (kind == "user" and has_text):
            index, has_text = index + 1, False
        elif kind == "text":
            has_text = True
    return index


def pieces_of(text: str, count: int) -> list[str]:
    """Cut a text into about so many pieces of a stream."""
    step = max(1, len(text) // count + (len(text) % count > 0))
    return [text[start : start + step] for start in range(0, len(text), step)]


def sse(data: Object | str, event: str | None = None) -> str:
    """Write one event of a stream."""
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
