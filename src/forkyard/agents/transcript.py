"""Reading what an agent printed: lines of JSON by somebody who may mean harm.

Everything is bounded: the length of a line, the number of steps, the text that is kept. What
does not fit is cut or counted, never an error: a transcript is a claim, and a strange one must
not cost an attempt its result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from forkyard.agents.trajectory import Message, Step, ToolCall, Trajectory
from forkyard.model.budget import TokenCounts

LONGEST_LINE = 8 * 1024**2
LONGEST_TEXT = 64 * 1024
"""Characters of one message, input or output that are kept."""
MOST_TEXT = 16 * 1024**2
"""Characters of all of them."""
MOST_STEPS = 20_000
MOST_TOKENS = 2**53
CUT = " [cut]"

Fields = Mapping[str, object]


def objects(lines: Iterable[str], transcript: Transcript) -> Iterator[Fields]:
    """Give each line's JSON object; other lines are counted in the transcript."""
    for line in lines:
        if not line.strip():
            continue
        found = parse(line) if len(line) <= LONGEST_LINE else None
        if isinstance(found, dict):
            yield found
        else:
            transcript.skipped += 1


def parse(text: str) -> object:
    """Read JSON; None where it is none."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


def fields(value: object) -> Fields:
    """Give an object's fields; none where it is no object."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """Give a list's items; none where it is no list."""
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """Give a text that can be written anywhere; empty where it is none."""
    if not isinstance(value, str):
        return ""
    if len(value) > LONGEST_TEXT:
        value = value[: LONGEST_TEXT - len(CUT)] + CUT
    # Lone surrogates are legal in JSON and in nothing else.
    return value.encode("utf-8", "replace").decode("utf-8")


def word(value: object) -> str | None:
    """Give a short text on one line, such as a name; None where it is none."""
    found = " ".join(text(value)[:500].split())
    return found or None


def number(value: object) -> int | None:
    """Give a count; None where it is no sensible one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value <= MOST_TOKENS:  # false for NaN too
        return None
    return int(value)


def status(value: object) -> int | None:
    """Give an exit status, which may be negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**31 else None


def shown(value: object) -> str:
    """Give a tool's input or output as text: as it is, or as JSON."""
    if isinstance(value, str) or value is None:
        return text(value)
    try:
        return text(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):
        return ""


@dataclass(slots=True)
class Transcript:
    """A trajectory while it is being read."""

    session: str | None = None
    model: str | None = None
    agent_version: str | None = None
    final_text: str | None = None
    claimed_success: bool | None = None
    claimed_tokens: TokenCounts | None = None
    api_error: str | None = None
    skipped: int = 0
    _steps: list[Step] = field(default_factory=list)
    _open: dict[str, int] = field(default_factory=dict)
    _length: int = 0

    def say(self, role: str, words: str) -> None:
        """Add a message; the assistant's newest is its final text until another comes."""
        if not words.strip():
            return
        if role == "assistant":
            self.final_text = words
        self._add(Message(role=role, text=words), len(words))

    def call(self, identity: str, call: ToolCall) -> None:
        """Add a use of a tool; what comes of it may be told later under its identity."""
        if self._add(call, len(call.input) + len(call.output)) and identity:
            self._open[identity] = len(self._steps) - 1

    def called(
        self,
        identity: str,
        *,
        output: str,
        exit_status: int | None = None,
        is_error: bool = False,
        milliseconds: int | None = None,
    ) -> bool:
        """Add what came of a use of a tool; False: no such use is known."""
        place = self._open.pop(identity, None)
        if place is None:
            return False
        step = self._steps[place]
        if not isinstance(step, ToolCall):
            return False
        if self._length + len(output) > MOST_TEXT:
            output = CUT
        self._length += len(output)
        self._steps[place] = ToolCall(
            tool=step.tool,
            input=step.input,
            output=output,
            exit_status=exit_status,
            is_error=is_error,
            milliseconds=milliseconds,
        )
        return True

    def done(self) -> Trajectory:
        """Give what was read."""
        return Trajectory(
            steps=tuple(self._steps),
            session=self.session,
            model=self.model,
            agent_version=self.agent_version,
            final_text=self.final_text,
            claimed_success=self.claimed_success,
            claimed_tokens=self.claimed_tokens,
            api_error=self.api_error,
            skipped_lines=self.skipped,
        )

    def _add(self, step: Step, length: int) -> bool:
        if len(self._steps) >= MOST_STEPS or self._length + length > MOST_TEXT:
            self.skipped += 1
            return False
        self._length += length
        self._steps.append(step)
        return True
