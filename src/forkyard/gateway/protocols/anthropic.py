"""Anthropic's Messages: what passes, how it is built anew, how no is said.

Tools that the provider runs are taken out; without any other tool left the request is refused.
"""

from __future__ import annotations

import re
from dataclasses import replace

from forkyard.gateway.interface import Api
from forkyard.gateway.protocols.anthropic_meter import MessagesMeter
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
    flag,
    header,
    model_list,
    need_tools,
    object_at,
    objects_at,
    output_limit,
)

_FIELDS = {
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "metadata",
    "max_tokens",
    "thinking",
    "context_management",
    "output_config",
    "output_format",
    "cache_control",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
}
_COUNT_FIELDS = _FIELDS - {"max_tokens", "stream", "metadata", "temperature", "top_p", "top_k"}
_DEARER = ("service_tier", "speed", "inference_geo", "fallbacks")
_REACHING = ("mcp_servers", "container")
_OWN_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""Run by the agent, or free; every other tool with a type but `custom` is the provider's."""
_PROVIDER_TOOLS = (
    "web_search",
    "web_fetch",
    "code_execution",
    "mcp_toolset",
    "advisor",
    "tool_search",
)
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}")
_BETA = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")
_REACHING_BETAS = (
    "mcp-client",
    "code-execution",
    "files-api",
    "skills",
    "web-fetch",
    "web-search",
    "fast-mode",
    "message-batches",
    "compact",
    "advisor",
    "server-side-fallback",
)
_TYPES = {
    Reason.BUDGET: "billing_error",
    Reason.LIMIT: "billing_error",
    Reason.RATE: "rate_limit_error",
    Reason.FORBIDDEN: "permission_error",
    Reason.NOT_FOUND: "not_found_error",
    Reason.TOO_LARGE: "request_too_large",
    Reason.PROVIDER: "api_error",
    Reason.SLOW: "timeout_error",
    Reason.BUSY: "overloaded_error",
}
_STATUSES = {**STATUSES, Reason.BUDGET: 402, Reason.LIMIT: 402}
"""402 is what its clients do not try again."""


class Anthropic:
    """Messages and count_tokens."""

    def rebuild(
        self, route: Route, head: RequestHead, body: bytes, policy: Policy
    ) -> Rebuilt | Refused:
        """Parse once, check, and write a new request."""
        try:
            return self._rebuild(route, head, body, policy)
        except RequestError as error:
            return refused(self, error)

    def _rebuild(self, route: Route, head: RequestHead, body: bytes, policy: Policy) -> Rebuilt:
        headers = _api_headers(head)
        if route.operation is Operation.MODELS:
            return model_list(
                route, base_headers(head, is_streaming=False, has_body=False) + headers
            )
        asked, shaping = parse(body), Shaping.begin(policy, Api.ANTHROPIC)
        shaping.forbid(asked, *_REACHING)
        shaping.drop(asked, *_DEARER)
        is_metered = route.operation is Operation.MESSAGES
        new = shaping.only(asked, _FIELDS if is_metered else _COUNT_FIELDS)
        model = check_model(new.get("model"), policy)
        _shape_content(new, shaping)
        is_streaming = flag(new, "stream")
        limit = least = 0
        if is_metered:
            limit, least = _limit(new, policy)
        written = write(new)
        return Rebuilt(
            operation=route.operation,
            method="POST",
            path=route.path,
            headers=base_headers(head, is_streaming=is_streaming, has_body=True) + headers,
            body=written,
            model=model,
            is_streaming=is_streaming,
            input_tokens=shaping.weight.tokens(written),
            may_write_cache=shaping.has_cache_mark,
            has_long_cache=shaping.has_long_cache,
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
        body["max_tokens"] = tokens
        return replace(rebuilt, body=write(body), output_tokens=tokens)

    def key_headers(self, key: str) -> Headers:
        """Give the header that carries the key."""
        return (("x-api-key", key),)

    def meter(self, rebuilt: Rebuilt, *, is_event_stream: bool) -> UsageMeter:
        """Start to read an answer."""
        del rebuilt
        return MessagesMeter(is_event_stream=is_event_stream)

    def answer(
        self, reason: Reason, words: str, *, retry_after_seconds: int | None = None
    ) -> Answer:
        """Say no in the form of Messages."""
        error: JsonObject = {
            "type": _TYPES.get(reason, "invalid_request_error"),
            "message": words,
        }
        return json_answer(
            reason,
            _STATUSES[reason],
            {"type": "error", "error": error},
            retry_after_seconds=retry_after_seconds,
        )


def _api_headers(head: RequestHead) -> Headers:
    """Copy the version and those features that neither cost nor reach."""
    version = header(head, "anthropic-version") or ""
    headers = [("anthropic-version", version if _VERSION.fullmatch(version) else "2023-06-01")]
    asked = [value for name, value in head.headers if name.lower() == "anthropic-beta"]
    betas = [one.strip() for value in asked for one in value.split(",")]
    kept = [one for one in betas if _BETA.fullmatch(one) and not one.startswith(_REACHING_BETAS)]
    if kept:
        headers.append(("anthropic-beta", ",".join(kept)))
    return tuple(headers)


def _limit(new: JsonObject, policy: Policy) -> tuple[int, int]:
    """Set the limit; gives it and the least that it may become."""
    limit = output_limit(new.get("max_tokens"), "max_tokens", policy)
    was_asked = new.get("max_tokens")
    new["max_tokens"] = limit
    thinking = object_at(new, "thinking")
    budget = thinking.get("budget_tokens") if thinking else None
    if budget is None:
        return limit, min(limit, OUTPUT_FLOOR)
    if not isinstance(budget, int) or isinstance(budget, bool) or not 0 <= budget < 10**9:
        raise RequestError("the field thinking.budget_tokens is no number of tokens")
    if budget >= limit and was_asked != limit:
        raise RequestError(
            f"its thinking budget of {budget} tokens does not fit below the limit of {limit}"
        )
    return limit, min(limit, budget + OUTPUT_FLOOR)


def _shape_content(new: JsonObject, shaping: Shaping) -> None:
    for message in objects_at(new, "messages", is_needed=True):
        _blocks(message.get("content"), shaping)
    _blocks(new.get("system"), shaping)
    _cache_mark(new, shaping)
    _shape_tools(new, shaping)
    management = object_at(new, "context_management")
    if management is not None:
        edits = objects_at(management, "edits")
        kept: list[Json] = [one for one in edits if not str(one.get("type")).startswith("compact")]
        if len(kept) < len(edits):
            # Summing up runs the model once more, beyond max_tokens.
            shaping.dropped.append("context_management compact")
            management["edits"] = kept


def _blocks(content: Json, shaping: Shaping) -> None:
    """Check content blocks, and those within results of tools and documents."""
    for block in content if isinstance(content, list) else [content]:
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        _cache_mark(block, shaping)
        if kind == "container_upload":
            shaping.remote("a file that the provider stores")
        source = block.get("source")
        if isinstance(source, dict):
            _source(kind, source, shaping)
        if kind != "tool_use":
            _blocks(block.get("content"), shaping)


def _source(kind: Json, source: JsonObject, shaping: Shaping) -> None:
    if source.get("type") in {"url", "file"} or "url" in source or "file_id" in source:
        shaping.remote("content that the provider fetches")
    data = source.get("data")
    if isinstance(data, str) and source.get("type") == "base64":
        if kind == "image":
            shaping.weight.image(data)
        else:
            shaping.weight.document(source.get("media_type"), data)
    _blocks(source.get("content"), shaping)


def _cache_mark(holder: JsonObject, shaping: Shaping) -> None:
    mark = holder.get("cache_control")
    if isinstance(mark, dict):
        shaping.has_cache_mark = True
        shaping.has_long_cache |= mark.get("ttl") not in (None, "5m")


def _shape_tools(new: JsonObject, shaping: Shaping) -> None:
    tools = objects_at(new, "tools")
    kept: list[Json] = []
    for tool in tools:
        _cache_mark(tool, shaping)
        kind = tool.get("type")
        is_own = kind in (None, "custom") or (isinstance(kind, str) and kind.startswith(_OWN_TOOLS))
        if is_own or shaping.paid_tool(_tool_name(kind)):
            kept.append(tool)
    need_tools(kept, tools)
    if len(kept) == len(tools):
        return
    new["tools"] = kept
    for one in kept:
        if isinstance(one, dict):
            one.pop("defer_loading", None)  # nothing that finds it may be left
    choice = new.get("tool_choice")
    names = {one.get("name") for one in kept if isinstance(one, dict)}
    if isinstance(choice, dict) and "name" in choice and choice["name"] not in names:
        raise RequestError("it insists on a tool that the provider runs and bills apart")


def _tool_name(kind: Json) -> str:
    named = (name for name in _PROVIDER_TOOLS if isinstance(kind, str) and kind.startswith(name))
    return next(named, "of an unknown kind")
