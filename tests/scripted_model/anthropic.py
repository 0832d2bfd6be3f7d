"""Anthropic's Messages in the scripted model's mouth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from scripted_model.reply import Past, Reply, pieces_of, sse
from scripted_model.scenario import Usage
from scripted_model.shapes import Json, Object, number, objects, text
from scripted_model.tools import Tool, tool

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Anthropic:
    """Speaks Messages."""

    name = "anthropic"

    def tools(self, body: Object) -> list[Tool]:
        """Read the tools that a request declares."""
        return [tool(one, "input_schema") for one in objects(body.get("tools")) if "name" in one]

    def history(self, body: Object) -> Iterator[Past]:
        """Read what was said before, in order."""
        for message in objects(body.get("messages")):
            blocks = objects(message.get("content"))
            if message.get("role") == "assistant":
                ids = [text(one.get("id")) for one in blocks if one.get("type") == "tool_use"]
                yield from (Past("call", one) for one in ids) if ids else [Past("text")]
            elif not any(one.get("type") == "tool_result" for one in blocks):
                yield Past("user")

    def most_output(self, body: Object) -> int | None:
        """Read the limit that a request sets."""
        return number(body.get("max_tokens")) or None

    def told(self, usage: Usage) -> Usage:
        """Give the numbers as this API can tell them: reasoning is not told apart."""
        return replace(usage, reasoning=0)

    def whole(self, reply: Reply) -> Object:
        """Answer in one piece."""
        ends = "tool_use" if reply.calls else "end_turn"
        return {
            "id": "msg_" + reply.id,
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": [*_blocks(reply)],
            "stop_reason": "max_tokens" if reply.is_cut else ends,
            "stop_sequence": None,
            "usage": _usage(reply.usage),
        }

    def stream(self, reply: Reply, body: Object) -> Iterator[str]:
        """Answer in events."""
        del body
        full = self.whole(reply)
        begun = _usage(reply.usage.upto(1))
        start: Object = {**full, "content": [], "stop_reason": None, "usage": begun}
        yield _event("message_start", message=start)
        yield _event("ping")
        for index, block in enumerate(_blocks(reply)):
            yield _event("content_block_start", index=index, content_block=_emptied(block))
            for delta in _deltas(block, reply.pieces):
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        ended: Object = {"stop_reason": full["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=ended, usage=full["usage"])
        yield _event("message_stop")

    def error(self, status: int, kind: str | None, message: str) -> Object:
        """Say what went wrong, with a status of its own."""
        what: Object = {"type": kind or _TYPES.get(status, "api_error"), "message": message}
        return {"type": "error", "error": what, "request_id": "req_scripted"}

    def stream_error(self, kind: str | None, message: str) -> str:
        """Say what went wrong in a stream."""
        return sse(self.error(529, kind, message), "error")


def _event(kind: str, **data: Json) -> str:
    return sse({"type": kind, **data}, kind)


def _usage(usage: Usage) -> Object:
    long = usage.cache_write_long
    return {
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write - long,
            "ephemeral_1h_input_tokens": long,
        },
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }


def _blocks(reply: Reply) -> list[Object]:
    blocks: list[Object] = []
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": "c2ln"})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    blocks += [
        {
            "type": "tool_use",
            "id": "toolu" + call.suffix,
            "name": call.tool.name,
            "input": call.arguments,
        }
        for call in reply.calls
    ]
    return blocks


def _emptied(block: Object) -> Object:
    empty: Object = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {key: empty.get(key, value) for key, value in block.items()}


def _deltas(block: Object, pieces: int) -> list[Json]:
    match block:
        case {"type": "text", "text": str(said)}:
            return [{"type": "text_delta", "text": one} for one in pieces_of(said, pieces)]
        case {"type": "thinking", "thinking": thought, "signature": signature}:
            return [
                {"type": "thinking_delta", "thinking": thought},
                {"type": "signature_delta", "signature": signature},
            ]
        case {"type": "tool_use", "input": given}:
            parts = pieces_of(json.dumps(given), pieces)
            return [{"type": "input_json_delta", "partial_json": one} for one in parts]
        case _:
            return []
