"""The scripted model's HTTP side: plays turns, fires faults, writes bills."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
import zlib
from collections.abc import Mapping

import zstandard
from aiohttp import web

from scripted_model.ledger import Bill, Ledger, fingerprint
from scripted_model.reply import Reply
from scripted_model.request import Arrived, Asked, arrive, ask, is_count, reply_to
from scripted_model.scenario import NO_FAULT, Book, Fault, Price, Usage
from scripted_model.shapes import Json, Object
from scripted_model.tools import UnplayableError

_NOTHING = Usage(input=0, output=0)
_BROKEN = 'data: {"type": "broken\n\n'
_MOST_BODY = 64 * 1024 * 1024


class CutError(Exception):
    """A fault reset the connection."""


def application(book: Book, ledger: Ledger) -> web.Application:
    """Build the application; run it with `handler_cancellation`, or gone clients go unnoticed."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _Exchange(book, ledger, request).run()

    app = web.Application(client_max_size=_MOST_BODY)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


class _Exchange:
    """One request and its answer."""

    def __init__(self, book: Book, ledger: Ledger, request: web.Request) -> None:
        self._book = book
        self._ledger = ledger
        self._request = request
        self._began = time.time()
        self._sent = 0
        self._status: int | None = None
        self._is_billed = False

    async def run(self) -> web.StreamResponse:
        arrived = await arrive(self._request, self._book)
        if is_count(arrived.path):
            count = len(arrived.raw) // 4
            return self._free(arrived, {"input_tokens": count, "totalTokens": count})
        if arrived.method in {"GET", "HEAD"} and arrived.path in {"/v1/models", "/v1beta/models"}:
            models: list[Json] = [{"id": name, "object": "model"} for name in self._book.prices]
            return self._free(arrived, {"object": "list", "data": models})
        asked = ask(arrived, self._book)
        if asked is None:
            return self._free(arrived, {"error": {"message": "no such path"}}, status=404)
        if self._book.prices and asked.model not in self._book.prices:
            answer = asked.speaker.error(404, None, f"no model {asked.model}")
            return self._refuse(arrived, asked, 404, json.dumps(answer), {})
        try:
            return await self._play(arrived, asked)
        except UnplayableError as error:
            answer = asked.speaker.error(400, None, str(error))
            return self._refuse(arrived, asked, 400, json.dumps(answer), {})

    async def _play(self, arrived: Arrived, asked: Asked) -> web.StreamResponse:
        reply = reply_to(arrived, asked)
        fault = asked.fault
        try:
            await asyncio.sleep(asked.turn.latency + fault.first_byte)
            if fault.status is not None:
                said = asked.speaker.error(fault.status, fault.type, fault.message)
                body = fault.body if fault.body is not None else json.dumps(said)
                return self._refuse(arrived, asked, fault.status, body, fault.headers)
            if asked.is_streaming:
                return await self._stream(arrived, asked, reply)
            return self._whole(arrived, asked, reply)
        except CutError:
            self._bill(arrived, asked, reply, "cut", self._so_far(asked, reply))
            raise ConnectionResetError from None
        except (asyncio.CancelledError, ConnectionError):
            self._bill(arrived, asked, reply, "client-gone", self._so_far(asked, reply))
            raise

    def _so_far(self, asked: Asked, reply: Reply) -> Usage:
        """Say what was produced when the answer was cut; its input was read in any case."""
        if not self._sent:
            return reply.usage.upto(0)
        events = sum(1 for _ in asked.speaker.stream(reply, {}))
        return reply.usage.upto(max(1, reply.usage.output * self._sent // max(1, events)))

    async def _stream(self, arrived: Arrived, asked: Asked, reply: Reply) -> web.StreamResponse:
        fault, turn = asked.fault, asked.turn
        if fault.drop_after == 0:
            self._cut()
        answer = web.StreamResponse(headers={"cache-control": "no-cache"})
        answer.content_type, answer.charset = "text/event-stream", "utf-8"
        encoder = _encoder(turn.encoding)
        if turn.encoding:
            answer.headers["content-encoding"] = turn.encoding
        self._status = 200
        await answer.prepare(self._request)
        events = list(asked.speaker.stream(reply, arrived.body))
        for place, event in enumerate(events):
            is_ended = place == fault.end_after
            if place == fault.drop_after:
                self._cut()
            if place == fault.stall_after:
                await asyncio.sleep(fault.stall)
            said = _BROKEN if place == fault.malformed_after else event
            if place == fault.error_after:
                said, is_ended = asked.speaker.stream_error(fault.type, fault.message), True
                await answer.write(encoder.write(said))
            if is_ended:
                self._bill(arrived, asked, reply, "cut", self._so_far(asked, reply))
                break
            if place == len(events) - 1:
                self._bill(arrived, asked, reply, "complete", reply.usage)
            await answer.write(encoder.write(said))
            self._sent += 1
            if turn.chunk_delay:
                await asyncio.sleep(turn.chunk_delay)
        await answer.write_eof(encoder.end())
        return answer

    def _whole(self, arrived: Arrived, asked: Asked, reply: Reply) -> web.Response:
        fault = asked.fault
        if fault.drop_after is not None:
            self._cut()
        self._status, self._sent = 200, 1
        self._bill(arrived, asked, reply, "complete", reply.usage)
        said = json.dumps(asked.speaker.whole(reply))
        if fault.malformed_after is not None:
            said = '{"oops": '
        encoder = _encoder(asked.turn.encoding)
        headers = {"content-encoding": asked.turn.encoding} if asked.turn.encoding else {}
        body = encoder.write(said) + encoder.end()
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _cut(self) -> None:
        """Reset the connection, as a provider's load balancer does."""
        transport = self._request.transport
        if transport is not None:
            connection = transport.get_extra_info("socket")
            if connection.family in {socket.AF_INET, socket.AF_INET6}:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()
        raise CutError

    def _free(self, arrived: Arrived, answer: Object, *, status: int = 200) -> web.Response:
        self._status = status
        self._bill(arrived, None, None, "complete", _NOTHING)
        return web.json_response(answer, status=status)

    def _refuse(
        self, arrived: Arrived, asked: Asked, status: int, body: str, headers: Mapping[str, str]
    ) -> web.Response:
        self._status = status
        self._bill(arrived, asked, None, "complete", _NOTHING)
        extra = {name: value for name, value in headers.items() if name != "content-type"}
        kind = headers.get("content-type", "application/json")
        return web.Response(text=body, status=status, headers=extra, content_type=kind)

    def _bill(
        self,
        arrived: Arrived,
        asked: Asked | None,
        reply: Reply | None,
        outcome: str,
        usage: Usage,
    ) -> None:
        """Write the bill, once; what happens after the last byte changes nothing."""
        if self._is_billed:
            return
        self._is_billed = True
        model = asked.model if asked else ""
        self._ledger.add(
            Bill(
                at=self._began,
                api=asked.speaker.name if asked else "",
                method=arrived.method,
                path=arrived.target,
                model=model,
                scenario=arrived.scenario,
                turn=asked.index if asked else None,
                is_streaming=asked.is_streaming if asked else False,
                status=self._status,
                outcome=outcome,
                fault=_name(asked.fault) if asked else "",
                sent=self._sent,
                usage=usage,
                micro_usd=self._book.prices.get(model, Price()).of(usage),
                key=fingerprint(arrived.key),
                header_names=arrived.header_names,
                tools=tuple(one.name for one in asked.tools) if asked else (),
                calls=tuple(one.tool.name for one in reply.calls) if reply else (),
                most_output=asked.most_output if asked else None,
                body_bytes=len(arrived.raw.encode()),
            )
        )


def _name(fault: Fault) -> str:
    """Name a fault by the field that makes it one."""
    if fault == NO_FAULT:
        return ""
    if fault.status is not None:
        return str(fault.status)
    named = {
        "drop": fault.drop_after,
        "end": fault.end_after,
        "stall": fault.stall_after,
        "error": fault.error_after,
        "malformed": fault.malformed_after,
    }
    return next((name for name, value in named.items() if value is not None), "slow")


class _Plain:
    """Encodes nothing."""

    def write(self, said: str) -> bytes:
        return said.encode()

    def end(self) -> bytes:
        return b""


class _Deflate(_Plain):
    def __init__(self, window: int) -> None:
        self._deflater = zlib.compressobj(wbits=window)

    def write(self, said: str) -> bytes:
        return self._deflater.compress(said.encode()) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._deflater.flush()


class _Zstandard(_Plain):
    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor().compressobj()

    def write(self, said: str) -> bytes:
        taken = self._compressor.compress(said.encode())
        return taken + self._compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def end(self) -> bytes:
        return self._compressor.flush()


def _encoder(name: str) -> _Plain:
    match name:
        case "gzip":
            return _Deflate(31)
        case "deflate":
            return _Deflate(15)
        case "zstd":
            return _Zstandard()
        case _:
            return _Plain()
