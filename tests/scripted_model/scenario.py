"""The scenario file: what is answered, with which faults, billed at which numbers.

    {"models": {NAME: PRICE}, "scenarios": {NAME: {"turns": [TURN...], ...}}}

PRICE    micro-dollars per million tokens: input, output, cache_read, cache_write,
         cache_write_long (as cache_write where absent); with `models`
         given, every other model is unknown (404)
SCENARIO turns · side: TURN for requests without tools (titles) · toolless: true, they are turns
TURN     text, thinking, actions: [ACTION...], usage: USAGE, latency: s before the first byte,
         chunk_delay: s between events, pieces: events per text (3), encoding: gzip|deflate|zstd,
         fault: FAULT; the last turn is played again and again
ACTION   {"run": cmd} | {"read": path} | {"write": {path, content}} | {"edit": {path, old, new}}
         | {"tool": name, "input": {...}}     (paths relative to the agent's working directory)
USAGE    input (not cached; null: a quarter of the body's bytes), cache_read, cache_write,
         cache_write_long (the part kept for an hour; Messages only),
         output (reasoning included, cut to what the request allows), reasoning
         Billed is what the API can tell: Messages has no reasoning, Chat and Gemini no cache_write
         (it is input there)
FAULT    times: n (default always) · every: n, each nth of the turn's requests only ·
         api: {API: FAULT} overrides for one of anthropic, responses, chat, gemini · and one of
           status: 429 [, type, message, headers, body]   an error in the provider's own form
           drop_after: n        reset the connection after n events (0: before any byte)
           end_after: n         end the stream cleanly, but too early
           stall_after: n, stall: s    silence in mid-stream (0: after the headers)
           first_byte: s        silence before the headers
           stream_error: {after, type, message}    an error event in the stream
           malformed_after: n   broken JSON in one event (without streaming: as the body)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from scripted_model.shapes import Json, Object, an_object, number, objects, seconds, text

_MARKER = re.compile(r"\[\[scenario:([\w.-]+)\]\]")
_ALWAYS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer, in the words of no provider."""

    input: int = 100
    cache_read: int = 0
    cache_write: int = 0
    cache_write_long: int = 0
    output: int = 20
    reasoning: int = 0

    @property
    def whole_input(self) -> int:
        """Count cached input as well, as most providers do."""
        return self.input + self.cache_read + self.cache_write

    def upto(self, output: int) -> Usage:
        """Give the same with no more output than this."""
        most = min(self.output, output)
        return Usage(
            input=self.input,
            cache_read=self.cache_read,
            cache_write=self.cache_write,
            cache_write_long=self.cache_write_long,
            output=most,
            reasoning=min(self.reasoning, most),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with one answer; nothing by default."""

    status: int | None = None
    type: str | None = None
    message: str = "scripted fault"
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    drop_after: int | None = None
    end_after: int | None = None
    stall_after: int | None = None
    stall: float = 0.0
    first_byte: float = 0.0
    error_after: int | None = None
    malformed_after: int | None = None


NO_FAULT = Fault()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of the model."""

    text: str = ""
    thinking: str = ""
    actions: tuple[Object, ...] = ()
    usage: Object = field(default_factory=dict)
    latency: float = 0.0
    chunk_delay: float = 0.0
    pieces: int = 3
    encoding: str = ""
    fault: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-dollars per million tokens."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_long: int | None = None

    def of(self, usage: Usage) -> int:
        """Give whole micro-dollars, rounded up once per request."""
        long = self.cache_write if self.cache_write_long is None else self.cache_write_long
        parts = (
            usage.input * self.input
            + usage.output * self.output
            + usage.cache_read * self.cache_read
            + (usage.cache_write - usage.cache_write_long) * self.cache_write
            + usage.cache_write_long * long
        )
        return -(-parts // 1_000_000)


class Book:
    """All scenarios, and how often each fault's place was reached."""

    def __init__(self, data: Object) -> None:
        self.prices = {
            name: Price(**{key: number(price) for key, price in an_object(one).items()})
            for name, one in an_object(data.get("models")).items()
        }
        self._scenarios = {
            name: an_object(one) for name, one in an_object(data.get("scenarios")).items()
        }
        self._hits: Counter[tuple[str, ...]] = Counter()

    @classmethod
    def read(cls, path: Path) -> Book:
        """Read a scenario file."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def choose(self, *, prefix: str | None, header: str | None, body: str, key: str) -> str:
        """Say which scenario a request plays."""
        marker = _MARKER.search(body)
        for name in (prefix, header, marker.group(1) if marker else None):
            if name in self._scenarios:
                return name
        for name in self._scenarios:
            if key.endswith("-" + name):
                return name
        return "default"

    def plays_without_tools(self, scenario: str) -> bool:
        """Say whether requests without tools are turns of this scenario."""
        return scenario not in self._scenarios or bool(self._scenarios[scenario].get("toolless"))

    def turn(self, scenario: str, index: int | None) -> Turn:
        """Give the turn at an index; None: an answer on the side."""
        one = self._scenarios.get(scenario, {})
        if index is None:
            return _turn(an_object(one.get("side")) or {"text": "ok"})
        turns = objects(one.get("turns")) or [{"text": "ok"}]
        return _turn(turns[min(index, len(turns) - 1)])

    def fault(self, turn: Turn, *, api: str, place: tuple[str, ...], who: str) -> Fault:
        """Say what goes wrong now; counts each call.

        Args:
            turn: The one that is played.
            api: Whose override wins.
            place: Scenario and turn: where `every` counts.
            who: The conversation: each has its own `times`.
        """
        if not turn.fault:
            return NO_FAULT
        every, times = number(turn.fault.get("every")), number(turn.fault.get("times"), _ALWAYS)
        if every:
            self._hits[place] += 1
            if self._hits[place] % every:
                return NO_FAULT
        self._hits[(*place, who)] += 1
        if self._hits[(*place, who)] > times:
            return NO_FAULT
        own = an_object(an_object(turn.fault.get("api")).get(api))
        return _fault({**turn.fault, **own})


def _turn(data: Object) -> Turn:
    return Turn(
        text=text(data.get("text")),
        thinking=text(data.get("thinking")),
        actions=tuple(objects(data.get("actions"))),
        usage=an_object(data.get("usage")),
        latency=seconds(data.get("latency")),
        chunk_delay=seconds(data.get("chunk_delay")),
        pieces=max(1, number(data.get("pieces"), 3)),
        encoding=text(data.get("encoding")),
        fault=an_object(data.get("fault")),
    )


def _fault(data: Object) -> Fault:
    error = an_object(data.get("stream_error"))
    body = data.get("body")
    return Fault(
        status=_maybe(data.get("status")),
        type=text(error.get("type") or data.get("type")) or None,
        message=text(error.get("message") or data.get("message"), "scripted fault"),
        headers={name: str(value) for name, value in an_object(data.get("headers")).items()},
        body=body if isinstance(body, str) or body is None else json.dumps(body),
        drop_after=_maybe(data.get("drop_after")),
        end_after=_maybe(data.get("end_after")),
        stall_after=_maybe(data.get("stall_after")),
        stall=seconds(data.get("stall")),
        first_byte=seconds(data.get("first_byte")),
        error_after=number(error.get("after"), 1) if error else None,
        malformed_after=_maybe(data.get("malformed_after")),
    )


def _maybe(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def usage_of(turn: Turn, *, body_bytes: int) -> Usage:
    """Give the numbers that a turn bills."""
    said = turn.usage
    size = body_bytes // 4 if "input" in said and said["input"] is None else 100
    return Usage(
        input=number(said.get("input"), size),
        cache_read=number(said.get("cache_read")),
        cache_write=number(said.get("cache_write")),
        cache_write_long=number(said.get("cache_write_long")),
        output=number(said.get("output"), 20),
        reasoning=number(said.get("reasoning")),
    )
