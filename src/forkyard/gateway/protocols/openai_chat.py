"""OpenAI's Chat Completions, also as others speak it: what passes, how it is built anew.

A stream tells its usage only when asked to, so it is always asked: an agent that did not ask sees
one more event, with no choices, which the API allows.
"""

from __future__ import annotations

from dataclasses import replace

from forkyard.gateway.interface import Api
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
from forkyard.gateway.protocols.openai_answers import bearer, openai_answer, openai_headers
from forkyard.gateway.protocols.openai_meters import ChatMeter
from forkyard.gateway.protocols.refusal import RequestError, refused
from forkyard.gateway.protocols.shaping import (
    Shaping,
    check_model,
    flag,
    model_list,
    need_tools,
    objects_at,
    output_limit,
)

_FIELDS = {
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "response_format",
    "seed",
    "stream",
    "user",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "enable_thinking",
    "chat_template_kwargs",
    "verbosity",
    "prompt_cache_key",
    "safety_identifier",
}
_DEARER = ("service_tier", "store", "prediction", "metadata", "audio")
_LIMITS = ("max_completion_tokens", "max_tokens")


class Chat:
    """Chat Completions, and the list of models."""

    def rebuild(
        self, route: Route, head: RequestHead, body: bytes, policy: Policy
    ) -> Rebuilt | Refused:
        """Parse once, check, and write a new request."""
        if route.operation is Operation.MODELS:
            headers = openai_headers(head, is_streaming=False, has_body=False)
            return model_list(route, headers)
        try:
            return self._rebuild(route, head, body, policy)
        except RequestError as error:
            return refused(self, error)

    def _rebuild(self, route: Route, head: RequestHead, body: bytes, policy: Policy) -> Rebuilt:
        asked, shaping = parse(body), Shaping.begin(policy, Api.OPENAI)
        _one_answer_in_text(asked)
        if not policy.allows_paid_tools:
            shaping.forbid(asked, "web_search_options")
        asked.pop("stream_options", None)
        shaping.drop(asked, *_DEARER)
        fields = _FIELDS | {"web_search_options"} if policy.allows_paid_tools else _FIELDS
        new = shaping.only(asked, fields)
        model = check_model(new.get("model"), policy)
        limit = _limit(new, policy)
        for message in objects_at(new, "messages", is_needed=True):
            _parts(message.get("content"), shaping)
        _shape_tools(new, shaping)
        is_streaming = flag(new, "stream")
        if is_streaming:
            new["stream_options"] = {"include_usage": True}
        written = write(new)
        return Rebuilt(
            operation=Operation.CHAT,
            method="POST",
            path=route.path,
            headers=openai_headers(head, is_streaming=is_streaming),
            body=written,
            model=model,
            is_streaming=is_streaming,
            input_tokens=shaping.weight.tokens(written),
            may_write_cache=True,
            output_tokens=limit,
            least_output_tokens=min(limit, OUTPUT_FLOOR),
            dropped=tuple(shaping.dropped),
        )

    def with_max_output(self, rebuilt: Rebuilt, tokens: int) -> Rebuilt:
        """Write the request again with a smaller limit."""
        assert tokens >= rebuilt.least_output_tokens, "a clamp below the floor"  # noqa: S101 - a caller's bug
        if tokens >= rebuilt.output_tokens:
            return rebuilt
        body = read_again(rebuilt.body)
        body |= {name: tokens for name in _LIMITS if name in body}
        return replace(rebuilt, body=write(body), output_tokens=tokens)

    def key_headers(self, key: str) -> Headers:
        """Give the header that carries the key."""
        return bearer(key)

    def meter(self, rebuilt: Rebuilt, *, is_event_stream: bool) -> UsageMeter:
        """Start to read an answer."""
        del rebuilt
        return ChatMeter(is_event_stream=is_event_stream)

    def answer(
        self, reason: Reason, words: str, *, retry_after_seconds: int | None = None
    ) -> Answer:
        """Say no in the form of OpenAI."""
        return openai_answer(reason, words, retry_after_seconds)


def _one_answer_in_text(asked: JsonObject) -> None:
    if asked.pop("n", None) not in (None, 1) or asked.pop("best_of", None) not in (None, 1):
        raise RequestError("only one answer may be asked for (n = 1)")
    if asked.pop("modalities", None) not in (None, [], ["text"]):
        raise RequestError("only answers in text may be asked for")


def _limit(new: JsonObject, policy: Policy) -> int:
    """Set the limit under the names that were used; where none was, the one that surely holds."""
    asked = [new[name] for name in _LIMITS if new.get(name) is not None]
    limits = [output_limit(one, "max_tokens", policy) for one in asked]
    limit = min(limits) if limits else output_limit(None, "max_tokens", policy)
    for name in _LIMITS:
        if new.get(name) is not None:
            new[name] = limit
        else:
            new.pop(name, None)
    if policy.needs_max_tokens:
        new["max_tokens"] = limit
    elif not limits:
        new["max_completion_tokens"] = limit
    return limit


def _parts(content: Json, shaping: Shaping) -> None:
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "input_audio" or "input_audio" in part:
            raise RequestError("sound is not allowed here")
        image = part.get("image_url")
        address = image.get("url") if isinstance(image, dict) else image
        if isinstance(address, str):
            if not address.startswith("data:"):
                shaping.remote("content that the provider fetches")
            shaping.weight.image(address)
        if "video_url" in part:
            shaping.remote("content that the provider fetches")
        held = part.get("file")
        if isinstance(held, dict):
            _file(held, shaping)


def _file(held: JsonObject, shaping: Shaping) -> None:
    data = held.get("file_data")
    if isinstance(held.get("file_id"), str) or isinstance(held.get("file_url"), str):
        shaping.remote("content that the provider fetches")
    if isinstance(data, str):
        if "://" in data[:16]:
            shaping.remote("content that the provider fetches")
        shaping.weight.document(data, data)


def _shape_tools(new: JsonObject, shaping: Shaping) -> None:
    tools = objects_at(new, "tools")
    kept: list[Json] = [
        one
        for one in tools
        if one.get("type", "function") in ("function", "custom")
        or shaping.paid_tool("of an unknown kind")
    ]
    need_tools(kept, tools)
    if len(kept) < len(tools):
        new["tools"] = kept
