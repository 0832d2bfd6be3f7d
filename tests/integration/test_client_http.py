"""What the SDK understands of HTTP, over a real socket with a peer that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forkyard.client.http import Http, LostError, NotReachedError, target_of

pytestmark = pytest.mark.anyio


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection whole."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def peer(folder: Path, *answers: bytes) -> AsyncIterator[tuple[Http, list[bytes]]]:
    """Serve these answers in turn, each connection going on until its own runs out."""
    asked: list[bytes] = []
    waiting = list(answers)
    serving: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            while waiting:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                answer = waiting.pop(0)
                writer.write(answer)
                if b"content-length" not in answer.lower() and b"chunked" not in answer:
                    break
        except asyncio.IncompleteReadError:
            pass
        await hang_up(writer)

    server = await asyncio.start_unix_server(serve, folder / "s")
    client = Http(folder / "s")
    try:
        yield client, asked
    finally:
        client.close()
        server.close()
        await asyncio.wait_for(asyncio.gather(*serving), 5)


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n"
)


async def test_whole_and_chunked_answers_are_read_over_one_connection(tmp_path: Path) -> None:
    """Keep-alive: the second request finds the connection of the first."""
    async with peer(tmp_path, WHOLE, CHUNKED, WHOLE) as (client, asked):
        first = await client.request("GET", "/a", None, 5)
        second = await client.request("GET", "/b", None, 5)
        third = await client.request("POST", "/c", None, 5)

    assert (first.status, first.body, first.is_success) == (200, b"hello", True)
    assert (second.status, second.body, second.is_success) == (404, b"abc0123456789", False)
    assert third.body == b"hello"
    assert asked[0].startswith(b"GET /a HTTP/1.1\r\n")
    assert b"content-length: 0\r\n" in asked[2]


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(
    tmp_path: Path,
) -> None:
    """Not even for a request that must not be sent twice."""
    closing = WHOLE.replace(b"Content-Length", b"x-y: z\r\nCONTENT-LENGTH")
    async with peer(tmp_path, closing, WHOLE) as (client, asked):
        await client.request("POST", "/a", b"{}", 5)
        (wire,) = client._idle
        wire.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        answer = await client.request("POST", "/b", b"{}", 5)

    assert answer.body == b"hello"
    assert len(asked) == 2


async def test_a_stream_gives_lines_as_they_come(tmp_path: Path) -> None:
    """Lines may be cut anywhere by the chunks."""
    answer = (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"4\r\none\n\r\n3\r\ntwo\r\n6\r\n\nthree\r\n1\r\n\n\r\n0\r\n\r\n"
    )
    async with peer(tmp_path, answer) as (client, _), client.stream("/x") as told:
        assert [line async for line in told.lines()] == ["one", "two", "three"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    ],
)
async def test_an_answer_that_breaks_off_or_is_none_is_a_lost_server(
    tmp_path: Path, answer: bytes
) -> None:
    """Never a half answer, never a hang."""
    async with peer(tmp_path, answer) as (client, _):
        asking = client.request("GET", "/", None, 5)
        with pytest.raises((LostError, TimeoutError)):
            await asking


async def test_nobody_listening_is_told_apart(tmp_path: Path) -> None:
    """Nothing was asked, so asking again is harmless."""
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotReachedError):
            await Http(folder / "s").request("POST", "/", b"{}", 5)


async def test_a_silent_server_is_given_up_in_time(tmp_path: Path) -> None:
    """Where the caller set a bound."""
    over = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            pass
        await hang_up(writer)
        over.set()

    server = await asyncio.start_unix_server(say_nothing, tmp_path / "s")
    client = Http(tmp_path / "s")
    with pytest.raises(TimeoutError):
        await client.request("GET", "/", None, 0.05)
    client.close()
    server.close()
    await over.wait()


def test_what_people_type_stays_inside_the_path() -> None:
    """No line ends, no query begins, and no byte is lost."""
    assert target_of("/v1/runs/a b\r\nX: y?z#é\udcff") == (
        "/v1/runs/a%20b%0D%0AX%3A%20y%3Fz%23%C3%A9%FF"
    )
    assert target_of("/v1/events", {"after": "1 2"}) == "/v1/events?after=1+2"
