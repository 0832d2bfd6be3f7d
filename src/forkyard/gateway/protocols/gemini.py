"""Gemini's generateContent and countTokens: what passes, how it is built anew.

Fields come in two spellings, which the provider takes for the same; both at once are refused and
one is written. Only functions that the agent runs remain of the tools.
"""

from __future__ import annotations

import re
from dataclasses import replace

from forkyard.gateway.interface import Api
from forkyard.gateway.protocols.gemini_meter import GeminiMeter
from forkyard.gateway.protocols.interface import (
    OUTPUT_FLOOR,
    Answer,
    Headers,
    Operation,
    Policy,
    Reason,
    Rebuilt,
    Refused,
    RequestHead,
    Route,
    UsageMeter,
)
from forkyard.gateway.protocols.json_body import Json, JsonObject, parse, read_again, write
from forkyard.gateway.protocols.refusal import STATUSES, RequestError, json_answer, refused
from forkyard.gateway.protocols.shaping import (
    Shaping,
    base_headers,
    check_model,
    need_tools,
    object_at,
    objects_at,
    output_limit,
)

_FIELDS = {
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
}
_COUNT_FIELDS = {"contents", "generateContentRequest"}
_INLINE = ("image/", "text/", "application/pdf", "application/json")
_SNAKE = re.compile(r"_([a-z])")
_CODES = {
    Reason.BUDGET: "FAILED_PRECONDITION",
    Reason.LIMIT: "FAILED_PRECONDITION",
    Reason.RATE: "RESOURCE_EXHAUSTED",
    Reason.FORBIDDEN: "PERMISSION_DENIED",
    Reason.NOT_FOUND: "NOT_FOUND",
    Reason.PROVIDER: "UNAVAILABLE",
    Reason.SLOW: "DEADLINE_EXCEEDED",
    Reason.BUSY: "UNAVAILABLE",
}


class Gemini:
    """generateContent, streamGenerateContent and countTokens."""

    def rebuild(
        self, route: Route, head: RequestHead, body: bytes, policy: Policy
    ) -> Rebuilt | Refused:
        """Parse once, check, and write a new request."""
        try:
            return self._rebuild(route, head, body, policy)
        except RequestError as error:
            return refused(self, error)

    def _rebuild(self, route: Route, head: RequestHead, body: bytes, policy: Policy) -> Rebuilt:
        model = check_model(route.model, policy)
        asked, shaping = _spelled(parse(body)), Shaping.begin(policy, Api.GEMINI)
        limit = least = 0
        if route.operation is Operation.GENERATE:
            new = _shaped(asked, shaping)
            limit, least = _limit(new, policy)
        else:
            new = shaping.only(asked, _COUNT_FIELDS)
            whole = object_at(new, "generateContentRequest")
            if whole is not None:
                new["generateContentRequest"] = {
                    "model": f"models/{model}",
                    **_shaped(_spelled(whole), shaping),
                }
            else:
                _contents(new, "contents", shaping)
        is_streaming = route.is_streaming is True
        written = write(new)
        return Rebuilt(
            operation=route.operation,
            method="POST",
            path=route.path,
            headers=base_headers(head, is_streaming=is_streaming, has_body=True),
            body=written,
            model=model,
            is_streaming=is_streaming,
            input_tokens=shaping.weight.tokens(written),
            may_write_cache=False,
            output_tokens=limit,
            least_output_tokens=least,
            dropped=tuple(shaping.dropped),
        )

    def with_max_output(self, rebuilt: Rebuilt, tokens: int) -> Rebuilt:
        """Write the request again with a smaller limit."""
        assert tokens >= rebuilt.least_output_tokens, "a clamp below the thinking budget"  # noqa: S101 - a caller's bug
        if tokens >= rebuilt.output_tokens:
            return rebuilt
        body = read_again(rebuilt.body)
        config = object_at(body, "generationConfig") or {}
        body["generationConfig"] = {**config, "maxOutputTokens": tokens}
        return replace(rebuilt, body=write(body), output_tokens=tokens)

    def key_headers(self, key: str) -> Headers:
        """Give the header that carries the key."""
        return (("x-goog-api-key", key),)

    def meter(self, rebuilt: Rebuilt, *, is_event_stream: bool) -> UsageMeter:
        """Start to read an answer."""
        del rebuilt
        return GeminiMeter(is_event_stream=is_event_stream)

    def answer(
        self, reason: Reason, words: str, *, retry_after_seconds: int | None = None
    ) -> Answer:
        """Say no in the form of Gemini."""
        status = STATUSES[reason]
        error: JsonObject = {
            "code": status,
            "message": words,
            "status": _CODES.get(reason, "INVALID_ARGUMENT"),
        }
        return json_answer(
            reason, status, {"error": error}, retry_after_seconds=retry_after_seconds
        )


def _spelled(body: JsonObject) -> JsonObject:
    """Write each name of one level in the one spelling."""
    found: JsonObject = {}
    for name, value in body.items():
        spelled = _SNAKE.sub(lambda part: part.group(1).upper(), name)
        if spelled in found:
            raise RequestError("a field in its body is there in both spellings")
        found[spelled] = value
    return found


def _shaped(asked: JsonObject, shaping: Shaping) -> JsonObject:
    asked.pop("model", None)
    shaping.forbid(asked, "cachedContent")
    shaping.drop(asked, "serviceTier", "store", "labels")
    new = shaping.only(asked, _FIELDS)
    _contents(new, "contents", shaping)
    instruction = object_at(new, "systemInstruction")
    if instruction is not None:
        _parts(instruction, shaping)
    _shape_tools(new, shaping)
    config = object_at(new, "generationConfig")
    if config is not None:
        new["generationConfig"] = _config(_spelled(config), shaping)
    return new


def _config(config: JsonObject, shaping: Shaping) -> JsonObject:
    if config.pop("candidateCount", None) not in (None, 1):
        raise RequestError("only one answer may be asked for (candidateCount = 1)")
    modes = config.pop("responseModalities", None)
    if modes not in (None, [], ["TEXT"], ["text"]):
        raise RequestError("only answers in text may be asked for")
    shaping.drop(config, "speechConfig", "imageConfig")
    thinking = object_at(config, "thinkingConfig")
    if thinking is not None:
        config["thinkingConfig"] = _spelled(thinking)
    return config


def _limit(new: JsonObject, policy: Policy) -> tuple[int, int]:
    """Set the limit, thoughts included; gives it and the least that it may become."""
    config = object_at(new, "generationConfig") or {}
    limit = output_limit(config.get("maxOutputTokens"), "maxOutputTokens", policy)
    new["generationConfig"] = {**config, "maxOutputTokens": limit}
    thinking = object_at(config, "thinkingConfig") or {}
    budget = thinking.get("thinkingBudget")
    is_told = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
    floor = OUTPUT_FLOOR + (budget if is_told and isinstance(budget, int) else 0)
    return limit, min(limit, floor)


def _contents(new: JsonObject, name: str, shaping: Shaping) -> None:
    value = new.get(name)
    if isinstance(value, dict):
        new[name] = [value]
    for content in objects_at(new, name, is_needed=True):
        _parts(content, shaping)


def _parts(holder: JsonObject, shaping: Shaping) -> None:
    parts = holder.get("parts")
    for part in parts if isinstance(parts, list) else [parts]:
        if not isinstance(part, dict):
            continue
        spelled = _spelled(part)
        if "fileData" in spelled:
            shaping.remote("content that the provider fetches")
        inline = spelled.get("inlineData")
        if isinstance(inline, dict):
            _inline(_spelled(inline), shaping)
        answered = spelled.get("functionResponse")
        if isinstance(answered, dict):
            _parts(answered, shaping)


def _inline(inline: JsonObject, shaping: Shaping) -> None:
    kind, data = inline.get("mimeType"), inline.get("data")
    if not isinstance(kind, str) or not kind.startswith(_INLINE):
        raise RequestError("sound, films and unknown kinds of content are not allowed here")
    if not isinstance(data, str):
        return
    if kind.startswith("image/"):
        shaping.weight.image(data)
    else:
        shaping.weight.document(kind, data)


def _shape_tools(new: JsonObject, shaping: Shaping) -> None:
    value = new.get("tools")
    if isinstance(value, dict):
        new["tools"] = [value]
    tools = objects_at(new, "tools")
    kept: list[Json] = []
    for tool in tools:
        spelled = _spelled(tool)
        left = {
            name: one
            for name, one in spelled.items()
            if name == "functionDeclarations" or shaping.paid_tool(_tool_name(name))
        }
        if left:
            kept.append(left)
    need_tools(kept, tools)
    if tools:
        new["tools"] = kept


def _tool_name(name: str) -> str:
    known = {"googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext", "googleMaps"}
    return name if name in known else "of an unknown kind"
