"""Reading usage from OpenAI's answers: once, at the end; its input includes what was cached."""

from __future__ import annotations

from typing import ClassVar

from forkyard.gateway.interface import Finish
from forkyard.gateway.protocols.interface import Reading
from forkyard.gateway.protocols.json_body import Json, JsonObject
from forkyard.gateway.protocols.metering import Meter, count, error_name
from forkyard.gateway.protocols.openai_answers import ERRORS
from forkyard.model.budget import TokenCounts

_ENDINGS = {"response.completed", "response.incomplete", "response.failed"}
_ENDED = {"completed", "incomplete", "failed"}


class ResponsesMeter(Meter):
    """Reads one answer of Responses."""

    marks = (
        b'"response.completed"',
        b'"response.incomplete"',
        b'"response.failed"',
        b'"error"',
    )
    finishes: ClassVar = {"completed": Finish.DONE, "max_output_tokens": Finish.LENGTH}

    def __init__(self, *, is_event_stream: bool) -> None:
        """Start at the beginning of an answer."""
        super().__init__(is_event_stream=is_event_stream)
        self._tokens: TokenCounts | None = None

    def take(self, event: JsonObject) -> None:
        """Take one event, or a whole answer."""
        match event:
            case {"type": str(kind), "response": dict(response)} if kind in _ENDINGS:
                self._take_response(response)
            case {"type": "error"}:
                inner = event.get("error")
                told = inner if isinstance(inner, dict) else event
                self.error = error_name(ERRORS, told.get("code") or told.get("type"))
                self.has_ended = True
            case {"object": "response", "status": str(status)} if status in _ENDED:
                self._take_response(event)
            case _:
                pass

    def take_done(self) -> None:
        """Meet a mark that this API does not have; compatible servers send it."""

    def reading(self) -> Reading:
        """Give what is known so far."""
        is_known = self._tokens is not None
        return self.state(self._tokens or TokenCounts(), is_input_known=is_known, is_final=is_known)

    def _take_response(self, response: dict[str, Json]) -> None:
        self.has_ended = True
        error, usage = response.get("error"), response.get("usage")
        cut = response.get("incomplete_details")
        self.finished(cut.get("reason") if isinstance(cut, dict) else response.get("status"))
        if response.get("status") == "failed":
            code = error.get("code") if isinstance(error, dict) else None
            self.error = error_name(ERRORS, code)
        if isinstance(usage, dict):
            self._tokens = _tokens(usage, "input_tokens", "output_tokens") or self._tokens


class ChatMeter(Meter):
    """Reads one answer of Chat Completions."""

    marks = (
        b'"prompt_tokens"',
        b"[DONE]",
        b'"error"',
        b'"finish_reason":"',  # it is null in all events but the last
        b'"finish_reason": "',
    )
    finishes: ClassVar = {
        "stop": Finish.DONE,
        "tool_calls": Finish.DONE,
        "function_call": Finish.DONE,
        "length": Finish.LENGTH,
    }

    def __init__(self, *, is_event_stream: bool) -> None:
        """Start at the beginning of an answer."""
        super().__init__(is_event_stream=is_event_stream)
        self._tokens: TokenCounts | None = None
        self._is_last = False

    def take(self, event: JsonObject) -> None:
        """Take one event, or a whole answer."""
        error = event.get("error")
        if isinstance(error, dict):
            self.error = error_name(ERRORS, error.get("code") or error.get("type"))
            self.has_ended = True
        match event.get("choices"):
            case [{"finish_reason": str(word)}, *_]:
                self.finished(word)
            case _:
                pass
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._tokens = _tokens(usage, "prompt_tokens", "completion_tokens") or self._tokens
            self._is_last = not event.get("choices")
        if event.get("object") == "chat.completion":
            self._is_last = self.has_ended = True

    def reading(self) -> Reading:
        """Give what is known so far.

        Some servers tell a growing usage in every event: only one at the end is final.
        """
        is_known = self._tokens is not None
        has_last = self._is_last or (self.has_ended and self.error is None)
        return self.state(
            self._tokens or TokenCounts(),
            is_input_known=is_known,
            is_final=is_known and has_last,
        )


def _tokens(usage: dict[str, Json], input_name: str, output_name: str) -> TokenCounts | None:
    whole, output = count(usage.get(input_name)), count(usage.get(output_name))
    if whole is None or output is None:
        return None
    given = usage.get(input_name + "_details")
    made = usage.get(output_name + "_details")
    inputs = given if isinstance(given, dict) else {}
    outputs = made if isinstance(made, dict) else {}
    read = min(count(inputs.get("cached_tokens")) or 0, whole)
    written = min(count(inputs.get("cache_write_tokens")) or 0, whole - read)
    return TokenCounts(
        input=whole - read - written,
        cache_read=read,
        cache_write=written,
        output=output,
        reasoning=min(count(outputs.get("reasoning_tokens")) or 0, output),
    )
