"""Which requests go on at all: exact method and path of one API; everything else is refused.

The path that is sent upstream is written here, never copied. A query is not copied either: what
little an API needs of it is part of that path.
"""

from __future__ import annotations

import re

from forkyard.gateway.interface import Api
from forkyard.gateway.protocols.anthropic import Anthropic
from forkyard.gateway.protocols.gemini import Gemini
from forkyard.gateway.protocols.interface import (
    Local,
    ModelProtocol,
    Operation,
    Reason,
    Refused,
    RequestHead,
    Route,
)
from forkyard.gateway.protocols.openai_chat import Chat
from forkyard.gateway.protocols.openai_responses import Responses
from forkyard.gateway.protocols.refusal import RequestError, probe, refused
from forkyard.gateway.protocols.shaping import header

_ANTHROPIC, _RESPONSES, _CHAT, _GEMINI = Anthropic(), Responses(), Chat(), Gemini()
_DEFAULTS: dict[Api, ModelProtocol] = {
    Api.ANTHROPIC: _ANTHROPIC,
    Api.OPENAI: _RESPONSES,
    Api.GEMINI: _GEMINI,
}
_PLAIN = re.compile(r"(?:/[A-Za-z0-9._:@-]+)+")
_DOTS = re.compile(r"/\.\.?(?:/|$)")
_GEMINI_PATH = re.compile(r"/v1beta/models/([A-Za-z0-9][A-Za-z0-9._-]*):([A-Za-z]+)")


def route(api: Api, head: RequestHead) -> Route | Refused | Local:
    """Find what a request asks for, before its body is read.

    Args:
        api: The provider's, whose listener the request came to.
        head: As it came; its target is raw.
    """
    path, _, query = head.target.partition("?")
    if head.method == "HEAD" and path in {"/", "/api/hello"}:
        return probe(200 if path == "/api/hello" else 404)
    try:
        return _route(api, head, path, query)
    except RequestError as error:
        return refused(_DEFAULTS[api], error)


def _route(api: Api, head: RequestHead, path: str, query: str) -> Route:
    if "websocket" in (header(head, "upgrade") or "").lower():
        raise RequestError("no WebSocket is spoken here, only HTTP", Reason.UPGRADE)
    if not _PLAIN.fullmatch(path) or _DOTS.search(path):
        raise RequestError("its path is not a plain one", Reason.FORBIDDEN)
    if api is Api.ANTHROPIC:
        found = _anthropic(head.method, path, query)
    elif api is Api.OPENAI:
        found = _openai(head.method, path)
    else:
        found = _gemini(head.method, path, query)
    if found is None:
        raise RequestError("only the models themselves can be asked here", Reason.NOT_FOUND)
    return found


def _anthropic(method: str, path: str, query: str) -> Route | None:
    beta = "?beta=true" if "beta=true" in query.split("&") else ""
    match method, path:
        case "POST", "/v1/messages":
            operation = Operation.MESSAGES
        case "POST", "/v1/messages/count_tokens":
            operation = Operation.COUNT_TOKENS
        case "GET", "/v1/models":
            operation, beta = Operation.MODELS, ""
        case _:
            return None
    return Route(operation=operation, protocol=_ANTHROPIC, path=path + beta)


def _openai(method: str, path: str) -> Route | None:
    match method, path:
        case "POST", "/v1/responses":
            return Route(operation=Operation.RESPONSES, protocol=_RESPONSES, path=path)
        case "POST", "/v1/chat/completions":
            return Route(operation=Operation.CHAT, protocol=_CHAT, path=path)
        case "GET", "/v1/models":
            return Route(operation=Operation.MODELS, protocol=_CHAT, path=path)
        case _:
            return None


def _gemini(method: str, path: str, query: str) -> Route | None:
    found = _GEMINI_PATH.fullmatch(path)
    if found is None or method != "POST":
        return None
    match found.group(2):
        case "generateContent":
            operation, is_streaming = Operation.GENERATE, False
        case "streamGenerateContent":
            if "alt=sse" not in query.split("&"):
                raise RequestError("a stream is to be asked for as events (alt=sse)")
            operation, is_streaming = Operation.GENERATE, True
            path += "?alt=sse"
        case "countTokens":
            operation, is_streaming = Operation.COUNT_TOKENS, False
        case _:
            return None
    return Route(
        operation=operation,
        protocol=_GEMINI,
        path=path,
        model=found.group(1),
        is_streaming=is_streaming,
    )
