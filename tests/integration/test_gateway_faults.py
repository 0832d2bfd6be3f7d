"""What the gateway makes of a provider's faults: who is blamed, what is booked and passed on."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from forkyard.gateway.interface import Outcome
from gateways import CANARY, PATIENCE, Yard, grant_for, settings_for, yard
from scripted_model.running import ScriptedModel, start_model

BROKEN = 0
"""The connection was cut: the agent cannot take the answer for a whole one."""
USAGE = {"input": 120, "output": 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fault, and what must come of it."""

    fault: dict[str, object]
    status: int
    outcome: Outcome
    booked: int | None
    """Tokens; None: an upper bound, at least what was billed."""
    requests: int = 1
    """How often the provider was asked."""


PROVIDER, WRONG, FINE = Outcome.PROVIDER_ERROR, Outcome.BAD_REQUEST, Outcome.COMPLETE
CASES = {
    **{
        str(status): Case(fault={"status": status}, status=status, outcome=PROVIDER, booked=0)
        for status in (401, 402, 403, 404, 500)
    },
    **{
        str(status): Case(fault={"status": status}, status=status, outcome=WRONG, booked=0)
        for status in (400, 413)
    },
    "502": Case(fault={"status": 502}, status=502, outcome=PROVIDER, booked=None),
    "429-once": Case(
        fault={"status": 429, "times": 1, "headers": {"retry-after": "1"}},
        status=200,
        outcome=FINE,
        booked=150,
        requests=2,
    ),
    "529-once": Case(
        fault={"status": 529, "times": 1}, status=200, outcome=FINE, booked=150, requests=2
    ),
    "drop": Case(fault={"drop_after": 3}, status=BROKEN, outcome=PROVIDER, booked=None),
    "drop-at-once": Case(fault={"drop_after": 0}, status=502, outcome=PROVIDER, booked=None),
    "early-end": Case(fault={"end_after": 3}, status=BROKEN, outcome=PROVIDER, booked=None),
    "stall": Case(
        fault={"stall_after": 3, "stall": 60}, status=BROKEN, outcome=PROVIDER, booked=None
    ),
    "slow": Case(fault={"first_byte": 60}, status=504, outcome=PROVIDER, booked=None),
    "malformed": Case(fault={"malformed_after": 3}, status=BROKEN, outcome=PROVIDER, booked=None),
    "error-event": Case(
        fault={"stream_error": {"after": 3, "type": "overloaded_error", "message": "busy"}},
        status=200,
        outcome=PROVIDER,
        booked=None,
    ),
}


def test_each_fault_has_its_class_and_its_booking_when_it_is_the_providers(
    home: Path, tmp_path: Path
) -> None:
    """Status for the agent, outcome and tokens; one after the other, since back-off is shared."""

    async def one(made: Yard, model: ScriptedModel, name: str, case: Case) -> None:
        grant = grant_for()
        handover = await made.let_in(grant)
        status = await ask(handover.url("anthropic"), f"[[scenario:{name}]]")
        await until(lambda: in_flight(made, grant.run) == 0)
        entries = await made.supervisor.revoke(grant.workspace)
        assert status == case.status, name
        assert [entry.outcome for entry in entries] == [case.outcome], (name, entries)
        bills = [bill for bill in model.billed() if bill.scenario == name]
        assert len(bills) == case.requests, name
        total = sum(bill.usage.whole_input + bill.usage.output for bill in bills)
        assert entries[0].tokens.total >= total, (name, entries)
        if case.booked is not None:
            assert entries[0].tokens.total == case.booked == total, (name, entries)
            assert not entries[0].is_estimated, name
        if case.outcome is not FINE:
            assert entries[0].detail, name

    async def go() -> None:
        turn = {"text": "word " * 20, "usage": USAGE, "pieces": 10}
        script = {
            "scenarios": {
                name: {"toolless": True, "turns": [{**turn, "fault": case.fault}]}
                for name, case in CASES.items()
            }
        }
        with start_model(tmp_path, script) as model:  # type: ignore[arg-type] # plain JSON
            settings = settings_for(model.url, idle_seconds=2.0)
            async with yard(home, settings) as made:
                for name, case in CASES.items():
                    await one(made, model, name, case)

    asyncio.run(go())


@pytest.mark.deep
def test_patience_shrinks_when_a_provider_stalls_again_and_again(
    home: Path, tmp_path: Path
) -> None:
    """An agent that tries again must come to an end: each next silence is borne for less long."""

    async def go() -> None:
        fault = {"stall_after": 2, "stall": 600}
        turn = {"text": "word " * 20, "usage": USAGE, "pieces": 10, "fault": fault}
        script = {"scenarios": {"default": {"toolless": True, "turns": [turn]}}}
        with start_model(tmp_path, script) as model:  # type: ignore[arg-type] # plain JSON
            async with yard(home, settings_for(model.url, idle_seconds=6.0)) as made:
                grant = grant_for()
                handover = await made.let_in(grant)
                for _ in range(3):
                    assert await ask(handover.url("anthropic"), "hello") == BROKEN
                entries = await made.supervisor.revoke(grant.workspace)
                assert [one.detail for one in entries] == [
                    "the provider was silent for 6 s in the middle",
                    "the provider was silent for 1 s in the middle",
                    "the provider was silent for 1 s in the middle",
                ]

    asyncio.run(go())


def test_an_error_shows_no_key_when_the_provider_repeats_it(home: Path, tmp_path: Path) -> None:
    """Masked in the body, also where JSON escapes it; the request id is passed on."""

    async def go() -> None:
        escaped = "".join(f"\\u{ord(letter):04x}" for letter in CANARY)
        text = f'{{"error": {{"message": "bad key {CANARY}", "raw": "{escaped}"}}}}'
        fault = {"status": 401, "body": text, "headers": {"request-id": "req_1"}}
        script = {
            "scenarios": {
                "default": {"toolless": True, "turns": [{"text": "x", "fault": fault}]},
                "html": {
                    "toolless": True,
                    "turns": [{"text": "x", "fault": {"status": 500, "body": f"<b>{CANARY}</b>"}}],
                },
            }
        }
        with start_model(tmp_path, script) as model:  # type: ignore[arg-type] # plain JSON
            async with yard(home, settings_for(model.url)) as made, aiohttp.ClientSession() as http:
                handover = await made.let_in(grant_for())
                address = f"{handover.url('anthropic')}/v1/messages"
                async with http.post(address, json=body("hello")) as answer:
                    told = await answer.json()
                    assert answer.status == 401
                    assert answer.headers["request-id"] == "req_1"
                    assert CANARY not in json.dumps(told)
                    assert "bad key" in told["error"]["message"]
                async with http.post(address, json=body("[[scenario:html]]")) as answer:
                    assert answer.status == 500
                    assert CANARY not in await answer.text()
                    assert (await answer.json())["type"] == "error"
                assert CANARY.encode() not in made.layout.gateway_log.read_bytes()

    asyncio.run(go())


def test_nothing_is_billed_when_the_provider_cannot_be_reached(home: Path) -> None:
    """Nobody listens there: the agent is told so, and no token is booked."""

    async def go() -> None:
        async with yard(home, settings_for("http://127.0.0.1:9")) as made:
            grant = grant_for()
            handover = await made.let_in(grant)
            assert await ask(handover.url("anthropic"), "hello") == 502
            entries = await made.supervisor.revoke(grant.workspace)
            assert [one.outcome for one in entries] == [PROVIDER]
            assert entries[0].tokens.total == 0
            assert "cannot be reached" in entries[0].detail
            assert "127.0.0.1" not in entries[0].detail

    asyncio.run(go())


def test_no_prompt_is_sent_when_the_provider_has_no_key(home: Path, tmp_path: Path) -> None:
    """It would be refused there; the agent is told here, and the person in the ledger."""

    async def go() -> None:
        script = {"scenarios": {"default": {"toolless": True, "turns": [{"text": "x"}]}}}
        with start_model(tmp_path, script) as model:  # type: ignore[arg-type] # plain JSON
            async with yard(home, settings_for(model.url), {"OTHER": "sk-other"}) as made:
                grant = grant_for()
                handover = await made.let_in(grant)
                assert await ask(handover.url("anthropic"), "hello") == 403
                entries = await made.supervisor.revoke(grant.workspace)
                assert [one.outcome for one in entries] == [PROVIDER]
                assert entries[0].detail == "no key is set for provider anthropic"
                assert model.billed() == ()

    asyncio.run(go())


def test_agents_are_served_again_when_broken_settings_are_mended(
    home: Path, tmp_path: Path
) -> None:
    """A gateway that dies while its settings cannot be used is tried again until they can."""

    async def go() -> None:
        script = {"scenarios": {"default": {"toolless": True, "turns": [{"text": "x"}]}}}
        with start_model(tmp_path, script) as model:  # type: ignore[arg-type] # plain JSON
            async with yard(home, settings_for(model.url)) as made:
                grant = grant_for()
                handover = await made.let_in(grant)
                assert await ask(handover.url("anthropic"), "hello") == 200
                made.keys["MODEL_KEY"] = "not a key"
                await made.kill()
                waiting = asyncio.create_task(ask(handover.url("anthropic"), "hello"))
                done, _ = await asyncio.wait([waiting], timeout=1.0)
                assert not done
                made.keys["MODEL_KEY"] = CANARY
                assert await waiting == 200

    asyncio.run(go())


def test_a_websocket_is_refused_at_once_when_it_is_asked_for(home: Path) -> None:
    """Codex tries one first; the refusal must not wait for anything."""

    async def go() -> None:
        async with yard(home, settings_for("http://127.0.0.1:9")) as made:
            handover = await made.let_in(grant_for())
            host, port = handover.listeners["openai"].getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(
                b"GET /v1/responses HTTP/1.1\r\nHost: openai\r\nConnection: Upgrade\r\n"
                b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            async with asyncio.timeout(PATIENCE):
                status = (await reader.readline()).split()[1]
            writer.close()
            assert status == b"426"

    asyncio.run(go())


def body(text: str) -> dict[str, object]:
    """Give a request."""
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 200,
        "stream": True,
        "messages": [{"role": "user", "content": text}],
    }


async def ask(address: str, text: str) -> int:
    """Ask once; BROKEN where the answer was cut."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE * 2)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        data = io.BytesIO(json.dumps(body(text)).encode())
        try:
            async with client.post(f"{address}/v1/messages", data=data) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientPayloadError:
            return BROKEN


def in_flight(made: Yard, run: object) -> int:
    """Count what a run has under way."""
    status = made.supervisor.status(run)  # type: ignore[arg-type] # a RunId
    return 0 if status is None else sum(one.in_flight for one in status.grants)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something another process does."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.02)
