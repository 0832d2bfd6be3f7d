"""The gateway as a hostile sandbox sees it: smuggling, injection, reaching out, floods, bombs.

Each table is one gateway and one provider that takes down what is sent to it. A row is what goes in
and what must come of it: a status (0: the connection is cut) and how many requests were sent on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zstandard

from forkyard.gateway.protocols import content_coding
from forkyard.gateway.protocols.content_coding import ContentError, decoded
from forkyard.gateway.protocols.json_body import MOST_MARKS
from gateways import CANARY, PATIENCE, Handover, Yard, grant_for, settings_for, yard
from recording import Recorder, Sent, recording

pytestmark = pytest.mark.anyio

EVIL = "evil.invalid"
MESSAGE = {"model": "claude-sonnet-4-5", "max_tokens": 50, "messages": [
    {"role": "user", "content": "hello"}]}  # fmt: skip
BODY = json.dumps(MESSAGE).encode()
POST = "POST /v1/messages HTTP/1.1"
PASSED_ON = {
    "host", "content-type", "content-length", "accept", "accept-encoding", "user-agent",
    "anthropic-version", "anthropic-beta", "x-api-key", "connection",
}  # fmt: skip
"""Every header that a provider may ever see."""


def head(line: str = POST, *headers: str, ends: str = "\r\n") -> bytes:
    """Write a request's head."""
    return ends.join((line, "Host: anthropic", *headers, "", "")).encode("latin-1")


def whole(*headers: str, line: str = POST, body: bytes = BODY) -> bytes:
    """Write a request that has a right length."""
    return (
        head(line, "Content-Type: application/json", f"Content-Length: {len(body)}", *headers)
        + body
    )


def chunks(*pieces: bytes, headers: tuple[str, ...] = ("Transfer-Encoding: chunked",)) -> bytes:
    """Write a request in chunks as they are given."""
    return head(POST, *headers) + b"".join(pieces)


CHUNKED = "Transfer-Encoding: chunked"
SMUGGLED = whole(body=BODY)
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
LAST = b"0\r\n\r\n"
PARSING: dict[str, tuple[bytes, int, int]] = {
    "plain": (whole(), 200, 1),
    "chunked": (chunks(CHUNK, LAST), 200, 1),
    "two in a row": (whole() + whole("Connection: close"), 200, 2),
    "length and chunks": (
        chunks(LAST, SMUGGLED, headers=("Content-Length: 5", CHUNKED)), 400, 0),
    "chunks and length": (
        chunks(LAST, SMUGGLED, headers=(CHUNKED, "Content-Length: 5")), 400, 0),
    "two lengths": (whole("Content-Length: 0"), 400, 0),
    "one length twice": (whole(f"Content-Length: {len(BODY)}"), 400, 0),
    "list of lengths": (
        head(POST, "Content-Length: 5, 5") + b"12345", 400, 0),
    "signed length": (
        head(POST, "Content-Length: +5") + b"12345", 400, 0),
    "negative length": (
        head(POST, "Content-Length: -5") + SMUGGLED, 400, 0),
    "hexadecimal length": (
        head(POST, "Content-Length: 0x5") + b"12345", 400, 0),
    "endless length": (head(POST, "Content-Length: " + "9" * 40), 400, 0),
    "space before colon": (
        head(POST, "Content-Length : 5") + b"12345", 400, 0),
    "folded header": (whole("A: b\r\n c"), 400, 0),
    "folded length": (
        head(POST, "Content-Length:\r\n 5") + b"12345", 400, 0),
    "NUL in header": (whole("A: \0"), 400, 0),
    "no name": (whole(": b"), 400, 0),
    "name with a space": (whole("A b: c"), 400, 0),
    "bare line feeds": (head("GET /v1/models HTTP/1.1", ends="\n"), 400, 0),
    "bare carriage return": (whole("A: b\rContent-Length: 0"), 400, 0),
    "chunked twice": (
        chunks(CHUNK, LAST, headers=("Transfer-Encoding: chunked, chunked",)), 400, 0),
    "chunked in two headers": (
        chunks(CHUNK, LAST, headers=("Transfer-Encoding: chunked",) * 2), 400, 0),
    "not chunked": (
        chunks(CHUNK, LAST, headers=("Transfer-Encoding: xchunked",)), 400, 0),
    "chunked, then not": (
        chunks(CHUNK, LAST, headers=("Transfer-Encoding: chunked, gzip",)), 400, 0),
    "tab in coding": (chunks(CHUNK, LAST, headers=("Transfer-Encoding: \x0bchunked",)), 400, 0),
    "signed chunk": (chunks(b"+5\r\n12345\r\n", LAST), 400, 0),
    "prefixed chunk": (chunks(b"0x5\r\n12345\r\n", LAST), 400, 0),
    "endless chunk": (chunks(b"f" * 20 + b"\r\n12345\r\n", LAST), 400, 0),
    "chunk longer than said": (chunks(b"2\r\n12345\r\n", LAST), 400, 0),
    "oldest HTTP": (b"GET /v1/models\r\n\r\n", 200, 1),
    "another HTTP": (head("GET /v1/models HTTP/3.7"), 400, 0),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, 400, 0),
    "its preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, 0),
    "too many headers": (whole(*(f"A{number}: b" for number in range(200))), 400, 0),
    "too long a header": (whole("A: " + "b" * 70_000), 400, 0),
    "too long a line": (head("GET /" + "a" * 70_000 + " HTTP/1.1"), 400, 0),
}  # fmt: skip

PATHS: dict[str, int] = {
    "POST /v1/messages": 200,
    "POST /v1/messages?beta=true": 200,
    f"POST /v1/messages?beta=true&url=http://{EVIL}/&key=x": 200,
    f"POST http://{EVIL}/v1/messages": 403,
    f"POST //{EVIL}/v1/messages": 403,
    "POST //v1/messages": 403,
    "POST /v1//messages": 403,
    "POST /v1/messages/": 403,
    "POST /v1/./messages": 403,
    "POST /v1/files/../messages": 403,
    "POST /v1/%6dessages": 403,
    "POST /v1/messages%2f..%2f..%2fv1%2ffiles": 403,
    "POST /v1/messages%00": 403,
    "POST /v1/messages%0d%0aX: y": 400,
    "POST /v1/messages;a=b": 403,
    "POST /v1/messages\\..\\files": 403,
    f"POST @{EVIL}/v1/messages": 400,
    "POST /V1/MESSAGES": 404,
    "POST /v1/messages/batches": 404,
    "POST /v1/files": 404,
    "POST /v1/organizations/api_keys": 404,
    "POST /v1/complete": 404,
    "POST /v1/responses": 404,
    "GET /v1/files": 404,
    "GET /v1/messages": 404,
    "DELETE /v1/messages": 404,
    "PUT /v1/messages": 404,
    "PATCH /v1/messages": 404,
    "OPTIONS *": 403,
    "TRACE /v1/messages": 404,
    f"CONNECT {EVIL}:443": 403,
    "HEAD /": 404,
}


def asking(**fields: object) -> bytes:
    """Write a body with more fields."""
    return json.dumps({**MESSAGE, **fields}).encode()


def holding(block: object) -> bytes:
    """Write a body whose message holds a block."""
    return asking(messages=[{"role": "user", "content": [block]}])


BODIES: dict[str, tuple[bytes, int]] = {
    "no JSON": (b"model=claude", 400),
    "no object": (b"[1]", 400),
    "nothing": (b"", 400),
    "key twice": (BODY.replace(b"{", b'{"model":"claude-opus-4-1",', 1), 400),
    "key twice below": (BODY.replace(b'"role"', b'"role":"assistant","role"'), 400),
    "more after it": (BODY + b"{}", 400),
    "UTF-16": (BODY.decode().encode("utf-16"), 400),
    "mark before it": (b"\xef\xbb\xbf" + BODY, 400),
    "too deep": (b'{"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "too many values": (b'{"metadata":[' + b"[]," * MOST_MARKS + b"[]]}", 400),
    "no number": (BODY.replace(b"50", b"NaN"), 400),
    "endless number": (BODY.replace(b"50", b"1" + b"0" * 5000), 400),
    "negative limit": (BODY.replace(b"50", b"-50"), 400),
    "limit is text": (BODY.replace(b"50", b'"50"'), 400),
    "half a character": (BODY.replace(b"hello", b"\\ud800"), 400),
    "servers of its own": (asking(mcp_servers=[{"type": "url", "url": f"http://{EVIL}"}]), 400),
    "a container": (asking(container="c"), 400),
    "a picture by address": (
        holding({"type": "image", "source": {"type": "url", "url": f"http://{EVIL}/x"}}), 400),
    "a stored file": (
        holding({"type": "document", "source": {"type": "file", "file_id": "file_1"}}), 400),
    "another address": (
        asking(base_url=f"http://{EVIL}", api_base=EVIL, api_key="x", webhook=f"http://{EVIL}",
               extra_headers={"x-api-key": "y"}), 200),
    "dearer": (asking(service_tier="priority", speed="fast"), 200),
    "a model's name with more": (BODY.replace(b"claude-sonnet-4-5", b"a\\r\\nX: y"), 400),
    "a model's name that climbs": (BODY.replace(b"claude-sonnet-4-5", b"../../v1/files"), 400),
}  # fmt: skip

HOSTILE_HEADERS = (
    f"X-Forwarded-Host: {EVIL}", f"X-Forwarded-For: {EVIL}", f"Forwarded: host={EVIL}",
    f"X-Original-URL: http://{EVIL}/", "X-HTTP-Method-Override: DELETE",
    "Authorization: Bearer mine", "X-Api-Key: mine", "Api-Key: mine", "X-Goog-Api-Key: mine",
    "Cookie: a=b", "Proxy-Authorization: Basic eA==", "Proxy-Connection: keep-alive",
    "OpenAI-Organization: org", "Anthropic-Dangerous-Direct-Browser-Access: true",
    "Connection: close, x-api-key", "Keep-Alive: 5", "TE: trailers", "Trailer: X-Api-Key",
    "Anthropic-Version: 2023-06-01\tX",
    "Anthropic-Beta: mcp-client-2025-04-04,files-api-2025-04-14",
    "User-Agent: a\tb", "Range: bytes=0-1", "Accept-Encoding: br", "Via: 1.1 x",
)  # fmt: skip


@asynccontextmanager
async def attacked(home: Path) -> AsyncIterator[tuple[Yard, Handover, Recorder]]:
    """Have a gateway, one workspace that may use it, and the provider behind it."""
    async with recording() as recorder, yard(home, settings_for(recorder.url)) as made:
        yield made, await made.let_in(grant_for()), recorder


async def tell(
    handover: Handover, request: bytes, *, name: str = "anthropic", pause: float = 0.0
) -> bytes:
    """Send bytes to a listener and read until it closes, or has been silent for a while."""
    host, port = handover.listeners[name].getsockname()
    reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(request)
            await writer.drain()
        while not is_whole(answer):
            async with asyncio.timeout(PATIENCE if not answer else 2.0):
                more = await reader.read(65536)
            if not more:
                break
            answer += more
        if pause:
            await asyncio.sleep(pause)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return answer


def is_whole(answer: bytes) -> bool:
    """Say whether a closing answer has its body; others are read until they fall silent."""
    top, blank, body = answer.partition(b"\r\n\r\n")
    if not blank or b"connection: close" not in top.lower():
        return False
    lengths = [line for line in top.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= int(lengths[0].split(b":")[1])


def status_of(answer: bytes) -> int:
    """Give the status of the first answer; 0: there is none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


async def test_no_second_request_hides_in_one_when_parsers_could_differ(home: Path) -> None:
    """What two parsers could read in two ways is refused whole, and nothing of it is sent on."""
    seen = {}
    async with attacked(home) as (_, handover, recorder):
        for name, (request, status, _) in PARSING.items():
            answer = await tell(handover, request)
            # Cut without a word is as good as refused.
            found = status_of(answer) or (400 if status == 400 else 0)
            seen[name] = (found, len(recorder.taken()))
            assert CANARY.encode() not in answer

    assert seen == {name: (status, count) for name, (_, status, count) in PARSING.items()}


async def test_only_known_paths_are_sent_on_when_others_are_asked_for(home: Path) -> None:
    """By exact method and path; what is sent on names the provider's own path and host."""
    seen, lines = {}, set()
    async with attacked(home) as (_, handover, recorder):
        for line, status in PATHS.items():
            body = b"" if line.startswith("HEAD") else BODY
            request = whole("Connection: close", line=f"{line} HTTP/1.1", body=body)
            seen[line] = status_of(await tell(handover, request))
            sent = recorder.taken()
            assert (len(sent) == 1) == (status == 200), line
            lines |= {(one.line, *one.values("host")) for one in sent}
        host = recorder.url.removeprefix("http://")

    assert seen == PATHS
    assert lines == {
        (POST, host),
        ("POST /v1/messages?beta=true HTTP/1.1", host),
    }


async def test_no_header_of_the_agents_is_sent_on_unless_it_is_known(home: Path) -> None:
    """One by one and all at once: the provider sees the real key once, and known headers only."""
    async with attacked(home) as (_, handover, recorder):
        for headers in (*((one,) for one in HOSTILE_HEADERS), HOSTILE_HEADERS):
            answer = await tell(handover, whole("Connection: close", *headers))
            sent = recorder.taken()
            assert (status_of(answer), len(sent)) == (200, 1), headers
            names = [name for name, _ in sent[0].headers]
            assert set(names) <= PASSED_ON, headers
            assert len(names) == len(set(names)), headers
            assert sent[0].values("x-api-key") == [CANARY]
            said = " ".join(value for _, value in sent[0].headers)
            assert not any(word in said for word in (EVIL, "mine", "mcp-client", "files-api", "\t"))


async def test_no_body_makes_the_provider_reach_out(home: Path) -> None:
    """Bodies are refused or written anew: no address, key or dearer service of the agent's."""
    seen = {}
    async with attacked(home) as (_, handover, recorder):
        for name, (body, _) in BODIES.items():
            answer = await tell(handover, whole("Connection: close", body=body))
            sent = recorder.taken()
            seen[name] = status_of(answer)
            assert (len(sent) == 1) == (seen[name] == 200), name
            assert all(json.loads(one.body) == {**MESSAGE, "stream": False} or
                       json.loads(one.body) == MESSAGE for one in sent), name  # fmt: skip

    assert seen == {name: status for name, (_, status) in BODIES.items()}


def _bombs() -> dict[str, tuple[str, bytes, int]]:
    bomb = gzip.compress(bytes(200 * 1024**2))
    most = content_coding.MOST_BODY_BYTES
    return {
        "gzip": ("gzip", gzip.compress(BODY), 200),
        "zstd": ("zstd", zstandard.compress(BODY), 200),
        "deflate": ("deflate", zlib.compress(BODY), 200),
        "gzip of members": ("gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]), 200),
        "gzip bomb": ("gzip", bomb, 400),
        "bomb in a bomb": ("gzip, gzip", gzip.compress(bomb), 400),
        "zstd bomb": ("zstd", zstandard.compress(bytes(1024**3)), 400),
        "zstd that says it is small": ("zstd", zstandard.ZstdCompressor(
            write_content_size=False).compress(bytes(256 * 1024**2)), 400),
        "members without end": ("gzip", gzip.compress(b"") * 500_000, 400),
        "frames without end": ("zstd", zstandard.compress(b"") * 500_000, 400),
        "thrice": ("gzip, gzip, gzip", gzip.compress(BODY), 400),
        "unknown": ("br", BODY, 400),
        "lying": ("gzip", BODY, 400),
        "cut": ("gzip", gzip.compress(BODY)[:-9], 400),
        "too large": ("identity", b" " * (most + 1), 413),
    }  # fmt: skip


async def test_no_bomb_goes_off_when_bodies_are_compressed(home: Path) -> None:
    """Small bodies that stand for large ones, or for much work, are refused; others go on."""
    bombs = _bombs()
    seen = {}
    async with attacked(home) as (made, handover, recorder):
        pid = await made.pid()
        for name, (encoding, body, _) in bombs.items():
            request = whole("Connection: close", f"Content-Encoding: {encoding}", body=body)
            seen[name] = status_of(await tell(handover, request))
            assert all(json.loads(one.body)["max_tokens"] == 50 for one in recorder.taken())
        peak = next(
            int(line.split()[1]) // 1024
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )

    assert seen == {name: status for name, (_, _, status) in bombs.items()}
    assert peak < 700, f"{peak} MiB"


def test_work_follows_the_size_when_a_body_has_many_parts() -> None:
    """Parts that cost far more than their bytes are bounded; a large honest body comes out."""
    content = bytes(range(256)) * 16384
    for name, body in (
        ("zstd", zstandard.compress(content, 1) + zstandard.compress(content, 1)),
        ("gzip", gzip.compress(content, 1) + gzip.compress(content, 1)),
    ):
        assert decoded(body, name) == content * 2
    for name, part in (("zstd", zstandard.compress(b"")), ("gzip", gzip.compress(b""))):
        assert decoded(part * 200, name) == b""
        with pytest.raises(ContentError, match="more than 256 parts"):
            decoded(part * 300, name)


async def test_others_are_answered_when_one_floods(home: Path) -> None:
    """Half requests, idle connections and pipelines of one workspace do not stop another."""
    async with attacked(home) as (made, handover, recorder):
        other = await made.let_in(grant_for())
        idle: list[socket.socket] = []
        address = handover.listeners["anthropic"].getsockname()
        for number in range(400):
            connection = socket.socket()
            connection.settimeout(5)
            with contextlib.suppress(OSError):
                connection.connect(address)
                # Heads and bodies that never come to their end.
                connection.sendall((whole()[: -1 - number % 5], head()[:-3])[number % 2])
            idle.append(connection)
        try:
            answer = await tell(other, whole("Connection: close"))
            assert status_of(answer) == 200
            pipeline = head("GET /v1/files HTTP/1.1") * 20_000
            with contextlib.suppress(ConnectionError):
                await tell(other, pipeline)
            assert status_of(await tell(other, whole("Connection: close"))) == 200
        finally:
            for connection in idle:
                connection.close()
        assert status_of(await tell(handover, whole("Connection: close"))) == 200
        assert all(one.line.startswith("POST /v1/messages ") for one in recorder.taken())


async def test_nothing_of_the_account_comes_back_when_a_provider_is_talkative(home: Path) -> None:
    """Redirects are not followed, and headers about the account or the key stay with us."""
    talkative = (
        f"set-cookie: a={CANARY}\r\nanthropic-organization-id: org_1\r\nx-key: {CANARY}\r\n"
        f"request-id: req_{CANARY}\r\nserver: x\r\n"
    )
    async with attacked(home) as (_, handover, recorder), recording() as elsewhere:
        for status in ("302 Found", "307 Temporary Redirect", "401 Unauthorized", "204 No Content"):
            recorder.status = status
            recorder.more_headers = f"location: {elsewhere.url}/v1/messages\r\n{talkative}"
            answer = await tell(handover, whole("Connection: close"))
            assert status_of(answer) >= 400, status
            lowered = answer.lower()
            assert CANARY.encode() not in answer
            for name in (b"location:", b"set-cookie:", b"organization", b"x-key"):
                assert name not in lowered, (status, name)
            assert [one.values("x-api-key") for one in recorder.taken()] == [[CANARY]]
        assert elsewhere.taken() == []


def test_sent_requests_are_read_back_as_they_came() -> None:
    """The helper that the tables rely on gives every value of a header, in order."""
    assert Sent("", (("a", "1"), ("b", "2"), ("a", "3")), b"").values("a") == ["1", "3"]
