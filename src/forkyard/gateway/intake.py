"""A request as it comes from an agent, up to what will be sent: found, read, checked, rebuilt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast
from weakref import WeakValueDictionary

from aiohttp import web

from forkyard.gateway import answers
from forkyard.gateway.admission import Admission
from forkyard.gateway.interface import Outcome, Provider
from forkyard.gateway.protocols import content_coding, json_body, routing, shaping
from forkyard.gateway.protocols.interface import (
    Answer,
    Local,
    ModelProtocol,
    Policy,
    Reason,
    Rebuilt,
    Refused,
    RequestHead,
    Route,
)
from forkyard.gateway.room import PLACE, Place, Room, RoomError
from forkyard.model.budget import Grant
from forkyard.model.ids import WorkspaceId

BODY_SECONDS = 60.0
"""Within which a whole body has to come; it comes from the same machine."""
_OFF_LOOP_BYTES = 512 * 1024
_OFF_LOOP_MARKS = 5_000
"""Parsing more than these would hold up everybody's streams."""
_STEP_BYTES = 1024 * 1024
_BUSY_SECONDS = 5
"""After which an agent that found no room may try again."""

_room = Room()
_threads = ThreadPoolExecutor(2, thread_name_prefix="rebuilding")
"""Few, since they take their time from everybody's streams."""
_turns: WeakValueDictionary[WorkspaceId, asyncio.Lock] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A request that may be sent, as soon as its budget allows."""

    protocol: ModelProtocol
    rebuilt: Rebuilt


class Intake:
    """Reads requests of one grant for one provider."""

    def __init__(
        self, grant: Grant, provider: Provider, admission: Admission, *, room: Room | None = None
    ) -> None:
        """Keep who asks whom; refusals go into the ledger by way of admission.

        Args:
            grant: Whose requests they are.
            provider: To whom they go.
            admission: Where refusals are entered.
            room: For their bodies; None: what the whole process has.
        """
        self._grant = grant
        self._provider = provider
        self._admission = admission
        self._place = (_room if room is None else room).place(grant.workspace)

    async def read(self, request: web.BaseRequest) -> Accepted | web.StreamResponse:
        """Read a request and build the one that is sent in its place.

        Returns:
            What may be sent, or the answer that the agent gets at once. What may be sent has a
            place in memory, which the request carries; who sends it gives it back.
        """
        try:
            found = await self._read(request)
        except BaseException:
            self._place.leave()
            raise
        if isinstance(found, Accepted):
            request[PLACE] = self._place
        else:
            self._place.leave()
        return found

    async def _read(self, request: web.BaseRequest) -> Accepted | web.StreamResponse:
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
            body = await _body(request, self._place)
        except RoomError:
            return await self._busy(protocol)
        except TimeoutError:
            words = f"the body did not come within {BODY_SECONDS:g} s"
            return await self._say(protocol, Reason.REQUEST, words)
        if body is None:
            most = content_coding.MOST_BODY_BYTES
            words = f"the body is larger than {most} bytes"
            return await self._say(protocol, Reason.TOO_LARGE, words)
        return await self._rebuild(route, head, body)

    async def _rebuild(
        self, route: Route, head: RequestHead, body: bytes
    ) -> Accepted | web.StreamResponse:
        protocol = route.protocol
        encoding = shaping.header(head, "content-encoding") or ""
        policy = Policy(
            models=self._provider.models,
            granted_models=self._grant.models,
            most_output_tokens=self._provider.most_output_tokens,
            needs_max_tokens=self._provider.needs_max_tokens,
        )

        def build() -> Rebuilt | Refused:
            decoded = content_coding.decoded(
                body, encoding, most_bytes=content_coding.MOST_BODY_BYTES
            )
            return protocol.rebuild(route, head, decoded, policy)

        try:
            if len(body) > _OFF_LOOP_BYTES or encoding or json_body.marks(body) > _OFF_LOOP_MARKS:
                rebuilt = await _apart(self._grant.workspace, build)
            else:
                rebuilt = build()
            if isinstance(rebuilt, Rebuilt):
                await self._place.hold(len(rebuilt.body))
        except RoomError:
            return await self._busy(protocol)
        except content_coding.ContentError as error:
            return await self._say(protocol, Reason.REQUEST, str(error))
        if isinstance(rebuilt, Refused):
            return await self._refuse(rebuilt)
        return Accepted(protocol=protocol, rebuilt=rebuilt)

    async def refuse_without_key(self, protocol: ModelProtocol) -> web.Response:
        """Refuse what the provider would refuse too, without telling it the prompt."""
        self._place.leave()
        words = f"no key is set for provider {self._provider.name}"
        answer = protocol.answer(Reason.FORBIDDEN, words)
        return await self._note(answer, Outcome.PROVIDER_ERROR, words)

    async def _busy(self, protocol: ModelProtocol) -> web.Response:
        words = "the gateway holds too many large requests at the moment"
        answer = protocol.answer(Reason.BUSY, words, retry_after_seconds=_BUSY_SECONDS)
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


async def _body(request: web.BaseRequest, place: Place) -> bytes | None:
    """Read a body into its place; None where it is too large.

    Raises:
        RoomError: There is no room for it.
        TimeoutError: It did not come.
    """
    most = content_coding.MOST_BODY_BYTES
    if (length := request.content_length) is not None:
        if length > most:
            return None
        await place.hold(length)
    held = length or 0
    if request.headers.get("expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = bytearray()
    async with asyncio.timeout(BODY_SECONDS):
        while chunk := await request.content.readany():
            if len(body) + len(chunk) > most:
                return None
            if len(body) + len(chunk) > held:
                held = len(body) + len(chunk) + _STEP_BYTES
                await place.hold(held)
            body += chunk
    # It is only read, as bytes are; making bytes of it would take as much memory again.
    return cast("bytes", body)


async def _apart(
    workspace: WorkspaceId, build: Callable[[], Rebuilt | Refused]
) -> Rebuilt | Refused:
    """Rebuild a large body off the loop, one of each workspace at a time.

    Cancellation:
        It is rebuilt all the same, and its workspace's next one waits for that.
    """
    turn = _turns.setdefault(workspace, asyncio.Lock())
    await turn.acquire()

    def ended(done: asyncio.Future[Rebuilt | Refused]) -> None:
        turn.release()
        if not done.cancelled():
            done.exception()  # told where it is awaited, if it still is

    building = asyncio.get_running_loop().run_in_executor(_threads, build)
    building.add_done_callback(ended)
    return await asyncio.shield(building)
