"""Messages: what Claude Code sends passes; what reaches out or is billed apart does not."""

from __future__ import annotations

import pytest

from asking import MESSAGES, SAID, found_route, passed, refusal, smallest
from forkyard.gateway.protocols.interface import OUTPUT_FLOOR, Operation, Policy
from forkyard.gateway.protocols.json_body import Json, JsonObject

PNG = "iVBORw0KGgo="
OWN: JsonObject = {"name": "Bash", "input_schema": {"type": "object"}}
SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}


def with_block(block: JsonObject) -> JsonObject:
    """Give a request whose message is one block."""
    said: list[Json] = [{"role": "user", "content": [block]}]
    return smallest(MESSAGES, messages=said)


def test_passes_unchanged_when_an_agent_sends_all_that_it_knows() -> None:
    """Messages of the system in mid-conversation, adaptive thinking, tools of its own."""
    body: JsonObject = {
        "model": "claude-opus-5-5",
        "max_tokens": 128_000,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "{}"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool_use",
                        "id": "t",
                        "name": "Bash",
                        "input": {"source": {"type": "url"}},
                    }
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": "ok",
                        "new_field": [1.5, None],
                    }
                ],
            },
            {"role": "system", "content": "remember"},
        ],
        "tools": [OWN, {"type": "custom", **OWN}, {"type": "bash_20250124", "name": "bash"}],
    }
    rebuilt, sent = passed(MESSAGES, body)
    assert sent == body
    assert list(sent) == list(body)
    assert rebuilt.is_streaming
    assert rebuilt.may_write_cache
    assert not rebuilt.has_long_cache
    assert rebuilt.dropped == ()


@pytest.mark.parametrize(
    ("budget", "most", "least"),
    [(1024, 128_000, 1024 + OUTPUT_FLOOR), (31_999, 32_000, 32_000), (90_000, 32_000, 32_000)],
)
def test_keeps_room_beyond_thinking_when_it_may_be_clamped(
    budget: int, most: int, least: int
) -> None:
    """The least limit is the thinking budget and a floor, or what was asked."""
    thinking: JsonObject = {"type": "enabled", "budget_tokens": budget}
    rebuilt, _ = passed(MESSAGES, smallest(MESSAGES, max_tokens=most, thinking=thinking))
    assert rebuilt.least_output_tokens == least


@pytest.mark.parametrize("budget", ["9", -1, True, 10**12])
def test_is_refused_when_a_thinking_budget_is_none(budget: Json) -> None:
    """Only a number of tokens is a budget, and it has to fit below the provider's cap."""
    thinking: JsonObject = {"type": "enabled", "budget_tokens": budget}
    assert "budget_tokens" in refusal(MESSAGES, smallest(MESSAGES, thinking=thinking)).reason
    fair: JsonObject = {"type": "enabled", "budget_tokens": 9000}
    body = smallest(MESSAGES, max_tokens=10_000, thinking=fair)
    found = refusal(MESSAGES, body, policy=Policy(most_output_tokens=8000))
    assert "9000 tokens does not fit below the limit of 8000" in found.reason


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document", "source": {"type": "url", "url": "https://a/"}},
        {"type": "novelty", "source": {"type": "base64", "url": "https://a/"}},
        {"type": "container_upload", "file_id": "file_1"},
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "image", "source": {"type": "url", "url": "https://a/"}}],
        },
        {
            "type": "document",
            "source": {
                "type": "content",
                "content": [{"type": "image", "source": {"type": "url", "url": "https://a/"}}],
            },
        },
    ],
)
def test_is_refused_when_the_provider_would_fetch_content(block: JsonObject) -> None:
    """However deep it stands; a policy may allow it."""
    assert "put the content itself" in refusal(MESSAGES, with_block(block)).reason
    passed(MESSAGES, with_block(block), policy=Policy(allows_remote_content=True))


def test_counts_pictures_apart_when_the_body_holds_them() -> None:
    """A picture is bounded by what pictures cost, not by its bytes."""
    small: JsonObject = {"type": "base64", "media_type": "image/png", "data": PNG}
    large: JsonObject = {**small, "data": PNG * 10_000}
    one, _ = passed(MESSAGES, with_block({"type": "image", "source": small}))
    other, _ = passed(MESSAGES, with_block({"type": "image", "source": large}))
    page, _ = passed(MESSAGES, with_block({"type": "document", "source": small}))
    text, _ = passed(MESSAGES, smallest(MESSAGES))
    assert abs(other.input_tokens - one.input_tokens) <= 1
    assert one.input_tokens > text.input_tokens + 48_000
    assert page.input_tokens > one.input_tokens


def test_takes_paid_tools_out_when_others_are_left() -> None:
    """The agent keeps its own; alone or insisted on, a paid one is refused."""
    paid: list[JsonObject] = [
        SEARCH,
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "surprise_20990101", "name": "surprise"},
        {"type": 5, "name": "x"},
    ]
    for tool in paid:
        both: list[Json] = [OWN, tool]
        rebuilt, sent = passed(MESSAGES, smallest(MESSAGES, tools=both))
        assert sent["tools"] == [OWN]
        assert len(rebuilt.dropped) == 1
        assert "surprise" not in rebuilt.dropped[0]
        alone = refusal(MESSAGES, smallest(MESSAGES, tools=[tool]))
        assert "bills apart" in alone.reason
        _, sent = passed(
            MESSAGES, smallest(MESSAGES, tools=both), policy=Policy(allows_paid_tools=True)
        )
        assert sent["tools"] == both
    deferred: JsonObject = {**OWN, "defer_loading": True}
    found: JsonObject = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    _, sent = passed(MESSAGES, smallest(MESSAGES, tools=[deferred, found]))
    assert sent["tools"] == [OWN]
    choice: JsonObject = {"type": "tool", "name": "web_search"}
    insisting = smallest(MESSAGES, tools=[OWN, SEARCH], tool_choice=choice)
    assert "insists" in refusal(MESSAGES, insisting).reason
    passed(MESSAGES, {**insisting, "tool_choice": {"type": "tool", "name": "Bash"}})


@pytest.mark.parametrize("name", ["mcp_servers", "container"])
def test_is_refused_when_a_field_reaches_out(name: str) -> None:
    """Absent, null and empty are the same; anything else is refused."""
    empty: tuple[Json, ...] = (None, [], {}, "")
    for nothing in empty:
        assert name not in passed(MESSAGES, smallest(MESSAGES, **{name: nothing}))[1]
    said: Json = [{"type": "url", "url": "https://a/"}]
    assert name in refusal(MESSAGES, smallest(MESSAGES, **{name: said})).reason


def test_drops_what_would_be_billed_beyond_the_limit() -> None:
    """Fast answers and summing up on the provider's side go; clearing stays."""
    edits: list[Json] = [{"type": "compact_20260112"}, {"type": "clear_tool_uses_20250919"}]
    body = smallest(MESSAGES, context_management={"edits": edits}, speed="fast", container=None)
    rebuilt, sent = passed(MESSAGES, body)
    assert sent["context_management"] == {"edits": edits[1:]}
    assert "speed" not in sent
    assert rebuilt.dropped == ("speed", "context_management compact")


def test_knows_the_long_cache_when_any_mark_asks_for_it() -> None:
    """In a block, a tool or at the top: one mark makes the bound dearer."""
    mark: JsonObject = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    bodies = (
        with_block({"type": "text", "text": "a", **mark}),
        smallest(MESSAGES, tools=[{**OWN, **mark}]),
        smallest(MESSAGES, system=[{"type": "text", "text": "a", **mark}]),
        smallest(MESSAGES, **mark),
    )
    for body in bodies:
        rebuilt, sent = passed(MESSAGES, body)
        assert rebuilt.has_long_cache
        assert sent == body


def test_copies_version_and_harmless_betas_when_they_are_there() -> None:
    """Betas that reach out or cost are left out; a version that is none is replaced."""
    betas = "claude-code-20250219, interleaved-thinking-2025-05-14,mcp-client-2025-11-20"
    headers = (
        ("Anthropic-Version", "2023-06-01\r\nx: y"),
        ("Anthropic-Beta", betas),
        ("anthropic-beta", "context-1m-2025-08-07,files-api-2025-04-14,b\rad,fast-mode-2026-02-01"),
    )
    rebuilt, _ = passed(MESSAGES, smallest(MESSAGES), headers=headers)
    sent = dict(rebuilt.headers)
    assert sent["anthropic-version"] == "2023-06-01"
    kept = "claude-code-20250219,interleaved-thinking-2025-05-14,context-1m-2025-08-07"
    assert sent["anthropic-beta"] == kept
    own, _ = passed(MESSAGES, smallest(MESSAGES), headers=(("anthropic-version", "2024-01-01"),))
    assert dict(own.headers)["anthropic-version"] == "2024-01-01"
    assert "anthropic-beta" not in dict(own.headers)


def test_counts_without_a_limit_when_tokens_are_only_counted() -> None:
    """count_tokens is free, checked like any other request, and has no limit."""
    target = "/v1/messages/count_tokens"
    rebuilt, sent = passed(target, {"model": "m", "messages": SAID, "max_tokens": 5})
    assert rebuilt.operation is Operation.COUNT_TOKENS
    assert "max_tokens" not in sent
    assert rebuilt.output_tokens == 0
    assert found_route(target).path == target
    assert "model" in refusal(target, {"messages": SAID}).reason
