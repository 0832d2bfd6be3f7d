"""Gemini in the scripted model's mouth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scripted_model.reply import Past, Reply, pieces_of, sse
from scripted_model.scenario import Usage
from scripted_model.shapes import Json, Object, an_object, number, objects
from scripted_model.tools import Tool, tool

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class Gemini:
    """Speaks generateContent."""

    name = "gemini"

    def tools(self, body: Object) -> list[Tool]:
        """Read the tools that a request declares."""
        found = []
        for group in objects(body.get("tools")):
            for one in objects(group.get("functionDeclarations")):
                key = "parametersJsonSchema" if "parametersJsonSchema" in one else "parameters"
                found.append(tool(one, key))
        return found

    def history(self, body: Object) -> Iterator[Past]:
        """Read what was said before, in order."""
        for content in objects(body.get("contents")):
            parts = objects(content.get("parts"))
            if content.get("role") == "model":
                yield Past("round" if any("functionCall" in one for one in parts) else "text")
            elif not any("functionResponse" in one for one in parts):
                yield Past("user")

    def most_output(self, body: Object) -> int | None:
        """Read the limit that a request sets."""
        return number(an_object(body.get("generationConfig")).get("maxOutputTokens")) or None

    def told(self, usage: Usage) -> Usage:
        """Give the numbers as this API can tell them: it knows no writing to a cache."""
        whole = usage.input + usage.cache_write
        return replace(usage, input=whole, cache_write=0, cache_write_long=0)

    def whole(self, reply: Reply) -> Object:
        """Answer in one piece."""
        return _chunk(reply, _parts(reply), is_last=True)

    def stream(self, reply: Reply, body: Object) -> Iterator[str]:
        """Answer in events."""
        del body
        for part in _parts(reply):
            yield sse(_chunk(reply, [part], is_last=False))
        yield sse(_chunk(reply, [{"text": ""}], is_last=True))

    def error(self, status: int, kind: str | None, message: str) -> Object:
        """Say what went wrong, with a status of its own."""
        named = kind or _STATUSES.get(status, "UNKNOWN")
        return {"error": {"code": status, "message": message, "status": named}}

    def stream_error(self, kind: str | None, message: str) -> str:
        """Say what went wrong in a stream."""
        return sse(self.error(500, kind, message))


def _usage(usage: Usage) -> Object:
    return {
        "promptTokenCount": usage.whole_input,
        "cachedContentTokenCount": usage.cache_read,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.whole_input + usage.output,
    }


def _chunk(reply: Reply, parts: list[Json], *, is_last: bool) -> Object:
    candidate: Object = {"index": 0, "content": {"role": "model", "parts": parts}}
    if is_last:
        candidate["finishReason"] = "MAX_TOKENS" if reply.is_cut else "STOP"
    return {
        "candidates": [candidate],
        "modelVersion": reply.model,
        "responseId": reply.id,
        "usageMetadata": _usage(reply.usage),
    }


def _parts(reply: Reply) -> list[Json]:
    parts: list[Json] = []
    if reply.thinking:
        parts.append({"text": reply.thinking, "thought": True})
    parts += [{"text": piece} for piece in pieces_of(reply.text, reply.pieces)]
    for call in reply.calls:
        made: Object = {
            "id": "call" + call.suffix,
            "name": call.tool.name,
            "args": call.arguments,
        }
        parts.append({"functionCall": made, "thoughtSignature": "c2ln"})
    return parts
