"""Reading usage from Anthropic's answers: the start of a message, overlaid by its last delta."""

from __future__ import annotations

from typing import ClassVar

from forkyard.gateway.interface import Finish
from forkyard.gateway.protocols.interface import Reading
from forkyard.gateway.protocols.json_body import Json, JsonObject
from forkyard.gateway.protocols.metering import Meter, count, error_name
from forkyard.model.budget import TokenCounts

ERRORS = {
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
}
_FIELDS = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)


class MessagesMeter(Meter):
    """Reads one answer of Messages."""

    marks = (b'"usage"', b"message_stop", b'"error"')
    finishes: ClassVar = {
        "end_turn": Finish.DONE,
        "stop_sequence": Finish.DONE,
        "tool_use": Finish.DONE,
        "max_tokens": Finish.LENGTH,
    }

    def __init__(self, *, is_event_stream: bool) -> None:
        """Start at the beginning of an answer."""
        super().__init__(is_event_stream=is_event_stream)
        self._usage = dict.fromkeys(_FIELDS, 0)
        self._long = 0
        self._thinking = 0
        self._has_delta = False

    def take(self, event: JsonObject) -> None:
        """Take one event, or a whole answer."""
        match event:
            case {"type": "message_start", "message": {"usage": dict(usage)}}:
                self._overlay(usage)
            case {"type": "message_delta", "usage": dict(usage)}:
                self._overlay(usage)
                self._has_delta = True
                delta = event.get("delta")
                if isinstance(delta, dict):
                    self.finished(delta.get("stop_reason"))
            case {"type": "message_stop"}:
                self.has_ended = True
            case {"type": "error", "error": dict(error)}:
                self.error = error_name(ERRORS, error.get("type"))
                self.has_ended = True
            case {"type": "message", "usage": dict(usage)}:
                self._overlay(usage)
                self._has_delta = self.has_ended = True
                self.finished(event.get("stop_reason"))
            case _:
                pass

    def reading(self) -> Reading:
        """Give what is known so far."""
        usage = self._usage
        tokens = TokenCounts(
            input=usage["input_tokens"],
            cache_read=usage["cache_read_input_tokens"],
            cache_write=usage["cache_creation_input_tokens"],
            cache_write_long=min(self._long, usage["cache_creation_input_tokens"]),
            output=usage["output_tokens"],
            reasoning=min(self._thinking, usage["output_tokens"]),
        )
        return self.state(
            tokens,
            is_input_known=tokens.total > tokens.output,
            is_final=self._has_delta,
        )

    def _overlay(self, usage: dict[str, Json]) -> None:
        """Replace what is told anew: numbers are cumulative, never a sum of ours."""
        summed = _iterations(usage.get("iterations"))
        for name in _FIELDS:
            told = count(usage.get(name))
            if told is not None:
                self._usage[name] = max(told, summed.get(name, 0))
        writes = usage.get("cache_creation")
        if isinstance(writes, dict):
            self._long = count(writes.get("ephemeral_1h_input_tokens")) or self._long
        details = usage.get("output_tokens_details")
        if isinstance(details, dict):
            self._thinking = count(details.get("thinking_tokens")) or self._thinking


def _iterations(told: Json) -> dict[str, int]:
    """Sum what the model's inner rounds used; the top leaves some kinds of them out."""
    sums: dict[str, int] = {}
    for one in told if isinstance(told, list) else []:
        if isinstance(one, dict):
            for name in _FIELDS:
                sums[name] = sums.get(name, 0) + (count(one.get(name)) or 0)
    return sums
