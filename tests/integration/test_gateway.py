"""The gateway process with real sockets, under its own user, against the scripted model."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import zstandard

from forkyard.gateway.interface import LedgerEntry, Outcome
from forkyard.model.budget import Budget
from forkyard.shim.ids import GATEWAY_USER_ID
from gateways import PATIENCE, Handover, Yard, grant_for, settings_for, yard
from scripted_model.ledger import Bill
from scripted_model.running import ScriptedModel, start_model

USAGE = {"input": 120, "cache_read": 40, "output": 30, "reasoning": 10}
SCENARIOS: dict[str, object] = {
    "scenarios": {
        "default": {"toolless": True, "turns": [{"text": "well done", "usage": USAGE}]},
        "slow": {
            "toolless": True,
            "turns": [{"text": "one two " * 10, "usage": USAGE, "pieces": 20, "chunk_delay": 0.1}],
        },
        "long": {
            "toolless": True,
            "turns": [{"text": "slowly " * 100, "usage": USAGE, "pieces": 200, "chunk_delay": 0.1}],
        },
    }
}
PATHS = {
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/gemini-2.5-pro",
}

AMBIGUOUS = [
    b"POST /v1/messages HTTP/1.1\r\nHost: a\r\n" + rest
    for rest in (
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"Content-Length : 2\r\n\r\n{}",
        b"A: b\r\n c\r\n\r\n",
        b"A: \x00\r\n\r\n",
        b"A: b\r\n" * 200 + b"\r\n",
        b"A: " + b"b" * 20_000 + b"\r\n\r\n",
    )
]


def body_of(api: str, text: str, *, stream: bool) -> dict[str, object]:
    """Give a small request of an API."""
    message = {"role": "user", "content": text}
    match api:
        case "anthropic":
            return {
                "model": "claude-sonnet-4-5",
                "max_tokens": 500,
                "stream": stream,
                "messages": [message],
            }
        case "responses":
            return {"model": "gpt-5", "input": text, "stream": stream, "max_output_tokens": 500}
        case "chat":
            return {"model": "gpt-5", "messages": [message], "stream": stream}
        case _:
            return {
                "contents": [{"role": "user", "parts": [{"text": text}]}],
                "generationConfig": {"maxOutputTokens": 500},
            }


def address_of(handover: Handover, api: str, *, stream: bool) -> str:
    """Give the address of an API behind a workspace's listeners."""
    name = "openai" if api in {"responses", "chat"} else api
    path = PATHS[api]
    if api == "gemini":
        path += ":streamGenerateContent?alt=sse" if stream else ":generateContent"
    return handover.url(name) + path


def marked(scenario: str) -> str:
    """Ask for a scenario in the prompt, which is all that passes the gateway."""
    return f"[[scenario:{scenario}]]"


@asynccontextmanager
async def station(
    home: Path, tmp_path: Path, scenarios: dict[str, object] | None = None, **changes: float
) -> AsyncIterator[tuple[Yard, ScriptedModel, aiohttp.ClientSession]]:
    """Have a gateway, a scripted model behind it, and a client."""
    with start_model(tmp_path, scenarios or SCENARIOS) as model:  # type: ignore[arg-type] # plain JSON
        async with yard(home, settings_for(model.url, **changes)) as made:
            timeout = aiohttp.ClientTimeout(total=PATIENCE * 2)
            async with aiohttp.ClientSession(timeout=timeout) as client:
                yield made, model, client


def tokens_of(entries: tuple[LedgerEntry, ...]) -> list[tuple[int, int, int, int, int]]:
    """Give what was booked, in the words of the scripted model."""
    return sorted(
        (
            one.tokens.input,
            one.tokens.cache_read,
            one.tokens.cache_write,
            one.tokens.output,
            one.tokens.reasoning,
        )
        for one in entries
    )


def billed_of(bills: tuple[Bill, ...]) -> list[tuple[int, int, int, int, int]]:
    """Give what was billed."""
    return sorted(
        (
            one.usage.input,
            one.usage.cache_read,
            one.usage.cache_write,
            one.usage.output,
            one.usage.reasoning,
        )
        for one in bills
        if one.usage.whole_input
    )


def test_books_what_the_provider_bills_when_all_apis_are_used(home: Path, tmp_path: Path) -> None:
    """Four APIs, streaming and not: our ledger equals the provider's to the token."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, model, client):
            grant = grant_for()
            handover = await made.let_in(grant)
            for api in PATHS:
                for stream in (False, True):
                    async with client.post(
                        address_of(handover, api, stream=stream),
                        json=body_of(api, "hello", stream=stream),
                    ) as answer:
                        text = await answer.text()
                        assert answer.status == 200, text
                        assert ("event-stream" in answer.content_type) is stream, text
            entries = await made.supervisor.revoke(grant.workspace)
            assert len(entries) == 2 * len(PATHS)
            assert {one.outcome for one in entries} == {Outcome.COMPLETE}
            assert not any(one.is_estimated for one in entries)
            bills = billed_of(model.billed())
            api_tells_reasoning = {"responses", "chat", "gemini"}
            assert api_tells_reasoning <= {one.api for one in model.billed()}
            assert [one[:4] for one in tokens_of(entries)] == [one[:4] for one in bills]
            assert await made.supervisor.entries_after(0) == entries

    asyncio.run(go())


def test_is_a_process_without_rights_when_it_serves(home: Path, tmp_path: Path) -> None:
    """Its own user, no group, no capability, no new one, no core, and none of the state."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, _, _client):
            (home / "secret-of-the-server").write_text("x")
            await made.supervisor.grant(grant_for())
            pid = await made.pid()
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            assert told["Uid"].split() == [str(GATEWAY_USER_ID)] * 4
            assert told["Gid"].split() == [str(GATEWAY_USER_ID)] * 4
            assert told["Groups"].split() == []
            for which in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert int(told[which], 16) == 0, which
            assert told["NoNewPrivs"].strip() == "1"
            limits = Path(f"/proc/{pid}/limits").read_text()
            core = next(line for line in limits.splitlines() if line.startswith("Max core file"))
            assert core.split()[4:6] == ["0", "0"]
            # Not dumpable: its files in /proc are root's, not its own.
            assert Path(f"/proc/{pid}/environ").stat().st_uid == 0
            assert list(Path(f"/proc/{pid}/root{home}").iterdir()) == []
            assert [one.name for one in Path(f"/proc/{pid}/root/sys").iterdir()] == ["gateway"]
            assert (home / "gateway").stat().st_uid == GATEWAY_USER_ID
            assert (home / "gateway").stat().st_mode & 0o777 == 0o700

    asyncio.run(go())


def test_agents_wait_and_go_on_when_the_gateway_is_killed(home: Path, tmp_path: Path) -> None:
    """The shim hands its sockets to the next one; who connects meanwhile is answered by that."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, model, client):
            grant = grant_for()
            handover = await made.let_in(grant)
            address = address_of(handover, "anthropic", stream=True)
            cut = asyncio.create_task(
                _read(client, address, body_of("anthropic", marked("long"), stream=True))
            )
            await _until(lambda: _in_flight(made, grant.run) == 1)
            await made.kill()
            with pytest.raises(aiohttp.ClientError):
                await cut
            waited = await _read(client, address, body_of("anthropic", "hello", stream=True))
            assert b"message_stop" in waited
            entries = await made.supervisor.revoke(grant.workspace)
            assert sorted(one.outcome for one in entries) == [Outcome.COMPLETE, Outcome.UNKNOWN]
            unknown = next(one for one in entries if one.outcome is Outcome.UNKNOWN)
            assert unknown.is_estimated
            assert unknown.tokens.output == 500
            booked = sum(one.tokens.total for one in entries)
            assert booked >= sum(one[0] + one[1] + one[3] for one in billed_of(model.billed()))
            assert handover.hand_overs >= 2

    asyncio.run(go())


def test_streams_go_on_when_the_server_is_restarted(home: Path, tmp_path: Path) -> None:
    """Another server adopts the gateway that lives, with its ledger and the same process."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, _, client):
            grant = grant_for()
            handover = await made.let_in(grant)
            address = address_of(handover, "responses", stream=True)
            going = asyncio.create_task(
                _read(client, address, body_of("responses", marked("slow"), stream=True))
            )
            await _until(lambda: _in_flight(made, grant.run) == 1)
            pid = await made.pid()
            await made.supervisor.close()
            made.supervisor = made.server()
            await made.supervisor.start()
            await made.supervisor.grant(grant)
            assert b"response.completed" in await going
            assert await made.pid() == pid
            entries = await made.supervisor.revoke(grant.workspace)
            assert [one.outcome for one in entries] == [Outcome.COMPLETE]

    asyncio.run(go())


def test_a_socket_is_not_answered_when_its_grant_is_not_known(home: Path, tmp_path: Path) -> None:
    """Handed over first, granted later: the agent has waited, and is answered then."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, _, client):
            await made.supervisor.grant(grant_for())
            grant = grant_for()
            handover = made.hand_over(grant.workspace)
            address = address_of(handover, "chat", stream=False)
            waiting = asyncio.create_task(
                _read(client, address, body_of("chat", "hello", stream=False))
            )
            await _until(lambda: handover.hand_overs == 1)
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            await made.supervisor.grant(grant)
            assert b"well done" in await waiting

    asyncio.run(go())


def test_streams_are_cut_and_settled_when_a_workspace_is_revoked(
    home: Path, tmp_path: Path
) -> None:
    """The whole ledger of it comes back, the cut one at what the provider can have billed."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, model, client):
            grant = grant_for()
            handover = await made.let_in(grant)
            address = address_of(handover, "anthropic", stream=True)
            cut = asyncio.create_task(
                _read(client, address, body_of("anthropic", marked("long"), stream=True))
            )
            await _until(lambda: _in_flight(made, grant.run) == 1)
            entries = await made.supervisor.revoke(grant.workspace)
            with pytest.raises(aiohttp.ClientError):
                await cut
            assert [one.outcome for one in entries] == [Outcome.CLIENT_GONE]
            assert entries[0].is_estimated
            assert entries[0].tokens.input == 120
            assert entries[0].tokens.output == 500
            await _until(lambda: len(model.billed()) == 1)

    asyncio.run(go())


def test_an_answer_is_read_on_and_exact_when_its_agent_goes_away(
    home: Path, tmp_path: Path
) -> None:
    """What was sent is paid for; so it is metered to its end."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, model, client):
            grant = grant_for()
            handover = await made.let_in(grant)
            address = address_of(handover, "responses", stream=True)
            async with client.post(
                address, json=body_of("responses", marked("slow"), stream=True)
            ) as answer:
                await answer.content.readany()
            await _until(lambda: len(model.billed()) == 1)
            await _until(lambda: _in_flight(made, grant.run) == 0)
            entries = await made.supervisor.revoke(grant.workspace)
            assert [one.outcome for one in entries] == [Outcome.CLIENT_GONE]
            assert not entries[0].is_estimated
            assert entries[0].status is None
            assert tokens_of(entries) == billed_of(model.billed())

    asyncio.run(go())


def test_what_costs_nothing_is_passed_on_and_booked_nowhere_when_it_is_asked(
    home: Path, tmp_path: Path
) -> None:
    """Lists of models and counts of tokens need no budget."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, _, client):
            grant = grant_for(run_budget=Budget(tokens=1))
            handover = await made.let_in(grant)
            base = handover.url("anthropic")
            async with client.get(f"{base}/v1/models") as answer:
                assert answer.status == 200, await answer.text()
            count = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "a"}]}
            async with client.post(f"{base}/v1/messages/count_tokens", json=count) as answer:
                assert answer.status == 200, await answer.text()
                assert "input_tokens" in await answer.json()
            assert await made.supervisor.revoke(grant.workspace) == ()

    asyncio.run(go())


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_body_is_understood_when_its_header_says_so(
    home: Path, tmp_path: Path, encoding: str
) -> None:
    """Codex compresses with zstd; upstream it goes plain."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, model, client):
            grant = grant_for()
            handover = await made.let_in(grant)
            plain = json.dumps(body_of("responses", "hello", stream=True)).encode()
            packed = gzip.compress(plain) if encoding == "gzip" else zstandard.compress(plain)
            async with client.post(
                address_of(handover, "responses", stream=True),
                data=packed,
                headers={"content-encoding": encoding, "content-type": "application/json"},
            ) as answer:
                assert answer.status == 200, await answer.text()
                assert b"response.completed" in await answer.read()
            entries = await made.supervisor.revoke(grant.workspace)
            assert tokens_of(entries) == billed_of(model.billed())

    asyncio.run(go())


def test_nothing_is_sent_when_a_request_can_be_read_in_two_ways(home: Path, tmp_path: Path) -> None:
    """Such a request is an error for the parser and reaches no provider."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, model, _client):
            handover = await made.let_in(grant_for())
            host, port = handover.listeners["anthropic"].getsockname()
            for raw in AMBIGUOUS:
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(raw)
                async with asyncio.timeout(PATIENCE):
                    status = (await reader.readline()).split()[1]
                writer.close()
                assert status in {b"400", b"431", b"414"}, raw
            assert model.billed() == ()

    asyncio.run(go())


def test_a_body_past_the_limit_is_refused_when_it_is_announced(home: Path, tmp_path: Path) -> None:
    """32 MiB is the most, and the answer has the API's own form."""

    async def go() -> None:
        async with station(home, tmp_path) as (made, _, client):
            handover = await made.let_in(grant_for())
            address = address_of(handover, "anthropic", stream=False)
            async with client.post(address, data=io.BytesIO(b" " * (32 * 1024**2 + 1))) as answer:
                assert answer.status == 413
                assert (await answer.json())["type"] == "error"

    asyncio.run(go())


async def _read(client: aiohttp.ClientSession, address: str, body: object) -> bytes:
    async with client.post(address, data=json.dumps(body)) as answer:
        return await answer.read()


def _in_flight(made: Yard, run: object) -> int:
    status = made.supervisor.status(run)  # type: ignore[arg-type] # a RunId
    return 0 if status is None else sum(one.in_flight for one in status.grants)


async def _until(is_so: object) -> None:
    assert callable(is_so)
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.02)
