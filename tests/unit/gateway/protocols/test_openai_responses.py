"""Responses: what Codex sends passes, in code mode too; nothing is stored, nothing fetched."""

from __future__ import annotations

import pytest

from asking import RESPONSES, SAID, passed, refusal, smallest
from forkyard.gateway.protocols.interface import Policy
from forkyard.gateway.protocols.json_body import Json, JsonObject

OWN: JsonObject = {"type": "function", "name": "exec_command", "parameters": {}}
FREEFORM: JsonObject = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}
SEARCH: JsonObject = {"type": "web_search", "external_web_access": False}


def with_part(part: JsonObject) -> JsonObject:
    """Give a request whose message is one part."""
    said: list[Json] = [{"type": "message", "role": "user", "content": [part]}]
    return smallest(RESPONSES, input=said)


def test_passes_when_codex_sends_what_it_does() -> None:
    """Its web search goes, which it declares unasked; a limit comes; the rest stays in order."""
    body: JsonObject = {
        "model": "gpt-5.5",
        "instructions": "You are",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "a"}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
            {
                "type": "custom_tool_call_output",
                "call_id": "d",
                "output": [{"type": "input_text", "text": "b"}],
            },
        ],
        "tools": [OWN, FREEFORM],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "high", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
        "client_metadata": {"a": "b"},
    }
    rebuilt, sent = passed(RESPONSES, {**body, "tools": [OWN, SEARCH, FREEFORM]})
    assert sent == {**body, "max_output_tokens": rebuilt.output_tokens}
    assert rebuilt.is_streaming
    assert rebuilt.dropped == ("tool web_search",)
    assert [one for one in sent if one in body and one != "store"] == [
        one for one in body if one != "store"
    ]


def test_passes_when_tools_come_as_an_item_of_the_input() -> None:
    """Code mode has no tools at the top; those within items and namespaces are checked too."""
    space: JsonObject = {"type": "namespace", "name": "functions", "tools": [FREEFORM]}
    paid: JsonObject = {"type": "namespace", "name": "web", "tools": [SEARCH]}
    several: list[Json] = [space, paid, SEARCH]
    given: list[Json] = [{"type": "additional_tools", "tools": several}, *SAID]
    _, sent = passed(RESPONSES, smallest(RESPONSES, input=given))
    own: list[Json] = [space]
    left: list[Json] = [{"type": "additional_tools", "tools": own}, *SAID]
    assert sent["input"] == left
    assert "tools" not in sent
    paid_only: list[Json] = [SEARCH]
    only: list[Json] = [{"type": "additional_tools", "tools": paid_only}, *SAID]
    _, sent = passed(RESPONSES, smallest(RESPONSES, input=only))
    assert sent["input"] == SAID
    assert passed(RESPONSES, smallest(RESPONSES, input="text"))[1]["input"] == "text"


def test_stores_nothing_when_an_agent_asks_to() -> None:
    """Storing, working in the background and longer caches are not passed on."""
    body = smallest(RESPONSES, store=True, background=False, prompt_cache_retention="24h")
    _, sent = passed(RESPONSES, body)
    assert sent["store"] is False
    assert not {"background", "prompt_cache_retention"} & set(sent)


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
def test_is_refused_when_stored_state_is_named(name: str) -> None:
    """What the provider has stored would be input that nobody has counted."""
    stored: Json = {"id": "x"}
    assert name in refusal(RESPONSES, smallest(RESPONSES, **{name: stored})).reason
    assert name not in passed(RESPONSES, smallest(RESPONSES, **{name: None}))[1]
    item: list[Json] = [{"type": "item_reference", "id": "rs_1"}]
    assert "refers to an item" in refusal(RESPONSES, smallest(RESPONSES, input=item)).reason


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "https://a/"},
        {"type": "input_image", "image_url": "DATA:image/png;base64,aa"},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_file", "file_url": "http://10.0.0.1/"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "novelty", "content": {"image_url": "ftp://a/"}},
    ],
)
def test_is_refused_when_the_provider_would_fetch_content(part: JsonObject) -> None:
    """Also within what a tool answered; a policy may allow it."""
    assert "put the content itself" in refusal(RESPONSES, with_part(part)).reason
    answered: list[Json] = [{"type": "function_call_output", "call_id": "c", "output": [part]}]
    screen: list[Json] = [{"type": "computer_call_output", "call_id": "c", "output": part}]
    for given in (answered, screen):
        refusal(RESPONSES, smallest(RESPONSES, input=given))
    passed(RESPONSES, with_part(part), policy=Policy(allows_remote_content=True))


def test_counts_pictures_apart_and_refuses_sound() -> None:
    """Pictures and files in the body are bounded; sound has prices of its own."""
    text, _ = passed(RESPONSES, smallest(RESPONSES))
    image = with_part({"type": "input_image", "image_url": "data:image/png;base64,iVBO"})
    page = with_part({"type": "input_file", "file_data": "data:application/pdf;base64,JVBE"})
    assert passed(RESPONSES, image)[0].input_tokens > text.input_tokens + 5000
    assert passed(RESPONSES, page)[0].input_tokens > text.input_tokens + 50_000
    assert "sound" in refusal(RESPONSES, with_part({"type": "input_audio"})).reason


def test_is_refused_when_only_or_surely_a_paid_tool_is_asked_for() -> None:
    """Taking it out would leave nothing of what was asked."""
    for kind in ("web_search", "mcp", "code_interpreter", "shell", "novelty"):
        only = smallest(RESPONSES, tools=[{"type": kind}])
        assert "bills apart" in refusal(RESPONSES, only).reason
        passed(RESPONSES, only, policy=Policy(allows_paid_tools=True))
    choices: tuple[Json, ...] = (
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]},
    )
    for choice in choices:
        refusal(RESPONSES, smallest(RESPONSES, tools=[OWN, SEARCH], tool_choice=choice))
    local: JsonObject = {"type": "shell", "environment": {"type": "local"}}
    both: JsonObject = {"type": "allowed_tools", "mode": "auto", "tools": [OWN, SEARCH]}
    body = smallest(RESPONSES, tools=[OWN, local], tool_choice=both)
    _, sent = passed(RESPONSES, body)
    assert sent["tools"] == [OWN, local]
    assert sent["tool_choice"] == {**both, "tools": [OWN]}
