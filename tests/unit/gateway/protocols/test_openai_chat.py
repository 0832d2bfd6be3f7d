"""Chat Completions, as OpenAI and others speak it."""

from __future__ import annotations

import json

import pytest

from asking import CHAT, SAID, passed, refusal, smallest
from forkyard.gateway.interface import Api, Provider
from forkyard.gateway.protocols.interface import Policy
from forkyard.gateway.protocols.json_body import Json, JsonObject
from forkyard.gateway.protocols.openai_chat import Chat

OWN: JsonObject = {"type": "function", "function": {"name": "bash", "parameters": {}}}


def with_part(part: JsonObject) -> JsonObject:
    """Give a request whose message is one part."""
    said: list[Json] = [{"role": "user", "content": [part]}]
    return smallest(CHAT, messages=said)


def test_asks_for_usage_when_it_streams() -> None:
    """Also where the agent did not, or said no; never without a stream."""
    wanted: JsonObject = {"include_usage": True}
    options: tuple[Json, ...] = (None, {"include_usage": False}, {"include_obfuscation": True})
    for one in options:
        _, sent = passed(CHAT, smallest(CHAT, stream=True, stream_options=one))
        assert sent["stream_options"] == wanted
    _, sent = passed(CHAT, smallest(CHAT, stream_options={"include_usage": True}))
    assert "stream_options" not in sent


def test_passes_when_agents_send_what_they_do() -> None:
    """Tools, calls and their results, reasoning and sampling stay as they are."""
    body: JsonObject = {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "be"},
            *SAID,
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ],
        "tools": [OWN],
        "tool_choice": "auto",
        "temperature": 0.0,
        "reasoning_effort": "high",
        "max_tokens": 4096,
    }
    rebuilt, sent = passed(CHAT, {**body, "n": 1, "metadata": {"a": "b"}, "store": True})
    assert sent == body
    assert rebuilt.dropped == ("store", "metadata")
    assert rebuilt.may_write_cache


def test_clamps_both_limits_when_both_are_named() -> None:
    """The lower of the two holds for both; the newer name is used where none was."""
    body = smallest(CHAT, max_tokens=9000, max_completion_tokens=8000)
    rebuilt, sent = passed(CHAT, body)
    assert (sent["max_tokens"], sent["max_completion_tokens"]) == (8000, 8000)
    assert rebuilt.output_tokens == 8000
    _, sent = passed(CHAT, smallest(CHAT, max_tokens=None))
    assert "max_tokens" not in sent
    assert "max_completion_tokens" in sent


def test_limits_by_the_old_name_too_when_the_newer_may_be_ignored() -> None:
    """Always under `max_tokens`, also after a clamp; never under a name that nobody used."""
    old = Policy(needs_max_tokens=True)
    _, sent = passed(CHAT, smallest(CHAT), policy=old)
    assert (sent["max_tokens"], "max_completion_tokens" in sent) == (32_000, False)
    _, sent = passed(CHAT, smallest(CHAT, max_tokens=9000), policy=old)
    assert (sent["max_tokens"], "max_completion_tokens" in sent) == (9000, False)
    rebuilt, sent = passed(CHAT, smallest(CHAT, max_completion_tokens=9000), policy=old)
    assert (sent["max_tokens"], sent["max_completion_tokens"]) == (9000, 9000)
    clamped = json.loads(Chat().with_max_output(rebuilt, 2000).body)
    assert (clamped["max_tokens"], clamped["max_completion_tokens"]) == (2000, 2000)


@pytest.mark.parametrize(
    ("url", "setting", "needs"),
    [
        ("https://api.openai.com", None, False),
        ("https://eu.api.openai.com", None, False),
        ("https://mine.openai.azure.com/openai", None, False),
        ("http://127.0.0.1:8000", None, True),
        ("https://notopenai.com", None, True),
        ("http://127.0.0.1:8000", "max_completion_tokens", False),
        ("https://api.openai.com", "max_tokens", True),
    ],
)
def test_a_provider_needs_the_old_name_when_it_is_not_openais(
    url: str, setting: str | None, needs: bool
) -> None:
    """Unless its settings say otherwise."""
    provider = Provider(name="p", api=Api.OPENAI, base_url=url, chat_limit=setting)
    assert provider.needs_max_tokens is needs


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 2), ("n", 0), ("n", "1"), ("best_of", 2), ("modalities", ["text", "audio"])],
)
def test_is_refused_when_more_than_one_text_is_asked_for(name: str, value: Json) -> None:
    """Each more answer would be billed beyond the limit."""
    assert "may be asked for" in refusal(CHAT, smallest(CHAT, **{name: value})).reason
    allowed: dict[str, Json] = {"n": 1, "best_of": 1, "modalities": ["text"]}
    assert name not in passed(CHAT, smallest(CHAT, **{name: allowed[name]}))[1]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://a/"}},
        {"type": "image_url", "image_url": "http://169.254.169.254/"},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_data": "https://a/"}},
        {"type": "video_url", "video_url": {"url": "https://a/"}},
    ],
)
def test_is_refused_when_the_provider_would_fetch_content(part: JsonObject) -> None:
    """A policy may allow it."""
    assert "put the content itself" in refusal(CHAT, with_part(part)).reason
    passed(CHAT, with_part(part), policy=Policy(allows_remote_content=True))


def test_counts_pictures_apart_and_refuses_sound() -> None:
    """Pictures and files in the body are bounded; sound has prices of its own."""
    text, _ = passed(CHAT, smallest(CHAT))
    address: JsonObject = {"url": "data:image/png;base64,iVBO"}
    image, _ = passed(CHAT, with_part({"type": "image_url", "image_url": address}))
    data: JsonObject = {"file_data": "data:application/pdf;base64,JVBE"}
    page, _ = passed(CHAT, with_part({"type": "file", "file": data}))
    assert image.input_tokens > text.input_tokens + 5000
    assert page.input_tokens > text.input_tokens + 50_000
    assert "sound" in refusal(CHAT, with_part({"type": "input_audio"})).reason


def test_takes_paid_tools_out_when_others_are_left() -> None:
    """Searching the web is refused; unknown kinds of tools go, and alone are refused."""
    assert "web_search_options" in refusal(CHAT, smallest(CHAT, web_search_options={"a": 1})).reason
    allowing = Policy(allows_paid_tools=True)
    body = smallest(CHAT, web_search_options={"a": 1})
    assert passed(CHAT, body, policy=allowing)[1] == {
        **body,
        "max_completion_tokens": 32_000,
    }
    plugin: JsonObject = {"type": "openrouter:web_search"}
    rebuilt, sent = passed(CHAT, smallest(CHAT, tools=[OWN, plugin]))
    assert sent["tools"] == [OWN]
    assert rebuilt.dropped == ("tool of an unknown kind",)
    assert "bills apart" in refusal(CHAT, smallest(CHAT, tools=[plugin])).reason
