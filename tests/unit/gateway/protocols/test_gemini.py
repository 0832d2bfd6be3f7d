"""Gemini: two spellings of one field, tools of the provider's, content by address."""

from __future__ import annotations

import pytest

from asking import GENERATE, STREAM_GENERATE, asked, found_route, passed, refusal, smallest
from forkyard.gateway.protocols.interface import OUTPUT_FLOOR, Operation, Policy, Rebuilt
from forkyard.gateway.protocols.json_body import Json, JsonObject

FUNCTIONS: JsonObject = {"functionDeclarations": [{"name": "run_shell_command"}]}
SAID: JsonObject = {"role": "user", "parts": [{"text": "hello"}]}


def with_part(part: JsonObject) -> JsonObject:
    """Give a request whose content is one part."""
    return {"contents": [{"role": "user", "parts": [part]}]}


def test_passes_when_the_agent_sends_what_it_does() -> None:
    """Functions, their calls and results, thinking and instructions stay as they are."""
    body: JsonObject = {
        "contents": [
            SAID,
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": {"name": "f", "args": {"fileData": {"fileUri": "x"}}},
                        "thoughtSignature": "c2ln",
                    }
                ],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"a": 1}}}]},
        ],
        "systemInstruction": {"role": "user", "parts": [{"text": "be"}]},
        "tools": [FUNCTIONS],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generationConfig": {
            "temperature": 0,
            "maxOutputTokens": 64_000,
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
        },
    }
    rebuilt, sent = passed(STREAM_GENERATE, body)
    assert sent == body
    assert rebuilt.is_streaming
    assert rebuilt.model == "gemini-2.5-pro"
    assert rebuilt.path == STREAM_GENERATE
    assert rebuilt.least_output_tokens == 8192 + OUTPUT_FLOOR
    assert not passed(GENERATE, body)[0].is_streaming


def test_writes_one_spelling_when_fields_come_in_another() -> None:
    """A limit in the other spelling is a limit; both at once are refused."""
    config: JsonObject = {
        "max_output_tokens": 9,
        "candidate_count": 1,
        "thinking_config": {"thinking_budget": 5},
    }
    body: JsonObject = {
        "contents": SAID,
        "generation_config": config,
        "system_instruction": {"parts": {"text": "be"}},
    }
    _, sent = passed(GENERATE, body)
    assert sent == {
        "contents": [SAID],
        "systemInstruction": {"parts": {"text": "be"}},
        "generationConfig": {"thinkingConfig": {"thinkingBudget": 5}, "maxOutputTokens": 9},
    }
    twice: JsonObject = {"maxOutputTokens": 9, "max_output_tokens": 90_000}
    for both in (
        smallest(STREAM_GENERATE, generationConfig=twice),
        smallest(STREAM_GENERATE, generationConfig={}, generation_config={}),
        with_part({"fileData": None, "file_data": {"file_uri": "x"}}),
    ):
        assert "both spellings" in refusal(GENERATE, both).reason


@pytest.mark.parametrize(
    "part",
    [
        {"fileData": {"fileUri": "https://a/"}},
        {"file_data": {"file_uri": "gs://a"}},
        {"functionResponse": {"name": "f", "parts": [{"fileData": {"fileUri": "https://a/"}}]}},
        {"function_response": {"name": "f", "parts": {"file_data": {"file_uri": "x"}}}},
    ],
)
def test_is_refused_when_the_provider_would_fetch_content(part: JsonObject) -> None:
    """In any spelling; a policy may allow it."""
    assert "put the content itself" in refusal(GENERATE, with_part(part)).reason
    instruction: JsonObject = {"parts": [part]}
    refusal(GENERATE, smallest(STREAM_GENERATE, systemInstruction=instruction))
    passed(GENERATE, with_part(part), policy=Policy(allows_remote_content=True))


@pytest.mark.parametrize("kind", ["audio/wav", "video/mp4", "x", None, ""])
def test_counts_pictures_apart_and_refuses_sound(kind: Json) -> None:
    """Pictures and documents are bounded; sound and films have prices of their own."""
    text, _ = passed(GENERATE, smallest(STREAM_GENERATE))
    found = refusal(GENERATE, with_part({"inlineData": {"mimeType": kind, "data": "aa"}}))
    assert "sound" in found.reason
    for mime, least in (("image/png", 5000), ("application/pdf", 50_000)):
        part: JsonObject = {"inline_data": {"mime_type": mime, "data": "aa"}}
        assert passed(GENERATE, with_part(part))[0].input_tokens > text.input_tokens + least


def test_takes_paid_tools_out_when_functions_are_left() -> None:
    """Also out of one entry with both; alone they are refused."""
    paid: list[JsonObject] = [
        {"googleSearch": {}},
        {"google_search": {}},
        {"codeExecution": {}},
        {"urlContext": {}},
        {"novelty": {}},
    ]
    for tool in paid:
        _, sent = passed(GENERATE, smallest(STREAM_GENERATE, tools=[FUNCTIONS, tool]))
        assert sent["tools"] == [FUNCTIONS]
        _, sent = passed(GENERATE, smallest(STREAM_GENERATE, tools={**FUNCTIONS, **tool}))
        assert sent["tools"] == [FUNCTIONS]
        only = smallest(STREAM_GENERATE, tools=[tool])
        assert "bills apart" in refusal(GENERATE, only).reason
        passed(GENERATE, only, policy=Policy(allows_paid_tools=True))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"candidateCount": 2}, "only one answer"),
        ({"candidate_count": 8}, "only one answer"),
        ({"responseModalities": ["TEXT", "IMAGE"]}, "answers in text"),
        ({"response_modalities": ["AUDIO"]}, "answers in text"),
        ({"max_output_tokens": "9"}, "no number of tokens"),
        (5, "no object"),
    ],
)
def test_is_refused_when_more_than_one_text_is_asked_for(config: Json, words: str) -> None:
    """Each more answer, picture or voice would be billed beyond the limit."""
    body = smallest(STREAM_GENERATE, generationConfig=config)
    assert words in refusal(GENERATE, body).reason


def test_is_refused_when_stored_state_is_named() -> None:
    """A stored cache is rented by the hour, and holds input that nobody has counted."""
    for name in ("cachedContent", "cached_content"):
        body = smallest(STREAM_GENERATE, **{name: "cachedContents/1"})
        assert "cachedContent" in refusal(GENERATE, body).reason


def test_counts_without_a_limit_when_tokens_are_only_counted() -> None:
    """Counting is free, and what it counts is checked like a request."""
    target = "/v1beta/models/gemini-2.5-pro:countTokens"
    assert found_route(target).operation is Operation.COUNT_TOKENS
    rebuilt, sent = passed(target, {"contents": [SAID]})
    assert sent == {"contents": [SAID]}
    assert rebuilt.output_tokens == 0
    whole: JsonObject = {"model": "models/other", "contents": [SAID]}
    rebuilt, sent = passed(target, {"generateContentRequest": whole})
    assert sent["generateContentRequest"] == {
        "model": "models/gemini-2.5-pro",
        "contents": [SAID],
    }
    part = with_part({"fileData": {"fileUri": "https://a/"}})
    refusal(target, {"generate_content_request": part})
    assert isinstance(asked(target, b'{"contents":{"parts":{"text":"a"}}}'), Rebuilt)
