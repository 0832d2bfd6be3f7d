"""OpenAI's Responses in the scripted model's mouth."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from scripted_model.openai_chat import openai_error
from scripted_model.reply import Past, Reply, pieces_of, sse
from scripted_model.scenario import Usage
from scripted_model.shapes import Json, Object, number, objects, text
from scripted_model.tools import Tool, tool

_Event = Callable[..., str]


class Responses:
    """Speaks Responses."""

    name = "responses"

    def tools(self, body: Object) -> list[Tool]:
        """Read the tools that a request declares, at the top or as an item of its input."""
        declared = objects(body.get("tools"))
        for item in objects(body.get("input")):
            if item.get("type") == "additional_tools":
                declared += objects(item.get("tools"))
        found = []
        for one in declared:
            if one.get("type") == "namespace":
                inner, space = objects(one.get("tools")), text(one.get("name"))
                found += [tool(each, "parameters", namespace=space) for each in inner]
            elif "name" in one:
                found.append(tool(one, "parameters"))
        return found

    def history(self, body: Object) -> Iterator[Past]:
        """Read what was said before, in order."""
        if isinstance(body.get("input"), str):
            yield Past("user")
        for item in objects(body.get("input")):
            kind = item.get("type", "message")
            if kind in {"function_call", "custom_tool_call"}:
                yield Past("call", text(item.get("call_id")))
            elif kind == "message" and item.get("role") in {"user", "assistant"}:
                yield Past("text" if item["role"] == "assistant" else "user")

    def most_output(self, body: Object) -> int | None:
        """Read the limit that a request sets."""
        return number(body.get("max_output_tokens")) or None

    def told(self, usage: Usage) -> Usage:
        """Give the numbers as this API can tell them: of a cache's life it knows nothing."""
        return replace(usage, cache_write_long=0)

    def whole(self, reply: Reply) -> Object:
        """Answer in one piece."""
        return _response(reply, "incomplete" if reply.is_cut else "completed")

    def stream(self, reply: Reply, body: Object) -> Iterator[str]:
        """Answer in events."""
        del body
        sequence = itertools.count()

        def event(kind: str, **data: Json) -> str:
            return sse({"type": kind, "sequence_number": next(sequence), **data}, kind)

        yield event("response.created", response=_response(reply, "in_progress"))
        for index, item in enumerate(_items(reply)):
            bare: Object = {**item, "status": "in_progress"}
            for key, empty in (("content", []), ("arguments", ""), ("input", "")):
                if key in item:
                    bare[key] = empty
            yield event("response.output_item.added", output_index=index, item=bare)
            yield from _item_events(event, item, index, reply)
            yield event("response.output_item.done", output_index=index, item=item)
        end = self.whole(reply)
        yield event(f"response.{end['status']}", response=end)

    def error(self, status: int, kind: str | None, message: str) -> Object:
        """Say what went wrong, with a status of its own."""
        return openai_error(status, kind, message)

    def stream_error(self, kind: str | None, message: str) -> str:
        """Say what went wrong in a stream."""
        failed: Object = {
            "id": "resp_failed",
            "object": "response",
            "status": "failed",
            "output": [],
            "usage": None,
            "error": {"code": kind or "server_error", "message": message},
        }
        name = "response.failed"
        return sse({"type": name, "sequence_number": 99, "response": failed}, name)


def _item_events(event: _Event, item: Object, index: int, reply: Reply) -> Iterator[str]:
    where: Object = {"item_id": item["id"], "output_index": index}
    match item:
        case {"type": "message"}:
            part: Object = {"type": "output_text", "text": "", "annotations": []}
            said: Object = {**where, "content_index": 0}
            yield event("response.content_part.added", part=part, **said)
            for piece in pieces_of(reply.text, reply.pieces):
                yield event("response.output_text.delta", delta=piece, **said)
            yield event("response.output_text.done", text=reply.text, **said)
            yield event("response.content_part.done", part={**part, "text": reply.text}, **said)
        case {"type": "function_call", "arguments": str(arguments)}:
            name = "response.function_call_arguments"
            for piece in pieces_of(arguments, reply.pieces):
                yield event(f"{name}.delta", delta=piece, **where)
            yield event(f"{name}.done", arguments=arguments, **where)
        case {"type": "custom_tool_call", "input": str(given)}:
            name = "response.custom_tool_call_input"
            yield event(f"{name}.delta", delta=given, **where)
            yield event(f"{name}.done", input=given, **where)
        case _:
            return


def _usage(usage: Usage) -> Object:
    return {
        "input_tokens": usage.whole_input,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.whole_input + usage.output,
    }


def _items(reply: Reply) -> list[Object]:
    found: list[Object] = []
    if reply.thinking:
        summary: Object = {"type": "summary_text", "text": reply.thinking}
        found.append(
            {
                "type": "reasoning",
                "id": "rs_" + reply.id,
                "encrypted_content": None,
                "summary": [summary],
            }
        )
    if reply.text:
        said: Object = {"type": "output_text", "text": reply.text, "annotations": []}
        found.append(
            {
                "type": "message",
                "id": "msg_" + reply.id,
                "role": "assistant",
                "status": "completed",
                "content": [said],
            }
        )
    for call in reply.calls:
        item: Object = {
            "id": "fc" + call.suffix,
            "call_id": "call" + call.suffix,
            "name": call.tool.name,
            "status": "completed",
        }
        if call.tool.is_freeform:
            item |= {"type": "custom_tool_call", "input": call.arguments}
        else:
            item |= {"type": "function_call", "arguments": json.dumps(call.arguments)}
        if call.tool.namespace:
            item["namespace"] = call.tool.namespace
        found.append(item)
    return found


def _response(reply: Reply, status: str) -> Object:
    is_done = status != "in_progress"
    output: list[Json] = [*_items(reply)] if is_done else []
    return {
        "id": "resp_" + reply.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": reply.model,
        "output": output,
        "usage": _usage(reply.usage) if is_done else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "error": None,
    }
