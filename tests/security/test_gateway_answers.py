"""The gateway as a hostile provider sees it: answers that break their reader, or never end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import aiohttp
import pytest

from forkyard.gateway.interface import Outcome
from gateways import PATIENCE, Handover, grant_for, settings_for, yard
from recording import recording

pytestmark = pytest.mark.anyio

MESSAGE = {"model": "claude-sonnet-4-5", "max_tokens": 50, "stream": True, "messages": [
    {"role": "user", "content": "hello"}]}  # fmt: skip
EVENT = b'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n'
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
CUT = 0


def answer(*headers: str, status: int = 200, body: bytes = b"", kind: str = "json") -> bytes:
    """Write an answer that ends with its connection."""
    types = {"json": "application/json", "stream": "text/event-stream"}
    lines = (f"HTTP/1.1 {status} X", f"content-type: {types[kind]}", *headers, "", "")
    return "\r\n".join(lines).encode("utf-8") + body


DEEP = b'{"error": ' + b"[" * 600 + b"]" * 600 + b"}"
BROKEN = {
    "unknown-coding": (answer("content-encoding: br", body=b"x"), 502),
    "unknown-coding-stream": (answer("content-encoding: br", body=EVENT, kind="stream"), 502),
    "no-gzip": (answer("content-encoding: gzip", body=b"never gzip"), 502),
    "no-gzip-in-the-middle": (
        answer("content-encoding: gzip", body=gzip.compress(EVENT) + b"no", kind="stream"),
        CUT,
    ),
    "half-a-pair": (answer(status=400, body=b'{"error": {"message": "\\ud800"}}'), 400),
    "deep-error": (answer(status=500, body=DEEP), 500),
    "no-number": (answer(status=500, body=b'{"error": NaN}'), 500),
    "header-of-bytes": (answer("request-id: \u00e4", status=400, body=b"{}"), 400),
}


async def ask(handover: Handover) -> tuple[int, bytes]:
    """Ask once; CUT where the answer was cut."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    address = f"{handover.url('anthropic')}/v1/messages"
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as client:
        try:
            async with client.post(address, json=MESSAGE) as found:
                return found.status, await found.read()
        except aiohttp.ClientPayloadError:
            return CUT, b""


@pytest.mark.deep
async def test_a_stream_is_cut_when_it_never_ends(home: Path) -> None:
    """Pings alone are borne for a while, events for longer, and neither for ever."""
    cases = {PING: "the provider was silent for 1 s", EVENT: "the answer took more than 6 s"}
    async with recording() as provider:
        settings = settings_for(
            provider.url, idle_seconds=1.0, answer_seconds=2.0, request_seconds=6.0
        )
        async with yard(home, settings) as made:
            for piece, words in cases.items():
                provider.raw = (answer(kind="stream"), piece)
                grant = grant_for()
                assert (await ask(await made.let_in(grant)))[0] == CUT
                (entry,) = await made.supervisor.revoke(grant.workspace)
                assert entry.outcome == Outcome.PROVIDER_ERROR
                assert words in entry.detail


async def test_an_answer_is_a_fault_in_the_apis_form_when_it_breaks_its_reader(home: Path) -> None:
    """Never a bare 500 of ours, and each is booked as the provider's fault, or as a request's."""
    async with recording() as provider, yard(home, settings_for(provider.url)) as made:
        for name, (raw, status) in BROKEN.items():
            provider.raw = (raw, b"")
            grant = grant_for()
            told = await ask(await made.let_in(grant))
            assert told[0] == status, name
            if status != CUT:
                assert isinstance(json.loads(told[1]), dict), name
            (entry,) = await made.supervisor.revoke(grant.workspace)
            wrong = Outcome.BAD_REQUEST if status == 400 else Outcome.PROVIDER_ERROR
            assert entry.outcome == wrong, name
        assert b"broke" not in made.layout.gateway_log.read_bytes()
