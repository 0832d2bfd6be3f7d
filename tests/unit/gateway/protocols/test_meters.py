"""Usage is read to the token, however the bytes were cut and whatever else is among them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asking import (
    CHAT,
    MESSAGES,
    RESPONSES,
    SMALLEST,
    SPEAKERS,
    STREAM_GENERATE,
    TOLD,
    chunked,
    events,
    meter,
    passed,
    reply,
)
from forkyard.gateway.interface import Finish
from forkyard.gateway.protocols.interface import Reading
from forkyard.gateway.protocols.json_body import Json, JsonObject
from forkyard.model.budget import TokenCounts
from scripted_model.scenario import Usage

APIS = tuple(SMALLEST)
TRICKY = 'the "usage" of }\n\ndata: {"error": [DONE]} message_stop \\"prompt_tokens\\"'


def counts(target: str, usage: Usage = TOLD) -> TokenCounts:
    """Give what the meter has to say of an answer."""
    told = SPEAKERS[target].told(usage)
    return TokenCounts(
        input=told.input,
        cache_read=told.cache_read,
        cache_write=told.cache_write,
        cache_write_long=told.cache_write_long,
        output=told.output,
        reasoning=told.reasoning,
    )


def read(target: str, stream: bytes) -> Reading:
    """Read a stream in one piece."""
    found = meter(target)
    found.feed(stream)
    found.end()
    return found.reading()


@pytest.mark.parametrize("target", APIS)
@settings(deadline=None)
@given(
    text=st.text(max_size=60) | st.just(TRICKY),
    pieces=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 4000), max_size=30),
    returns=st.sampled_from((b"\n", b"\r\n", b"\r")),
)
def test_reads_the_same_when_a_stream_is_cut_anywhere(
    target: str, text: str, pieces: int, cuts: list[int], returns: bytes
) -> None:
    """Chunks, line ends and the model's own words change nothing."""
    usage = Usage(input=40, cache_read=30, cache_write=20, cache_write_long=5, output=12)
    told = SPEAKERS[target].told(usage)
    stream = b"".join(events(target, reply(text, told, pieces=pieces))).replace(b"\n", returns)
    found = meter(target)
    for chunk in chunked(stream, cuts):
        found.feed(chunk)
        assert found.reading().error is None
    found.end()
    whole = found.reading()
    assert whole == Reading(
        tokens=counts(target, usage),
        is_input_known=True,
        is_final=True,
        has_ended=True,
        finish=Finish.DONE,
    )


@pytest.mark.parametrize("target", APIS)
@settings(deadline=None)
@given(cut=st.integers(0, 4000))
def test_is_neither_final_nor_ended_when_a_stream_is_cut_early(target: str, cut: int) -> None:
    """A stream that lacks its last event has not ended, and is not called malformed."""
    whole = events(target, reply("hello you"))
    last = 2 if target == CHAT else 1
    stream = b"".join(whole[:-last])
    found = read(target, stream[: cut % (len(stream) + 1)])
    assert not found.has_ended
    assert not found.is_malformed
    if target != MESSAGES:
        assert not found.is_final


@pytest.mark.parametrize("target", APIS)
def test_reads_whole_answers_when_nothing_was_streamed(target: str) -> None:
    """One JSON body tells the same numbers as a stream."""
    told = SPEAKERS[target].told(TOLD)
    found = meter(target, is_event_stream=False)
    for chunk in chunked(json.dumps(SPEAKERS[target].whole(reply("hi", told))).encode(), [7, 90]):
        found.feed(chunk)
    assert found.reading() == Reading()
    found.end()
    assert found.reading() == Reading(
        tokens=counts(target),
        is_input_known=True,
        is_final=True,
        has_ended=True,
        finish=Finish.DONE,
    )


@pytest.mark.parametrize("target", APIS)
def test_has_ended_when_the_model_ran_into_its_limit(target: str) -> None:
    """An answer that was cut by its own limit came to its end."""
    found = read(target, b"".join(events(target, reply("hi", is_cut=True))))
    assert found.has_ended
    assert found.is_final


@pytest.mark.parametrize("target", APIS)
def test_tells_the_error_when_one_comes_in_the_stream(target: str) -> None:
    """The error's kind is a word that is known; anything else is `other`."""
    start = events(target, reply("hi"))[0]
    known = {STREAM_GENERATE: "UNAVAILABLE", RESPONSES: "rate_limit_exceeded"}
    kind = known.get(target, "overloaded_error")
    for said, told in ((kind, kind), ("sk-secret", "other")):
        found = read(target, start + SPEAKERS[target].stream_error(said, "busy").encode())
        assert found.error == told
        assert found.has_ended
        assert not found.is_final


@pytest.mark.parametrize("target", APIS)
def test_says_malformed_when_an_event_is_no_json(target: str) -> None:
    """A broken event among whole ones is noticed without reading all of them."""
    parts = events(target, reply("hello you all"))
    parts[1] = b'data: {"type": "broken\n\n'
    found = read(target, b"".join(parts))
    assert found.is_malformed
    whole = meter(target, is_event_stream=False)
    whole.feed(b'{"oops": ')
    whole.end()
    assert whole.reading() == Reading(is_malformed=True)


@pytest.mark.parametrize("target", APIS)
@settings(deadline=None)
@given(junk=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_never_raises_when_it_is_fed_junk(target: str, junk: bytes, cuts: list[int]) -> None:
    """Whatever a provider sends, a reading comes out, and its numbers are none."""
    stream = b'data: {"usage": ' + junk + b'}\n\n"usageMetadata" "error"' + junk + b"\n\n"
    for is_event_stream in (True, False):
        found = meter(target, is_event_stream=is_event_stream)
        for chunk in chunked(stream, cuts):
            found.feed(chunk)
        found.end()
        assert found.reading().tokens == TokenCounts()


@pytest.mark.parametrize("told", [-1, 10**30, True, "12", None, 1.5, [], {}])
def test_counts_nothing_when_a_number_is_none(told: Json) -> None:
    """Only a whole number that could be one is taken from a provider."""
    usage: JsonObject = {"prompt_tokens": told, "completion_tokens": 1}
    chunk: JsonObject = {"choices": [], "usage": usage}
    found = read(CHAT, b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
    assert found == Reading(has_ended=True)


def test_overlays_the_start_when_a_delta_tells_more() -> None:
    """Messages' numbers are cumulative; inner rounds that the top leaves out are added."""
    start: JsonObject = {"input_tokens": 3, "cache_read_input_tokens": 9, "output_tokens": 1}
    rounds: list[Json] = [{"input_tokens": 3, "output_tokens": 4}, {"output_tokens": 30}]
    delta: JsonObject = {"output_tokens": 4, "iterations": rounds, "input_tokens": 3}
    stream = (
        f"data: {json.dumps({'type': 'message_start', 'message': {'usage': start}})}\n\n"
        f"data: {json.dumps({'type': 'message_delta', 'usage': delta})}\n\n"
    )
    found = read(MESSAGES, stream.encode())
    assert found.tokens == TokenCounts(input=3, cache_read=9, output=34)
    assert found.is_final
    assert not found.has_ended


def test_is_not_final_when_a_server_tells_usage_in_every_event() -> None:
    """Some servers of Chat tell a growing usage; only the last counts."""
    usage: JsonObject = {"prompt_tokens": 5, "completion_tokens": 1}
    chunk: JsonObject = {"choices": [{"delta": {}}], "usage": usage}
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    assert not read(CHAT, event).is_final
    assert read(CHAT, event).is_input_known
    assert read(CHAT, event + b"data: [DONE]\n").is_final


def test_bounds_by_what_is_known_when_a_stream_was_cut() -> None:
    """Known input stays, unknown output is the limit; nothing known is the bound by size."""
    rebuilt, _ = passed(MESSAGES, SMALLEST[MESSAGES][1])
    begun = read(MESSAGES, events(MESSAGES, reply("hi"))[0])
    assert begun.bound(rebuilt) == TokenCounts(input=40, cache_read=30, cache_write=20, output=100)
    assert Reading().bound(rebuilt) == TokenCounts(input=rebuilt.input_tokens, output=100)
    marked: JsonObject = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    cached, _ = passed(MESSAGES, SMALLEST[MESSAGES][1] | marked)
    size = cached.input_tokens
    bound = TokenCounts(cache_write=size, cache_write_long=size, output=100)
    assert Reading().bound(cached) == bound
    final = read(MESSAGES, b"".join(events(MESSAGES, reply("hi"))))
    assert final.bound(rebuilt) == final.tokens


def test_gives_up_when_one_event_never_ends() -> None:
    """Nothing is kept beyond a limit; the answer counts as malformed."""
    found = meter(CHAT)
    for _ in range(70):
        found.feed(b"data: " + b"x" * 500_000)
    found.end()
    assert found.reading() == Reading(is_malformed=True)
    whole = meter(CHAT, is_event_stream=False)
    for _ in range(70):
        whole.feed(b"x" * 1_000_000)
    whole.end()
    assert whole.reading() == Reading(is_malformed=True)


@pytest.mark.parametrize("target", APIS)
@pytest.mark.parametrize("is_event_stream", [True, False])
def test_finish_is_a_limit_when_the_answer_was_cut_at_one(
    target: str, *, is_event_stream: bool
) -> None:
    """Each API has its own word for it."""
    cut = reply("so far", is_cut=True)
    found = meter(target, is_event_stream=is_event_stream)
    if is_event_stream:
        found.feed(b"".join(events(target, cut)))
    else:
        found.feed(json.dumps(SPEAKERS[target].whole(cut)).encode())
    found.end()

    assert found.reading().finish is Finish.LENGTH
    assert found.reading().is_final


def test_finish_is_another_when_the_word_is_not_known() -> None:
    """Nothing that a provider writes gets further than to be told from the words we know."""
    found = meter(MESSAGES, is_event_stream=False)
    found.feed(
        b'{"type": "message", "stop_reason": "a whole sentence", "usage": {"output_tokens": 1}}'
    )
    found.end()

    assert found.reading().finish is Finish.OTHER
