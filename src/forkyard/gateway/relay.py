"""One request's life: found, rebuilt, reserved for, sent, streamed while it is metered, settled.

It runs in a task of its own, so that an agent that goes away cannot take the settlement with it:
what was sent is read on for a bounded time and booked as the provider tells it, or else at its
upper bound. Bytes of an answer pass untouched; nothing of an error does before it was looked at.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

import aiohttp
from aiohttp import web

from forkyard.errors import ForkyardError
from forkyard.gateway import answers
from forkyard.gateway.admission import Admission
from forkyard.gateway.budget import FLOOR_TOKENS, Ask
from forkyard.gateway.governor import THROTTLED, Governor, PatienceError
from forkyard.gateway.interface import Outcome, Provider
from forkyard.gateway.keys import Key, KeyRing
from forkyard.gateway.line import Reservation
from forkyard.gateway.passing import (
    MOST_STREAM_BYTES,
    Free,
    Stalls,
    Stream,
    TooLargeError,
    Whole,
    is_life,
)
from forkyard.gateway.prices import ModelPrice, bound_of
from forkyard.gateway.protocols.content_coding import ContentError, Decoder
from forkyard.gateway.protocols.interface import ModelProtocol, Reading, Reason, Rebuilt, UsageMeter
from forkyard.gateway.room import PLACE
from forkyard.gateway.serving import RefusedError
from forkyard.gateway.told import Told, as_read, fault, wrong_with
from forkyard.gateway.upstream import Patience, Stalled, Upstream
from forkyard.model.budget import Grant, TokenCounts

_log = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""How long an answer is read on for when its agent is gone: most end by then, and are exact."""
_EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every exchange with one provider needs."""

    provider: Provider
    key: Key | None
    keys: KeyRing
    upstream: Upstream
    governor: Governor
    admission: Admission


class Exchange:
    """One rebuilt request on its way; `run` once, `leave` when the agent is gone."""

    def __init__(
        self,
        parts: Parts,
        grant: Grant,
        request: web.BaseRequest,
        protocol: ModelProtocol,
        rebuilt: Rebuilt,
        *,
        price: ModelPrice | None,
        stalls: Stalls,
    ) -> None:
        """Keep everything; nothing has happened yet."""
        self._parts = parts
        self._grant = grant
        self._request = request
        self._protocol = protocol
        self._rebuilt = rebuilt
        self._price = price
        self._stalls = stalls
        self._is_gone = False
        self._is_sent = False
        self._is_writing = False
        self._is_cut = False
        self._first_byte: int | None = None
        self._task: asyncio.Task[web.StreamResponse] | None = None
        self._meter: UsageMeter | None = None
        self._to: Stream | Whole | None = None

    def start(self) -> asyncio.Task[web.StreamResponse]:
        """Run it in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        # Also where it is cancelled before it begins.
        self._task.add_done_callback(lambda _: self._forget_body())
        return self._task

    def leave(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Take note that the agent is gone. Idempotent; a shorter grace counts."""
        self._is_gone = True
        if self._task is None or self._task.done():
            return
        if self._is_sent:
            asyncio.get_running_loop().call_later(grace_seconds, self._cut)
        else:
            self._cut()

    def _cut(self) -> None:
        if self._task is not None and not self._task.done():
            self._is_cut = True
            self._task.cancel()

    async def _run(self) -> web.StreamResponse:
        if not self._rebuilt.operation.is_metered:
            response, _ = await self._paced()
            return response
        rebuilt, price = self._rebuilt, self._price
        ask = Ask(
            input_tokens=rebuilt.input_tokens,
            output_tokens=rebuilt.output_tokens,
            thinking_tokens=max(0, rebuilt.least_output_tokens - FLOOR_TOKENS),
            bound=None
            if price is None
            else bound_of(price, rebuilt.input_tokens, has_long_cache=rebuilt.has_long_cache),
        )
        admission = self._parts.admission
        try:
            reservation = await admission.admit(
                self._grant.workspace,
                ask,
                provider=self._parts.provider.name,
                model=rebuilt.model,
                price=price,
                refusal_status=self._protocol.answer(Reason.BUDGET, "").status,
            )
        except RefusedError as refused:
            is_budget = refused.outcome is Outcome.REFUSED_BUDGET
            reason = Reason.BUDGET if is_budget else Reason.LIMIT
            return self._say(reason, refused.reason)
        except ForkyardError:
            return self._say(Reason.PROVIDER, "the gateway cannot write its ledger")
        return await self._reserved(reservation)

    async def _reserved(self, reservation: Reservation) -> web.StreamResponse:
        if reservation.output_tokens < self._rebuilt.output_tokens:
            self._rebuilt = self._protocol.with_max_output(self._rebuilt, reservation.output_tokens)
        told = Told(outcome=Outcome.UNKNOWN, detail="the gateway broke off")
        try:
            response, told = await self._paced()
        except asyncio.CancelledError:
            if not self._is_cut:
                told = self._known(Outcome.UNKNOWN, "the gateway ended")
                raise
            told = self._known(Outcome.CLIENT_GONE, "cut: the agent had gone")
            response = web.Response(status=499)
        finally:
            # Also where the task is cancelled: a row that is left open is settled at its bound
            # only by the next process.
            await self._settle(reservation, told)
        if isinstance(response, Stream):
            await response.finish()
        return response

    async def _settle(self, reservation: Reservation, told: Told) -> None:
        admission = self._parts.admission
        if not self._is_sent and told.status is None:
            await admission.release(reservation)
            return
        await admission.settle(
            reservation,
            outcome=told.outcome,
            tokens=told.tokens,
            is_estimated=told.is_estimated,
            status=None if self._is_gone else told.status,
            first_byte_milliseconds=self._first_byte,
            detail=told.detail,
            finish=told.finish,
        )

    async def _paced(self) -> tuple[web.StreamResponse, Told]:
        governor = self._parts.governor
        started = governor.now()
        while True:
            try:
                async with governor.turn(self._grant.attempt):
                    found = await self._once(started)
            except PatienceError as error:
                told = Told(
                    outcome=Outcome.PROVIDER_ERROR,
                    tokens=TokenCounts(),
                    status=429,
                    detail="the provider asks for more patience than a request may have",
                )
                seconds = max(1, round(getattr(error, "retry_after_seconds", 1)))
                return self._say(Reason.RATE, str(error), retry_after=seconds), told
            if found is not None:
                return found

    async def _once(self, started: float) -> tuple[web.StreamResponse, Told] | None:
        parts = self._parts
        bear = self._stalls.bear(parts.provider, is_streaming=self._rebuilt.is_streaming)
        begun = asyncio.get_running_loop().time()
        self._is_sent = True
        try:
            async with parts.upstream.patience(bear, parts.provider.request_seconds) as patience:
                answer = await parts.upstream.send(
                    self._grant.workspace, parts.provider, self._protocol, self._rebuilt, parts.key
                )
                try:
                    if answer.status in THROTTLED:
                        return await self._throttled(answer, started)
                    self._forget_body()
                    parts.governor.answered()
                    if answer.status != 200:  # noqa: PLR2004 - OK
                        return await self._fault(answer)
                    return await self._read(answer, patience, begun)
                finally:
                    answer.close()  # only what was read to its end is used again
        except Stalled:
            self._stalls.in_a_row += 1
            return self._broken(Reason.SLOW, f"nothing came from the provider for {bear:g} s")
        except aiohttp.ClientConnectorError as error:
            clause = answers.connect_trouble(error)
            told = Told(
                outcome=Outcome.PROVIDER_ERROR, tokens=TokenCounts(), status=502, detail=clause
            )
            return self._say(Reason.PROVIDER, clause), told
        except (aiohttp.ClientError, OSError, TimeoutError):
            return self._broken(Reason.PROVIDER, "the provider broke off before it answered")
        except Exception as error:  # noqa: BLE001 - whatever an answer does to us is the provider's fault
            _log.error("An answer broke its exchange", exc_info=error)
            return self._baffled()

    def _forget_body(self) -> None:
        """Give the request's memory back: it is not sent again. Idempotent."""
        self._rebuilt = replace(self._rebuilt, body=b"")
        if (place := self._request.get(PLACE)) is not None:
            place.leave()

    async def _throttled(
        self, answer: aiohttp.ClientResponse, started: float
    ) -> tuple[web.StreamResponse, Told] | None:
        plan = self._parts.governor.throttled(
            retry_after=answer.headers.get("retry-after"), since=started
        )
        if plan.may_retry and not self._is_gone:
            self._is_sent = False  # it cost nothing, and until it is sent again it may be left
            return None
        return await self._fault(answer, retry_after=plan.retry_after_seconds)

    async def _fault(
        self, answer: aiohttp.ClientResponse, *, retry_after: int | None = None
    ) -> tuple[web.StreamResponse, Told]:
        """Pass an error on in the API's own form, without anything that is no plain JSON."""
        response = await answers.passed_on(answer, self._protocol, self._parts.keys)
        if retry_after is not None:
            response.headers["retry-after"] = str(retry_after)
        return response, fault(answer.status)

    async def _read(
        self, answer: aiohttp.ClientResponse, patience: Patience, begun: float
    ) -> tuple[web.StreamResponse, Told]:
        is_stream = answer.content_type == _EVENT_STREAM
        meter: UsageMeter = Free()
        if self._rebuilt.operation.is_metered:
            meter = self._protocol.meter(self._rebuilt, is_event_stream=is_stream)
            self._meter = meter
        provider, stalls = self._parts.provider, self._stalls
        patience.wait_longer(
            stalls.bear(provider, is_streaming=is_stream),
            stalls.bear(provider, is_streaming=False),
        )
        headers = answers.kept_headers(answer)
        to = self._to = Stream(self._request, headers) if is_stream else Whole(headers)
        why = ""
        try:
            await self._copy(answer, patience, begun, meter, to)
        except TooLargeError:
            why = "the answer is larger than the gateway takes"
        except ContentError as error:
            why = f"the provider's answer cannot be read: {error}"
        except (aiohttp.ClientError, OSError, TimeoutError):
            why = "the provider broke off in the middle"
        except asyncio.CancelledError:
            if not patience.has_ended:
                raise
            patience.absorb()
            whose = "the agent did not read" if self._is_writing else "the provider was silent"
            why = f"{whose} for {patience.limit_seconds:g} s in the middle"
            if patience.is_late:
                why = f"the answer took more than {provider.request_seconds:g} s"
            self._stalls.in_a_row += not self._is_writing
        meter.end()
        return self._ended(to, meter.reading(), why)

    async def _copy(
        self,
        answer: aiohttp.ClientResponse,
        patience: Patience,
        begun: float,
        meter: UsageMeter,
        to: Stream | Whole,
    ) -> None:
        """Copy a body as it comes, metering beside it; this is what each event costs."""
        encoding = answer.headers.get("content-encoding", "identity").lower()
        most = left = MOST_STREAM_BYTES
        decoder = None if encoding == "identity" else Decoder(encoding, most_bytes=most)
        feed, heard, read, put = meter.feed, patience.heard, answer.content.readany, to.put
        chunk = await read()
        if chunk:
            now = asyncio.get_running_loop().time()
            self._first_byte = round((now - begun) * 1000)
            self._is_gone = self._is_gone or not await to.begin()
        while chunk:
            left -= len(chunk)
            if left < 0:
                raise TooLargeError
            plain = chunk if decoder is None else decoder.feed(chunk)
            if is_life(plain):
                heard()
            else:
                patience.pinged()
            feed(plain)
            if not self._is_gone:
                try:
                    if put(chunk):
                        self._is_writing = True
                        await to.drain()
                        self._is_writing = False
                except ConnectionError:
                    self._is_gone, self._is_writing = True, False
            chunk = await read()

    def _ended(
        self,
        to: Stream | Whole,
        reading: Reading,
        why: str,
    ) -> tuple[web.StreamResponse, Told]:
        why = wrong_with(reading, why)
        told = self._known(Outcome.PROVIDER_ERROR if why else Outcome.COMPLETE, why, reading)
        told.status = 200
        if not why:
            self._stalls.in_a_row = 0
        if self._is_gone or (why and self._is_writing):
            told.outcome, told.detail = Outcome.CLIENT_GONE, why or "read on to the end"
        is_cut = bool(why) and reading.error is None
        if isinstance(to, Stream) and to.has_begun:
            # A cut answer must look cut: its agent is to try again, not to go on with half of it.
            to.is_broken = is_cut
            return to, told
        if is_cut:
            response = self._say(Reason.PROVIDER, why)
            told.status = response.status
            return response, told
        return to.response(), told

    def _broken(self, reason: Reason, why: str) -> tuple[web.StreamResponse, Told]:
        response = self._say(reason, why)
        told = self._known(Outcome.PROVIDER_ERROR, why)
        told.status = response.status
        return response, told

    def _baffled(self) -> tuple[web.StreamResponse, Told]:
        """Answer where not even what was read so far can be trusted."""
        why = "the gateway cannot read the provider's answer"
        told = Told(outcome=Outcome.PROVIDER_ERROR, is_estimated=True, detail=why, status=200)
        if isinstance(self._to, Stream) and self._to.has_begun:
            self._to.is_broken = True
            return self._to, told
        response = self._say(Reason.PROVIDER, why)
        told.status = response.status
        return response, told

    def _known(self, outcome: Outcome, why: str, reading: Reading | None = None) -> Told:
        return as_read(outcome, why, self._rebuilt, reading, self._meter)

    def _say(
        self, reason: Reason, words: str, *, retry_after: int | None = None
    ) -> web.StreamResponse:
        answer = self._protocol.answer(reason, words, retry_after_seconds=retry_after)
        return answers.given(answer)
