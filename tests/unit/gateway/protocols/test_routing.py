"""Only exact paths go on; probes are answered; everything else is refused in the API's form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asking import CHAT, MESSAGES, RESPONSES, STREAM_GENERATE
from forkyard.gateway.interface import Api, Outcome
from forkyard.gateway.protocols import routing
from forkyard.gateway.protocols.interface import (
    Headers,
    Local,
    Operation,
    Policy,
    Rebuilt,
    Refused,
    RequestHead,
    Route,
)

ALLOWED = (
    (Api.ANTHROPIC, "POST", "/v1/messages", Operation.MESSAGES),
    (Api.ANTHROPIC, "POST", MESSAGES, Operation.MESSAGES),
    (Api.ANTHROPIC, "POST", "/v1/messages/count_tokens?beta=true", Operation.COUNT_TOKENS),
    (Api.ANTHROPIC, "GET", "/v1/models", Operation.MODELS),
    (Api.OPENAI, "POST", RESPONSES, Operation.RESPONSES),
    (Api.OPENAI, "POST", CHAT, Operation.CHAT),
    (Api.OPENAI, "GET", "/v1/models", Operation.MODELS),
    (Api.GEMINI, "POST", STREAM_GENERATE, Operation.GENERATE),
    (Api.GEMINI, "POST", "/v1beta/models/m:generateContent", Operation.GENERATE),
    (Api.GEMINI, "POST", "/v1beta/models/m:countTokens", Operation.COUNT_TOKENS),
)
REFUSED = (
    (Api.ANTHROPIC, "GET", "/v1/messages", 404),
    (Api.ANTHROPIC, "POST", "/v1/messages/batches", 404),
    (Api.ANTHROPIC, "POST", "/v1/complete", 404),
    (Api.ANTHROPIC, "POST", RESPONSES, 404),
    (Api.ANTHROPIC, "POST", "/v1/messages/", 403),
    (Api.ANTHROPIC, "POST", "//v1/messages", 403),
    (Api.ANTHROPIC, "POST", "/v1/files/../messages", 403),
    (Api.ANTHROPIC, "POST", "/v1/%6dessages", 403),
    (Api.ANTHROPIC, "POST", "/v1/messages%2f..", 403),
    (Api.ANTHROPIC, "POST", "http://elsewhere/v1/messages", 403),
    (Api.ANTHROPIC, "POST", "/v1/messages#a", 403),
    (Api.ANTHROPIC, "POST", "/v1/messages;a=b", 403),
    (Api.ANTHROPIC, "CONNECT", "elsewhere:443", 403),
    (Api.ANTHROPIC, "POST", "", 403),
    (Api.OPENAI, "POST", "/v1/messages", 404),
    (Api.OPENAI, "POST", "/v1/files", 404),
    (Api.OPENAI, "POST", "/v1/responses/resp_1/cancel", 404),
    (Api.OPENAI, "GET", "/v1/responses/resp_1", 404),
    (Api.OPENAI, "DELETE", "/v1/models", 404),
    (Api.OPENAI, "POST", "/v1/embeddings", 404),
    (Api.GEMINI, "POST", "/v1beta/models/m:streamGenerateContent", 400),
    (Api.GEMINI, "POST", "/v1beta/models/m:batchGenerateContent", 404),
    (Api.GEMINI, "POST", "/v1beta/cachedContents", 404),
    (Api.GEMINI, "GET", "/v1beta/models/m:generateContent", 404),
    (Api.GEMINI, "POST", "/upload/v1beta/files", 404),
)
KEYS = ("authorization", "x-api-key", "x-goog-api-key", "cookie", "proxy-authorization", "host")


def ask(api: Api, method: str, target: str, headers: Headers = ()) -> Route | Refused | Local:
    """Find a route."""
    return routing.route(api, RequestHead(method=method, target=target, headers=headers))


@pytest.mark.parametrize(("api", "method", "target", "operation"), ALLOWED)
def test_goes_on_when_a_path_is_allowed(
    api: Api, method: str, target: str, operation: Operation
) -> None:
    """Each endpoint of each API is found, and its path is sent as we write it."""
    found = ask(api, method, target)
    assert isinstance(found, Route)
    assert found.operation is operation
    assert found.path == target
    more = ask(api, method, f"{target}{'&' if '?' in target else '?'}key=sk-secret&a=../b")
    assert isinstance(more, Route)
    assert more.path == target
    assert operation.is_metered == (operation.value not in {"models", "count-tokens"})


@pytest.mark.parametrize(("api", "method", "target", "status"), REFUSED)
def test_is_refused_when_a_path_is_anything_else(
    api: Api, method: str, target: str, status: int
) -> None:
    """The error has the API's own shape and says not to try again."""
    found = ask(api, method, target)
    assert isinstance(found, Refused)
    assert found.answer.status == status
    assert ("x-should-retry", "false") in found.answer.headers
    error = json.loads(found.answer.body)["error"]
    assert error["message"] == found.reason
    shape = {Api.ANTHROPIC: "type", Api.OPENAI: "code", Api.GEMINI: "status"}
    assert isinstance(error[shape[api]], str)
    is_limit = status == 403
    assert found.outcome is (Outcome.REFUSED_LIMIT if is_limit else Outcome.BAD_REQUEST)


@pytest.mark.parametrize("api", Api)
def test_answers_at_once_when_an_agent_only_probes(api: Api) -> None:
    """The probes that some agents send cost nothing and reach nobody."""
    for target, status in (("/", 404), ("/api/hello", 200)):
        found = ask(api, "HEAD", target)
        assert isinstance(found, Local)
        assert (found.answer.status, found.answer.body) == (status, b"")
    assert isinstance(ask(api, "HEAD", "/v1/messages"), Refused)


@pytest.mark.parametrize("api", Api)
def test_refuses_at_once_when_a_websocket_is_asked_for(api: Api) -> None:
    """The status is the one that makes clients fall back to plain HTTP."""
    upgrade = (("Connection", "Upgrade"), ("Upgrade", "WebSocket"))
    found = ask(api, "GET", RESPONSES, upgrade)
    assert isinstance(found, Refused)
    assert found.answer.status == 426


@settings(deadline=None)
@given(target=st.text(max_size=40), method=st.sampled_from(("GET", "POST", "HEAD", "TRACE")))
def test_never_raises_when_a_target_is_junk(target: str, method: str) -> None:
    """Whatever stands in a request line, a refusal comes out, and no text of it."""
    for api in Api:
        found = ask(api, method, "/zz" + target)
        assert isinstance(found, Refused)
        assert found.answer.status in {403, 404}


@pytest.mark.parametrize(("api", "method", "target", "operation"), ALLOWED)
def test_copies_no_key_and_no_stranger_when_headers_are_built(
    api: Api, method: str, target: str, operation: Operation
) -> None:
    """Only headers of the list go on, and the agent's name only where it is printable."""
    hostile: Headers = (
        *((name, "sk-secret") for name in KEYS),
        ("Accept-Encoding", "br"),
        ("Connection", "x-api-key"),
        ("X-Forwarded-For", "sk-secret"),
        ("User-Agent", "agent/1 (x)"),
    )
    found = ask(api, method, target)
    assert isinstance(found, Route)
    head = RequestHead(method=method, target=target, headers=hostile)
    said = {"model": "m", "messages": [], "input": "x", "contents": []}
    body = b"" if method == "GET" else json.dumps(said).encode()
    rebuilt = found.protocol.rebuild(found, head, body, Policy())
    assert isinstance(rebuilt, Rebuilt)
    headers = dict(rebuilt.headers)
    assert "sk-secret" not in repr(rebuilt)
    assert headers["user-agent"] == "agent/1 (x)"
    assert headers["accept-encoding"] == "identity"
    assert ("content-type" in headers) == (method == "POST")
    assert not {"connection", "x-forwarded-for", *KEYS} & set(headers)
    assert rebuilt.method == method
    assert rebuilt.operation is operation
    [(name, value)] = found.protocol.key_headers("sk-own")
    assert name in KEYS
    assert value.endswith("sk-own")
