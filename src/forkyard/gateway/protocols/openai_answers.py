"""What both of OpenAI's APIs share: how no is said, which headers pass, which errors are known."""

from __future__ import annotations

import re

from forkyard.gateway.protocols.interface import Answer, Headers, Reason, RequestHead
from forkyard.gateway.protocols.json_body import JsonObject
from forkyard.gateway.protocols.refusal import STATUSES, json_answer
from forkyard.gateway.protocols.shaping import base_headers, header

ERRORS = {
    "invalid_request_error",
    "invalid_prompt",
    "context_length_exceeded",
    "insufficient_quota",
    "rate_limit_error",
    "rate_limit_exceeded",
    "server_error",
    "server_is_overloaded",
    "slow_down",
    "overloaded_error",
}
_CODES = {
    Reason.BUDGET: "budget_exceeded",
    Reason.LIMIT: "request_limit_exceeded",
    Reason.RATE: "rate_limit_exceeded",
    Reason.FORBIDDEN: "not_allowed",
    Reason.NOT_FOUND: "not_found",
    Reason.TOO_LARGE: "request_too_large",
    Reason.UPGRADE: "no_websocket",
    Reason.PROVIDER: "provider_unreachable",
    Reason.SLOW: "provider_timeout",
    Reason.BUSY: "gateway_busy",
}
_TYPES = {
    Reason.RATE: "rate_limit_error",
    Reason.PROVIDER: "server_error",
    Reason.SLOW: "server_error",
    Reason.BUSY: "server_error",
}
_BETA = re.compile(r"[a-z0-9_]+=[a-z0-9._-]{1,40}")


def openai_answer(reason: Reason, words: str, retry_after_seconds: int | None) -> Answer:
    """Say no in the form of OpenAI."""
    error: JsonObject = {
        "message": words,
        "type": _TYPES.get(reason, "invalid_request_error"),
        "param": None,
        "code": _CODES.get(reason, "invalid_request"),
    }
    return json_answer(
        reason, STATUSES[reason], {"error": error}, retry_after_seconds=retry_after_seconds
    )


def openai_headers(head: RequestHead, *, is_streaming: bool, has_body: bool = True) -> Headers:
    """Write a request's headers; of the agent's, its name and harmless betas are kept."""
    headers = base_headers(head, is_streaming=is_streaming, has_body=has_body)
    beta = header(head, "openai-beta")
    if beta is not None and _BETA.fullmatch(beta) and not beta.startswith("responses_websocket"):
        return (*headers, ("openai-beta", beta))
    return headers


def bearer(key: str) -> Headers:
    """Give the header that carries the key."""
    return (("authorization", f"Bearer {key}"),)
