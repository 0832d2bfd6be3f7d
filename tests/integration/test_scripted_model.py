"""The stand-in for the providers itself: each API, each fault, each bill."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import zstandard

from scripted_model.ledger import Bill, fingerprint, total
from scripted_model.openai_chat import Chat
from scripted_model.reply import turn_index
from scripted_model.running import ScriptedModel, serve_model, start_model
from scripted_model.scenario import Usage
from scripted_model.scenarios import BASIC
from scripted_model.shapes import Json, Object

USAGE: Object = {"input": 40, "cache_read": 30, "cache_write": 20, "output": 12, "reasoning": 2}
BILLED = Usage(input=40, cache_read=30, cache_write=20, output=12, reasoning=2)
NO_WRITE = Usage(input=60, cache_read=30, output=12, reasoning=2)
TOLD = {
    "anthropic": Usage(input=40, cache_read=30, cache_write=20, output=12),
    "responses": BILLED,
    "chat": NO_WRITE,
    "gemini": NO_WRITE,
}
"""The same numbers as far as each API can tell them."""
APIS = ("anthropic", "responses", "chat", "gemini")
PRICE: Object = {"input": 3_000_000, "output": 15_000_000, "cache_read": 300_000}


@asynccontextmanager
async def playing(
    folder: Path, turn: Object, *, models: Object | None = None
) -> AsyncIterator[tuple[ScriptedModel, aiohttp.ClientSession]]:
    """Serve one turn for ever, and give a client."""
    data: Object = {"scenarios": {"default": {"toolless": True, "turns": [turn]}}}
    if models is not None:
        data["models"] = models
    async with serve_model(folder, data) as model, aiohttp.ClientSession(model.url) as client:
        yield model, client


def request(api: str, *, stream: bool = True, most: int | None = None) -> tuple[str, Object]:
    """Give path and body of a small request."""
    said: Json = [{"role": "user", "content": "hello"}]
    if api == "anthropic":
        return "/v1/messages", {
            "model": "m",
            "messages": said,
            "max_tokens": most or 100,
            "stream": stream,
        }
    if api == "responses":
        return "/v1/responses", {
            "model": "m",
            "input": said,
            "stream": stream,
            "max_output_tokens": most,
        }
    if api == "chat":
        options: Json = {"include_usage": True}
        return "/v1/chat/completions", {
            "model": "m",
            "messages": said,
            "stream": stream,
            "max_tokens": most,
            "stream_options": options,
        }
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    contents: Json = [{"role": "user", "parts": [{"text": "hello"}]}]
    return f"/v1beta/models/m:{verb}", {
        "contents": contents,
        "generationConfig": {"maxOutputTokens": most},
    }


async def say(
    client: aiohttp.ClientSession, api: str, *, stream: bool = True, most: int | None = None
) -> tuple[int, str]:
    """Send a request and read its answer whole."""
    path, body = request(api, stream=stream, most=most)
    async with client.post(path, json=body) as answer:
        return answer.status, await answer.text()


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own."""

    def run(tmp_path: Path, api: str) -> None:
        async def whole() -> None:
            await test(tmp_path, api)

        asyncio.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_bills_what_it_told_when_an_answer_is_whole(folder: Path, api: str) -> None:
    """Streaming and not, the ledger holds the scripted numbers and the agent saw the text."""
    turn: Object = {"text": "It is done.", "usage": USAGE, "pieces": 1}
    async with playing(folder, turn) as (model, client):
        for stream in (True, False):
            status, said = await say(client, api, stream=stream)
            assert status == 200
            assert "done" in said
            assert "12" in said or '"candidatesTokenCount": 10' in said
        bills = model.billed()
    assert [one.usage for one in bills] == [TOLD[api], TOLD[api]]
    assert [one.is_streaming for one in bills] == [True, False]
    assert {api} == {one.api for one in bills}
    assert total(bills).whole_input == 180


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_writes_no_more_than_allowed_when_a_limit_is_set(folder: Path, api: str) -> None:
    """Output beyond the request's limit is neither told nor billed."""
    async with playing(folder, {"text": "long", "usage": USAGE}) as (model, client):
        for stream in (True, False):
            _, said = await say(client, api, stream=stream, most=5)
            ends = ("max_tokens", "max_output_tokens", '"length"', "MAX_TOKENS")
            assert any(one in said for one in ends)
        assert [one.usage.output for one in model.billed()] == [5, 5]


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_answers_in_the_providers_form_when_a_status_is_scripted(
    folder: Path, api: str
) -> None:
    """Every status of the table fires, with and without Retry-After, and costs nothing."""
    for status in (400, 401, 402, 403, 404, 413, 429, 500, 503, 529):
        fault: Object = {"status": status, "times": 1, "headers": {"retry-after": "7"}}
        place = folder / str(status)
        place.mkdir()
        async with playing(place, {"text": "ok", "fault": fault}) as (model, client):
            path, body = request(api)
            async with client.post(path, json=body) as answer:
                assert answer.status == status
                assert answer.headers["retry-after"] == "7"
                assert "error" in await answer.json()
            assert (await say(client, api))[0] == 200
            assert [str(status), ""] == [one.fault for one in model.billed()]
            assert model.billed()[0].usage == Usage(input=0, output=0)


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_resets_the_connection_when_a_drop_is_scripted(folder: Path, api: str) -> None:
    """Before the first byte and in mid-stream; the input and the part produced are billed."""
    for after in (0, 1):
        place = folder / str(after)
        place.mkdir()
        turn: Object = {"text": "abc", "usage": USAGE, "fault": {"drop_after": after}}
        async with playing(place, turn) as (model, client):
            for stream in (True, False):
                with pytest.raises(aiohttp.ClientError):
                    await say(client, api, stream=stream)
            first, second = model.billed()
        assert [first.outcome, second.outcome] == ["cut", "cut"]
        assert first.usage.whole_input == 90
        assert (first.usage.output > 0) == (after > 0)
        assert second.usage.output == 0


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_breaks_one_event_when_malformed_is_scripted(folder: Path, api: str) -> None:
    """The stream goes on around a broken event, and a whole body is cut short."""
    async with playing(folder, {"text": "abc", "fault": {"malformed_after": 1}}) as (_, client):
        _, said = await say(client, api)
        assert said.count("broken") == 1
        _, whole = await say(client, api, stream=False)
        with pytest.raises(json.JSONDecodeError):
            json.loads(whole)


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_ends_early_or_with_an_error_when_scripted(folder: Path, api: str) -> None:
    """A clean but early end, and an error told within the stream."""
    (folder / "e").mkdir()
    async with playing(folder, {"text": "abc", "fault": {"end_after": 1}}) as (model, client):
        _, said = await say(client, api)
        assert said.count("data:") == 1
        assert model.billed()[0].outcome == "cut"
    error: Object = {"after": 1, "type": "overloaded_error", "message": "busy"}
    turn: Object = {"text": "abc", "fault": {"stream_error": error}}
    async with playing(folder / "e", turn) as (_, client):
        _, said = await say(client, api)
        assert "overloaded_error" in said
        assert said.count("data:") == 2


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_is_silent_until_the_agent_leaves_when_a_stall_is_scripted(
    folder: Path, api: str
) -> None:
    """A stall in mid-stream and a slow first byte outlast the client, which is billed in part."""
    faults: tuple[Object, ...] = ({"stall_after": 1, "stall": 600}, {"first_byte": 600})
    for place, fault in enumerate(faults):
        own = folder / str(place)
        own.mkdir()
        async with playing(own, {"text": "abc", "usage": USAGE, "fault": fault}) as (model, client):
            path, body = request(api)
            patience = aiohttp.ClientTimeout(sock_read=0.5)
            with pytest.raises(aiohttp.SocketTimeoutError):
                async with client.post(path, json=body, timeout=patience) as answer:
                    await answer.read()
            while not (bills := model.billed()):
                await asyncio.sleep(0.01)
        assert [one.outcome for one in bills] == ["client-gone"]
        assert bills[0].usage.whole_input == 90
        assert bills[0].usage.output < 12
        assert bills[0].fault == ("stall", "slow")[place]


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_compresses_when_an_encoding_is_scripted(folder: Path, api: str) -> None:
    """gzip, deflate and zstd answers decode to the same text."""
    for encoding in ("gzip", "deflate", "zstd"):
        place = folder / encoding
        place.mkdir()
        turn: Object = {"text": "abc" * 50, "encoding": encoding}
        async with (
            playing(place, turn) as (model, _),
            aiohttp.ClientSession(model.url, auto_decompress=False) as raw,
        ):
            for stream in (True, False):
                path, body = request(api, stream=stream)
                async with raw.post(path, json=body) as answer:
                    assert answer.headers["content-encoding"] == encoding
                    said = await answer.read()
                if encoding == "zstd":
                    plain = zstandard.ZstdDecompressor().decompressobj().decompress(said)
                else:
                    plain = zlib.decompress(said, 47)
                assert b"abc" in plain


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_fires_at_each_nth_request_when_every_is_scripted(folder: Path, api: str) -> None:
    """A share of all requests fails, and one API may have a fault of its own."""
    fault: Object = {"every": 3, "status": 500, "api": {"gemini": {"status": 503}}}
    async with playing(folder, {"text": "abc", "fault": fault}) as (_, client):
        seen = [(await say(client, api))[0] for _ in range(6)]
    assert [200, 200, 503 if api == "gemini" else 500] * 2 == seen


@pytest.mark.parametrize("api", APIS)
@in_loop
async def test_prices_and_knows_its_models_when_they_are_stated(folder: Path, api: str) -> None:
    """Money is rounded up once; a model without a price is unknown."""
    turn: Object = {"text": "abc", "usage": {"input": 1, "cache_read": 1, "output": 1}}
    async with playing(folder, turn, models={"m": PRICE}) as (model, client):
        await say(client, api)
        path, body = request(api)
        other = path.replace("/m:", "/unknown:")
        async with client.post(other, json={**body, "model": "unknown"}) as answer:
            assert answer.status == 404
    first, second = model.billed()
    assert first.micro_usd == 19
    assert (second.micro_usd, second.status) == (0, 404)


def test_plays_the_next_turn_when_the_history_holds_the_last(tmp_path: Path) -> None:
    """As a child process: calls of declared tools come one turn after the other."""
    tools: Json = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    messages: list[Json] = [{"role": "user", "content": "go [[scenario:fixbug]]"}]

    async def talk(model: ScriptedModel) -> tuple[Bill, ...]:
        key = {"authorization": "Bearer sk-own"}
        async with aiohttp.ClientSession(model.url, headers=key) as client:
            for _ in range(5):
                body: Object = {"model": "m", "messages": messages, "tools": tools}
                async with client.post("/v1/chat/completions", json=body) as answer:
                    said = (await answer.json())["choices"][0]["message"]
                messages.append(said)
                messages.extend(
                    {"role": "tool", "tool_call_id": one["id"], "content": "ok"}
                    for one in said.get("tool_calls", [])
                )
            async with client.get("/v1/models") as answer:
                assert answer.status == 200
        return model.billed()

    with start_model(tmp_path, BASIC) as model:
        bills = asyncio.run(talk(model))
    assert [one.turn for one in bills] == [0, 1, 2, 3, 4, None]
    assert [one.calls for one in bills] == [("bash",)] * 4 + [(), ()]
    assert {fingerprint("sk-own")} == {one.key for one in bills}
    assert b"sk-own" not in model.ledger.read_bytes()
    assert turn_index(Chat().history({"messages": messages})) == 4
