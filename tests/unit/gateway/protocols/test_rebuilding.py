"""What every API's rebuilding has in common: limits, models, idempotence, refusals' words."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asking import (
    CHAT,
    MESSAGES,
    RESPONSES,
    SAID,
    SMALLEST,
    STREAM_GENERATE,
    asked,
    found_route,
    passed,
    refusal,
    smallest,
)
from forkyard.gateway.interface import Outcome
from forkyard.gateway.protocols.interface import (
    DEFAULT_OUTPUT_TOKENS,
    OUTPUT_FLOOR,
    Policy,
    Reason,
    Rebuilt,
)
from forkyard.gateway.protocols.json_body import Json, JsonObject

APIS = tuple(SMALLEST)
MODEL = {target: "gemini-2.5-pro" if target == STREAM_GENERATE else "m" for target in APIS}
BUDGET_STATUS = {MESSAGES: 402, RESPONSES: 400, CHAT: 400, STREAM_GENERATE: 400}


def limited(target: str, most: Json) -> JsonObject:
    """Give a small request that asks for so much output."""
    if target == STREAM_GENERATE:
        return smallest(target, generationConfig={"maxOutputTokens": most})
    names = {MESSAGES: "max_tokens", RESPONSES: "max_output_tokens", CHAT: "max_tokens"}
    return smallest(target, **{names[target]: most})


def limit_of(target: str, sent: JsonObject) -> Json:
    """Read the limit out of a body that is sent."""
    if target == STREAM_GENERATE:
        config = sent["generationConfig"]
        assert isinstance(config, dict)
        return config["maxOutputTokens"]
    for name in ("max_tokens", "max_output_tokens", "max_completion_tokens"):
        if name in sent:
            return sent[name]
    return None


@pytest.mark.parametrize("target", APIS)
def test_sets_a_limit_when_a_request_names_none(target: str) -> None:
    """No request goes out without a limit; the provider's cap is one, else a default."""
    body = smallest(target)
    body.pop("max_tokens", None)
    rebuilt, sent = passed(target, body)
    assert limit_of(target, sent) == rebuilt.output_tokens == DEFAULT_OUTPUT_TOKENS
    capped, sent = passed(target, body, policy=Policy(most_output_tokens=900))
    assert limit_of(target, sent) == capped.output_tokens == capped.least_output_tokens == 900


@pytest.mark.parametrize("target", APIS)
def test_keeps_the_lower_when_a_request_names_a_limit(target: str) -> None:
    """What was asked holds below the cap, and the cap above it."""
    rebuilt, sent = passed(target, limited(target, 128_000))
    assert limit_of(target, sent) == rebuilt.output_tokens == 128_000
    assert rebuilt.least_output_tokens == OUTPUT_FLOOR
    policy = Policy(most_output_tokens=5000)
    _, sent = passed(target, limited(target, 128_000), policy=policy)
    assert limit_of(target, sent) == 5000
    _, sent = passed(target, limited(target, 7), policy=policy)
    assert limit_of(target, sent) == 7


@pytest.mark.parametrize("target", APIS)
@pytest.mark.parametrize("most", [0, -1, "9", True, 1.5, 10**12, [1]])
def test_is_refused_when_a_limit_is_none(target: str, most: Json) -> None:
    """Only a number of tokens is a limit."""
    assert "is no number of tokens" in refusal(target, limited(target, most)).reason


@pytest.mark.parametrize("target", APIS)
def test_is_written_again_when_the_limit_is_clamped(target: str) -> None:
    """The clamp changes the limit and nothing else, and never raises it."""
    rebuilt, sent = passed(target, limited(target, 128_000))
    protocol = found_route(target).protocol
    clamped = protocol.with_max_output(rebuilt, 2000)
    again = json.loads(clamped.body)
    assert limit_of(target, again) == clamped.output_tokens == 2000
    assert len(again) == len(sent)
    assert protocol.with_max_output(clamped, 128_000) == clamped
    assert clamped.input_tokens == rebuilt.input_tokens
    with pytest.raises(AssertionError):
        protocol.with_max_output(rebuilt, rebuilt.least_output_tokens - 1)


@pytest.mark.parametrize("target", APIS)
@settings(deadline=None)
@given(
    most=st.none() | st.integers(1, 200_000),
    text=st.text(st.characters(codec="utf-8"), max_size=30),
    stream=st.booleans(),
)
def test_changes_nothing_more_when_it_is_rebuilt_again(
    target: str, most: int | None, text: str, *, stream: bool
) -> None:
    """What was rebuilt passes as it is: rebuilding is idempotent."""
    body = limited(target, most)
    body["stream"] = stream
    raw = json.dumps(body).replace("hello", json.dumps(text)[1:-1]).encode()
    once = asked(target, raw)
    assert isinstance(once, Rebuilt)
    twice = asked(target, once.body)
    assert isinstance(twice, Rebuilt)
    assert twice.body == once.body
    assert twice.output_tokens == once.output_tokens


@pytest.mark.parametrize("target", APIS)
def test_lets_only_allowed_models_pass_when_there_is_a_list(target: str) -> None:
    """The provider's list knows a star at the end, the grant's is exact; both must allow."""
    name = MODEL[target]
    for policy in (
        Policy(),
        Policy(models=("other", name)),
        Policy(models=(name[:1] + "*",)),
        Policy(models=("*",), granted_models=(name,)),
    ):
        rebuilt, _ = passed(target, smallest(target), policy=policy)
        assert rebuilt.model == name
    for policy in (
        Policy(models=("other",)),
        Policy(models=(name + "x*",)),
        Policy(models=("*" + name,)),
        Policy(granted_models=("*",)),
        Policy(models=("other",), granted_models=(name,)),
    ):
        found = refusal(target, smallest(target), policy=policy)
        assert found.answer.status == 403
        assert found.outcome is Outcome.REFUSED_LIMIT


@pytest.mark.parametrize("target", [MESSAGES, RESPONSES, CHAT])
@pytest.mark.parametrize("name", [None, "", 5, "a b", "../b", "x" * 300, ["m"], "m\n"])
def test_is_refused_when_a_model_is_no_name(target: str, name: Json) -> None:
    """A model is a short name of plain characters, and needed."""
    assert "no model's name" in refusal(target, smallest(target, model=name)).reason


@pytest.mark.parametrize("target", APIS)
def test_drops_what_costs_more_when_it_is_asked_for(target: str) -> None:
    """A dearer service is not bought, and what we do not know is not sent."""
    rebuilt, sent = passed(target, smallest(target, service_tier="priority", novelty=1))
    assert not {"service_tier", "serviceTier", "novelty"} & set(sent)
    assert "1 unknown fields" in rebuilt.dropped
    assert any("ier" in one for one in rebuilt.dropped)


@pytest.mark.parametrize("target", APIS)
def test_says_stop_in_the_form_that_agents_understand(target: str) -> None:
    """A budget's end is not tried again; a rate is, after the time that is told."""
    protocol = found_route(target).protocol
    for reason in (Reason.BUDGET, Reason.LIMIT):
        answer = protocol.answer(reason, "cannot pass on request: nothing is left")
        assert answer.status == BUDGET_STATUS[target]
        assert ("x-should-retry", "false") in answer.headers
        assert b"nothing is left" in answer.body
        is_messages = target == MESSAGES
        assert (b"billing_error" in answer.body) == is_messages
    later = protocol.answer(Reason.RATE, "wait", retry_after_seconds=0)
    assert later.status == 429
    assert ("retry-after", "1") in later.headers
    assert "x-should-retry" not in dict(later.headers)
    statuses = {one: protocol.answer(one, "no").status for one in Reason}
    assert statuses[Reason.TOO_LARGE] == 413
    assert statuses[Reason.UPGRADE] == 426
    assert statuses[Reason.PROVIDER] == 502
    assert statuses[Reason.SLOW] == 504


@pytest.mark.parametrize("target", APIS)
def test_bounds_the_input_when_text_is_dense_or_plain(target: str) -> None:
    """No text is more tokens than it has bytes, and nothing less is sure."""
    empty, _ = passed(target, smallest(target))

    def grown(text: str) -> int:
        body = json.dumps(smallest(target)).replace("hello", "hello" + text)
        rebuilt = asked(target, body.encode())
        assert isinstance(rebuilt, Rebuilt)
        return rebuilt.input_tokens - empty.input_tokens

    assert grown("7" * 1000) >= 1000
    assert grown("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 1000) >= 2000
    assert grown("word " * 200) == 1000


def with_document(target: str, media: str, content: bytes) -> JsonObject:
    """Give a request that holds a document."""
    data = base64.b64encode(content).decode()
    address = f"data:{media};base64,{data}"
    source: JsonObject = {"type": "base64", "media_type": media, "data": data}
    parts: dict[str, JsonObject] = {
        MESSAGES: {"type": "document", "source": source},
        RESPONSES: {"type": "input_file", "file_data": address},
        CHAT: {"type": "file", "file": {"file_data": address}},
        STREAM_GENERATE: {"inlineData": {"mimeType": media, "data": data}},
    }
    name = {RESPONSES: "input", STREAM_GENERATE: "contents"}.get(target, "messages")
    inside = "parts" if target == STREAM_GENERATE else "content"
    said: list[Json] = [{"role": "user", inside: [parts[target]]}]
    return smallest(target, **{name: said})


@pytest.mark.parametrize("target", APIS)
def test_bounds_a_document_by_its_bytes_when_it_is_text(target: str) -> None:
    """A text in a document is as many tokens as it would be outside of one."""
    for size in (300, 300_000):
        rebuilt, _ = passed(target, with_document(target, "text/plain", b"7" * size))
        assert size < rebuilt.input_tokens < 2 * size + 6_000


@pytest.mark.parametrize("target", APIS)
@pytest.mark.parametrize("media", ["application/pdf", "text/plain"])
def test_bounds_a_document_by_what_models_read_when_it_has_pages(target: str, media: str) -> None:
    """A thousand pages lie in few bytes, whatever is said of them; nothing smaller is sure."""
    page = b"<</Type/Page/Parent 2 0 R/Contents 4 0 R>>"
    rebuilt, _ = passed(target, with_document(target, media, b"%PDF-1.7 " + page))

    assert rebuilt.input_tokens >= 1_000_000


@pytest.mark.parametrize("target", APIS)
def test_is_refused_when_the_conversation_is_no_list(target: str) -> None:
    """What is to be answered must be there."""
    name = {RESPONSES: "input", STREAM_GENERATE: "contents"}.get(target, "messages")
    wrong: tuple[Json, ...] = (None, 5, [5], {})
    for said in wrong:
        if target == STREAM_GENERATE and said == {}:
            continue
        assert name in refusal(target, smallest(target, **{name: said})).reason
    assert passed(target, smallest(target))[1][name]
    if target != STREAM_GENERATE:
        passed(target, smallest(target, stream=None, **{name: SAID}))
        assert "stream" in refusal(target, smallest(target, stream="yes")).reason
