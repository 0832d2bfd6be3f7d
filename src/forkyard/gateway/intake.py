"""A request as it comes from an agent, up to what will be sent: found, read, checked, rebuilt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from forkyard.gateway import answers
from forkyard.gateway.admission import Admission
from forkyard.gateway.interface import Outcome, Provider
from forkyard.gateway.protocols import content_coding, json_body, routing
from forkyard.gateway.protocols.interface import (
    Answer,
    Local,
    ModelProtocol,
    Policy,
    Reason,
    Rebuilt,
    Refused,
    RequestHead,
)
from forkyard.model.budget import Grant

BODY_SECONDS = 60.0
"""Within which a whole body has to come; it comes from the same machine."""
_OFF_LOOP_BYTES = 512 * 1024
_OFF_LOOP_MARKS = 5_000
"""Parsing more than these would hold up everybody's streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A request that may be sent, as soon as its budget allows."""

    protocol: ModelProtocol
    rebuilt: Rebuilt


class Intake:
    """Reads requests of one grant for one provider."""

    def __init__(self, grant: Grant, provider: Provider, admission: Admission) -> None:
        """Keep who asks whom; refusals go into the ledger by way of admission."""
        self._grant = grant
        self._provider = provider
        self._admission = admission

    async def read(self, request: web.BaseRequest) -> Accepted | web.StreamResponse:
        """Read a request and build the one that is sent in its place.

        Returns:
            What may be sent, or the answer that the agent gets at once.
        """
        head = RequestHead(
            method=request.method,
            target=request.raw_path,
            headers=tuple(request.headers.items()),
        )
        route = routing.route(self._provider.api, head)
        if isinstance(route, Local):
            return answers.given(route.answer)
        if isinstance(route, Refused):
            return await self._refuse(route)
        protocol = route.protocol
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(request)
        except TimeoutError:
            words = f"the body did not come within {BODY_SECONDS:g} s"
            return await self._say(protocol, Reason.REQUEST, words)
        if body is None:
            most = content_coding.MOST_BODY_BYTES
            words = f"the body is larger than {most} bytes"
            return await self._say(protocol, Reason.TOO_LARGE, words)
        encoding = request.headers.get("content-encoding", "")
        policy = Policy(
            models=self._provider.models,
            granted_models=self._grant.models,
            most_output_tokens=self._provider.most_output_tokens,
        )

        def build() -> Rebuilt | Refused:
            decoded = content_coding.decoded(
                body, encoding, most_bytes=content_coding.MOST_BODY_BYTES
            )
            return protocol.rebuild(route, head, decoded, policy)

        try:
            if len(body) > _OFF_LOOP_BYTES or encoding or json_body.marks(body) > _OFF_LOOP_MARKS:
                rebuilt = await asyncio.to_thread(build)
            else:
                rebuilt = build()
        except content_coding.ContentError as error:
            return await self._say(protocol, Reason.REQUEST, str(error))
        if isinstance(rebuilt, Refused):
            return await self._refuse(rebuilt)
        return Accepted(protocol=protocol, rebuilt=rebuilt)

    async def refuse_without_key(self, protocol: ModelProtocol) -> web.Response:
        """Refuse what the provider would refuse too, without telling it the prompt."""
        words = f"no key is set for provider {self._provider.name}"
        answer = protocol.answer(Reason.FORBIDDEN, words)
        return await self._note(answer, Outcome.PROVIDER_ERROR, words)

    async def _say(self, protocol: ModelProtocol, reason: Reason, words: str) -> web.Response:
        answer = protocol.answer(reason, words)
        return await self._note(answer, Outcome.BAD_REQUEST, words)

    async def _refuse(self, refused: Refused) -> web.Response:
        return await self._note(refused.answer, refused.outcome, refused.reason)

    async def _note(self, answer: Answer, outcome: Outcome, words: str) -> web.Response:
        await self._admission.refuse(
            self._grant.workspace,
            provider=self._provider.name,
            model="",
            outcome=outcome,
            status=answer.status,
            detail=words,
        )
        return answers.given(answer)


async def _body(request: web.BaseRequest) -> bytes | None:
    """Read a body; None where it is too large."""
    most = content_coding.MOST_BODY_BYTES
    if (length := request.content_length) is not None and length > most:
        return None
    if request.headers.get("expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = bytearray()
    while chunk := await request.content.readany():
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)
