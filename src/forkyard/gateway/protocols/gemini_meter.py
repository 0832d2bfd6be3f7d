"""Reading usage from Gemini's answers: in each chunk, of which the last counts."""

from __future__ import annotations

from typing import ClassVar

from forkyard.gateway.interface import Finish
from forkyard.gateway.protocols.interface import Reading
from forkyard.gateway.protocols.json_body import Json, JsonObject
from forkyard.gateway.protocols.metering import Meter, count, error_name
from forkyard.gateway.protocols.sse import read_event
from forkyard.model.budget import TokenCounts

ERRORS = {
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
}
_ENDS = (b'"finishReason"', b'"promptFeedback"', b'"error"')


class GeminiMeter(Meter):
    """Reads one answer of generateContent."""

    marks = (b'"usageMetadata"', *_ENDS)
    finishes: ClassVar = {"STOP": Finish.DONE, "MAX_TOKENS": Finish.LENGTH}

    def __init__(self, *, is_event_stream: bool) -> None:
        """Start at the beginning of an answer."""
        super().__init__(is_event_stream=is_event_stream)
        self._tokens: TokenCounts | None = None
        self._last: bytes | None = None

    def take_data(self, data: bytes) -> None:
        """Take one marked event's data; each tells usage, so all but the last are left alone."""
        for mark in _ENDS:
            if mark in data:
                self._last = None
                super().take_data(data)
                return
        self._last = data

    def take(self, event: JsonObject) -> None:
        """Take one event, or a whole answer."""
        match event.get("usageMetadata"):
            case dict(usage):
                self._tokens = _tokens(usage) or self._tokens
            case _:
                pass
        match event:
            case {"error": dict(error)}:
                self.error = error_name(ERRORS, error.get("status"))
                self.has_ended = True
            case {"candidates": [{"finishReason": str(word)}, *_]}:
                self.has_ended = True
                self.finished(word)
            case {"promptFeedback": {"blockReason": str()}}:
                self.has_ended = True
            case _:
                pass

    def reading(self) -> Reading:
        """Give what is known so far."""
        if self._last is not None:
            event, self._last = read_event(self._last), None
            if event is not None:
                self.take(event)
        is_known = self._tokens is not None
        return self.state(
            self._tokens or TokenCounts(),
            is_input_known=is_known,
            is_final=is_known and self.has_ended and self.error is None,
        )


def _tokens(usage: dict[str, Json]) -> TokenCounts | None:
    prompt = count(usage.get("promptTokenCount"))
    if prompt is None:
        return None
    read = min(count(usage.get("cachedContentTokenCount")) or 0, prompt)
    thoughts = count(usage.get("thoughtsTokenCount")) or 0
    return TokenCounts(
        input=prompt - read + (count(usage.get("toolUsePromptTokenCount")) or 0),
        cache_read=read,
        output=(count(usage.get("candidatesTokenCount")) or 0) + thoughts,
        reasoning=thoughts,
    )
