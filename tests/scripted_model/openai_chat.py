"""OpenAI's Chat Completions in the scripted model's mouth."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

from scripted_model.reply import Past, Reply, pieces_of, sse
from scripted_model.scenario import Usage
from scripted_model.shapes import Json, Object, an_object, number, objects, text
from scripted_model.tools import Tool, tool

_TYPES = {400: "invalid_request_error", 401: "invalid_request_error", 429: "rate_limit_exceeded"}


def openai_error(status: int, kind: str | None, message: str) -> Object:
    """Say what went wrong, as both of OpenAI's APIs do."""
    named = kind or _TYPES.get(status, "server_error")
    return {"error": {"message": message, "type": named, "param": None, "code": named}}


class Chat:
    """Speaks Chat Completions."""

    name = "chat"

    def tools(self, body: Object) -> list[Tool]:
        """Read the tools that a request declares."""
        declared = [an_object(one.get("function")) for one in objects(body.get("tools"))]
        return [tool(one, "parameters") for one in declared if one]

    def history(self, body: Object) -> Iterator[Past]:
        """Read what was said before, in order."""
        for message in objects(body.get("messages")):
            if message.get("role") == "assistant":
                ids = [text(one.get("id")) for one in objects(message.get("tool_calls"))]
                yield from (Past("call", one) for one in ids) if ids else [Past("text")]
            elif message.get("role") == "user":
                yield Past("user")

    def most_output(self, body: Object) -> int | None:
        """Read the limit that a request sets."""
        return number(body.get("max_completion_tokens")) or number(body.get("max_tokens")) or None

    def told(self, usage: Usage) -> Usage:
        """Give the numbers as this API can tell them: it knows no writing to a cache."""
        whole = usage.input + usage.cache_write
        return replace(usage, input=whole, cache_write=0, cache_write_long=0)

    def whole(self, reply: Reply) -> Object:
        """Answer in one piece."""
        message: Object = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = _calls(reply)
        choice: Object = {"index": 0, "message": message, "finish_reason": _finish(reply)}
        return {
            "id": "chatcmpl-" + reply.id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": reply.model,
            "choices": [choice],
            "usage": _usage(reply.usage),
        }

    def stream(self, reply: Reply, body: Object) -> Iterator[str]:
        """Answer in events; usage only where it was asked for."""
        has_usage = an_object(body.get("stream_options")).get("include_usage") is True
        base: Object = {
            "id": "chatcmpl-" + reply.id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": reply.model,
        }
        if has_usage:
            base["usage"] = None

        def chunk(delta: Object, finish: str | None = None) -> str:
            choice: Object = {"index": 0, "delta": delta, "finish_reason": finish}
            return sse({**base, "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in pieces_of(reply.text, reply.pieces):
            yield chunk({"content": piece})
        for index, call in enumerate(reply.calls):
            name: Object = {"name": call.tool.name, "arguments": ""}
            head: Object = {"index": index, "id": "call" + call.suffix, "type": "function"}
            yield chunk({"tool_calls": [{**head, "function": name}]})
            for piece in pieces_of(json.dumps(call.arguments), reply.pieces):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, _finish(reply))
        if has_usage:
            yield sse({**base, "choices": [], "usage": _usage(reply.usage)})
        yield sse("[DONE]")

    def error(self, status: int, kind: str | None, message: str) -> Object:
        """Say what went wrong, with a status of its own."""
        return openai_error(status, kind, message)

    def stream_error(self, kind: str | None, message: str) -> str:
        """Say what went wrong in a stream."""
        return sse(openai_error(500, kind, message))


def _finish(reply: Reply) -> str:
    if reply.is_cut:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _usage(usage: Usage) -> Object:
    return {
        "prompt_tokens": usage.whole_input,
        "completion_tokens": usage.output,
        "total_tokens": usage.whole_input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _calls(reply: Reply) -> list[Json]:
    return [
        {
            "id": "call" + call.suffix,
            "type": "function",
            "function": {"name": call.tool.name, "arguments": json.dumps(call.arguments)},
        }
        for call in reply.calls
    ]
