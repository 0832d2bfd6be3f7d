"""The vocabulary of tests that ask the gateway's protocols: a request in, what is sent out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence

from forkyard.gateway.interface import Api
from forkyard.gateway.protocols import routing
from forkyard.gateway.protocols.interface import (
    Headers,
    Policy,
    Rebuilt,
    Refused,
    RequestHead,
    Route,
    UsageMeter,
)
from forkyard.gateway.protocols.json_body import Json, JsonObject
from scripted_model.anthropic import Anthropic
from scripted_model.gemini import Gemini
from scripted_model.openai_chat import Chat
from scripted_model.openai_responses import Responses
from scripted_model.reply import Reply, Speaker
from scripted_model.scenario import Usage

MESSAGES = "/v1/messages?beta=true"
RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
GENERATE = "/v1beta/models/gemini-2.5-pro:generateContent"
STREAM_GENERATE = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
SAID: list[Json] = [{"role": "user", "content": "hello"}]
SMALLEST: dict[str, tuple[Api, JsonObject]] = {
    MESSAGES: (Api.ANTHROPIC, {"model": "m", "max_tokens": 100, "messages": SAID}),
    RESPONSES: (Api.OPENAI, {"model": "m", "input": SAID}),
    CHAT: (Api.OPENAI, {"model": "m", "messages": SAID}),
    STREAM_GENERATE: (Api.GEMINI, {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}),
}
"""One small request of each API."""
SPEAKERS: dict[str, Speaker] = {
    MESSAGES: Anthropic(),
    RESPONSES: Responses(),
    CHAT: Chat(),
    STREAM_GENERATE: Gemini(),
}
TOLD = Usage(input=40, cache_read=30, cache_write=20, output=12, reasoning=2)


def found_route(target: str, *, headers: Headers = ()) -> Route:
    """Find a route that must exist."""
    api = next(one for path, (one, _) in SMALLEST.items() if path.split("?")[0][:5] in target)
    if target.startswith(("/v1/responses", "/v1/chat")):
        api = Api.OPENAI
    head = RequestHead(method="POST", target=target, headers=headers)
    route = routing.route(api, head)
    assert isinstance(route, Route)
    return route


def asked(
    target: str, body: JsonObject | bytes, *, policy: Policy | None = None, headers: Headers = ()
) -> Rebuilt | Refused:
    """Rebuild a request."""
    route = found_route(target, headers=headers)
    head = RequestHead(method="POST", target=target, headers=headers)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return route.protocol.rebuild(route, head, raw, policy or Policy())


def passed(
    target: str, body: JsonObject, *, policy: Policy | None = None, headers: Headers = ()
) -> tuple[Rebuilt, JsonObject]:
    """Rebuild a request that must pass; gives it and the body that is sent."""
    rebuilt = asked(target, body, policy=policy, headers=headers)
    assert isinstance(rebuilt, Rebuilt), rebuilt
    sent: JsonObject = json.loads(rebuilt.body)
    return rebuilt, sent


def refusal(target: str, body: JsonObject | bytes, *, policy: Policy | None = None) -> Refused:
    """Rebuild a request that must be refused."""
    found = asked(target, body, policy=policy)
    assert isinstance(found, Refused), found
    assert found.reason.startswith("cannot pass on request: ")
    assert json.loads(found.answer.body)["error"]["message"] == found.reason
    return found


def smallest(target: str, **fields: Json) -> JsonObject:
    """Give a small request with more fields."""
    return {**SMALLEST[target][1], **fields}


def meter(target: str, *, is_event_stream: bool = True) -> UsageMeter:
    """Start to read an answer to a small request."""
    rebuilt, _ = passed(target, SMALLEST[target][1])
    protocol = found_route(target).protocol
    return protocol.meter(rebuilt, is_event_stream=is_event_stream)


def reply(text: str, usage: Usage = TOLD, *, pieces: int = 3, is_cut: bool = False) -> Reply:
    """Give an answer of the scripted model."""
    return Reply(
        id="r1",
        model="m",
        text=text,
        thinking="hm",
        calls=(),
        usage=usage,
        pieces=pieces,
        is_cut=is_cut,
    )


def events(target: str, said: Reply) -> list[bytes]:
    """Give an answer as the events of a stream, usage asked for."""
    options: JsonObject = {"stream_options": {"include_usage": True}}
    return [one.encode() for one in SPEAKERS[target].stream(said, options)]


def chunked(stream: bytes, cuts: Sequence[int]) -> Iterable[bytes]:
    """Cut a stream at some places."""
    places = sorted({one % (len(stream) + 1) for one in cuts} | {0, len(stream)})
    for begin, end in itertools.pairwise(places):
        yield stream[begin:end]
