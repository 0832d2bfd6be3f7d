"""A request that is refused: the words inside, and the answer in the form of an API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from forkyard.gateway.interface import Outcome
from forkyard.gateway.protocols.interface import Answer, Local, ModelProtocol, Reason, Refused

if TYPE_CHECKING:
    from forkyard.gateway.protocols.json_body import JsonObject

STATUSES: Mapping[Reason, int] = {
    Reason.BUDGET: 400,
    Reason.LIMIT: 400,
    Reason.RATE: 429,
    Reason.REQUEST: 400,
    Reason.FORBIDDEN: 403,
    Reason.NOT_FOUND: 404,
    Reason.TOO_LARGE: 413,
    Reason.UPGRADE: 426,
    Reason.PROVIDER: 502,
    Reason.SLOW: 504,
    Reason.BUSY: 503,
}
"""Of an API that has no better ones."""

_WORTH_ANOTHER_TRY = {Reason.RATE, Reason.PROVIDER, Reason.SLOW, Reason.BUSY}
_OUTCOMES = {
    Reason.BUDGET: Outcome.REFUSED_BUDGET,
    Reason.LIMIT: Outcome.REFUSED_LIMIT,
    Reason.FORBIDDEN: Outcome.REFUSED_LIMIT,
    Reason.RATE: Outcome.PROVIDER_ERROR,
    Reason.PROVIDER: Outcome.PROVIDER_ERROR,
    Reason.SLOW: Outcome.PROVIDER_ERROR,
}


class RequestError(Exception):
    """Something in a request does not pass; the rebuilding API turns it into an answer."""

    def __init__(self, words: str, reason: Reason = Reason.REQUEST) -> None:
        """Keep a clause that holds no text of the request."""
        super().__init__(words)
        self.words = words
        self.reason = reason


def refused(protocol: ModelProtocol, error: RequestError) -> Refused:
    """Turn a finding into an answer and a line of the ledger."""
    words = f"cannot pass on request: {error.words}"
    return Refused(
        answer=protocol.answer(error.reason, words),
        outcome=_OUTCOMES.get(error.reason, Outcome.BAD_REQUEST),
        reason=words,
    )


def json_answer(
    reason: Reason, status: int, body: JsonObject, *, retry_after_seconds: int | None = None
) -> Answer:
    """Write an error's answer with the headers that stop or delay a client's next try."""
    headers = [("content-type", "application/json")]
    if reason not in _WORTH_ANOTHER_TRY:
        headers.append(("x-should-retry", "false"))
    if retry_after_seconds is not None:
        headers.append(("retry-after", str(max(1, retry_after_seconds))))
    return Answer(
        status=status, headers=tuple(headers), body=json.dumps(body, ensure_ascii=False).encode()
    )


def probe(status: int) -> Local:
    """Answer a probe with nothing but a status."""
    return Local(answer=Answer(status=status, headers=(), body=b""))
