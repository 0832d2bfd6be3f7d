"""OpenAI's Responses: what passes, how it is built anew.

Nothing is ever stored at the provider, so nothing stored can be referred to either. Tools that the
provider runs are taken out: Codex declares web search unasked and does without it.
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
from forkyard.gateway.protocols.openai_meters import ResponsesMeter
from forkyard.gateway.protocols.refusal import RequestError, refused
from forkyard.gateway.protocols.shaping import (
    Shaping,
    check_model,
    flag,
    need_tools,
    objects_at,
    output_limit,
)

_FIELDS = {
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "max_output_tokens",
    "stream",
    "stream_options",
    "include",
    "prompt_cache_key",
    "temperature",
    "top_p",
    "top_logprobs",
    "truncation",
    "metadata",
    "client_metadata",
    "user",
    "safety_identifier",
}
_DEARER = ("service_tier", "background", "store", "prompt_cache_retention", "max_tool_calls")
_REACHING = ("previous_response_id", "conversation", "prompt")
_OWN_TOOLS = {"function", "custom", "local_shell", "apply_patch", "tool_search", "computer"}
_PROVIDER_TOOLS = {
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "computer_use_preview",
    "shell",
}


class Responses:
    """Responses."""

    def rebuild(
        self, route: Route, head: RequestHead, body: bytes, policy: Policy
    ) -> Rebuilt | Refused:
        """Parse once, check, and write a new request."""
        try:
            return self._rebuild(route, head, body, policy)
        except RequestError as error:
            return refused(self, error)

    def _rebuild(self, route: Route, head: RequestHead, body: bytes, policy: Policy) -> Rebuilt:
        asked, shaping = parse(body), Shaping.begin(policy, Api.OPENAI)
        shaping.forbid(asked, *_REACHING)
        shaping.drop(asked, *_DEARER)
        new = shaping.only(asked, _FIELDS)
        new["store"] = False
        model = check_model(new.get("model"), policy)
        limit = output_limit(new.get("max_output_tokens"), "max_output_tokens", policy)
        new["max_output_tokens"] = limit
        _shape_input(new, shaping)
        _shape_tools(new, shaping)
        is_streaming = flag(new, "stream")
        written = write(new)
        return Rebuilt(
            operation=Operation.RESPONSES,
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
        body["max_output_tokens"] = tokens
        return replace(rebuilt, body=write(body), output_tokens=tokens)

    def key_headers(self, key: str) -> Headers:
        """Give the header that carries the key."""
        return bearer(key)

    def meter(self, rebuilt: Rebuilt, *, is_event_stream: bool) -> UsageMeter:
        """Start to read an answer."""
        del rebuilt
        return ResponsesMeter(is_event_stream=is_event_stream)

    def answer(
        self, reason: Reason, words: str, *, retry_after_seconds: int | None = None
    ) -> Answer:
        """Say no in the form of OpenAI."""
        return openai_answer(reason, words, retry_after_seconds)


def _shape_input(new: JsonObject, shaping: Shaping) -> None:
    given = new.get("input")
    if isinstance(given, str):
        return
    kept: list[Json] = []
    for item in objects_at(new, "input", is_needed=True):
        if item.get("type") == "item_reference":
            raise RequestError("it refers to an item that the provider would have stored")
        if item.get("type") == "additional_tools":
            tools = objects_at(item, "tools")
            left = _own_tools(tools, shaping)
            if tools and not left:
                continue
            item["tools"] = left
        else:
            _parts(item, shaping)
        kept.append(item)
    new["input"] = kept


def _parts(holder: JsonObject, shaping: Shaping) -> None:
    """Check an item or one of its parts for what the provider would fetch."""
    for name in ("file_id", "file_url"):
        if isinstance(holder.get(name), str):
            shaping.remote("content that the provider fetches")
    image = holder.get("image_url")
    if isinstance(image, str):
        if not image.startswith("data:"):
            shaping.remote("content that the provider fetches")
        shaping.weight.image(image)
    document = holder.get("file_data")
    if isinstance(document, str):
        shaping.weight.document(document, document)
    if holder.get("type") == "input_audio":
        raise RequestError("sound is not allowed here")
    for name in ("content", "output"):
        inside = holder.get(name)
        for part in inside if isinstance(inside, list) else [inside]:
            if isinstance(part, dict):
                _parts(part, shaping)


def _shape_tools(new: JsonObject, shaping: Shaping) -> None:
    tools = objects_at(new, "tools")
    kept = _own_tools(tools, shaping)
    need_tools(kept, tools)
    choice = new.get("tool_choice")
    if isinstance(choice, dict):
        _check_choice(choice, shaping)
    if tools:
        new["tools"] = kept


def _check_choice(choice: JsonObject, shaping: Shaping) -> None:
    """Refuse a choice that insists on a tool of the provider's."""
    allowed = choice.get("tools")
    if choice.get("type") == "allowed_tools" and isinstance(allowed, list):
        named = [one for one in allowed if isinstance(one, dict)]
        kept = _own_tools(named, shaping)
        need_tools(kept, named)
        choice["tools"] = kept
    elif choice.get("type") in _PROVIDER_TOOLS and not _is_own(choice, shaping):
        raise RequestError("it insists on a tool that the provider runs and bills apart")


def _own_tools(tools: list[JsonObject], shaping: Shaping) -> list[Json]:
    kept: list[Json] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            inner = objects_at(tool, "tools")
            left = _own_tools(inner, shaping)
            if left or not inner:
                kept.append({**tool, "tools": left})
        elif _is_own(tool, shaping):
            kept.append(tool)
    return kept


def _is_own(tool: JsonObject, shaping: Shaping) -> bool:
    kind = tool.get("type")
    if kind in _OWN_TOOLS:
        return True
    environment = tool.get("environment")
    if kind == "shell" and isinstance(environment, dict) and environment.get("type") == "local":
        return True
    named = kind if isinstance(kind, str) and kind in _PROVIDER_TOOLS else "of an unknown kind"
    return shaping.paid_tool(named)
