"""The gateway against a bare pass-through: what one streamed event costs, and how late it comes.

Both stand between the same upstream and the same client, each in a process of its own; they are
measured in turn. 200 streams at once give 5,000 events a second. Processor time is that of the
process in the middle alone. Latency is from the moment an event was written upstream to the moment
it was read, less what it is without anything in the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from benchmarks.measure import Figure
from forkyard.bootstrap.state_directory import prepare
from forkyard.config import Layout
from forkyard.gateway.interface import Api, GatewaySettings, Provider
from forkyard.gateway.supervisor import Supervisor
from forkyard.model.budget import Budget, Grant
from forkyard.model.ids import new_attempt_id, new_run_id, new_workspace_id
from forkyard.shim import protocol

ROWS = ("gateway-cpu", "gateway-latency")
STREAMS = 200
EVENTS = 100
INTERVAL_SECONDS = 0.04
MOST_TIMES = 1.5
_START = {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}
_END = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": EVENTS}}
_HEADERS = {"anthropic-version": "2023-06-01"}
_FILLER = "x" * 90
_MARK = b'"text":"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One run through one of them."""

    processor_seconds: float
    latency_seconds: float
    """Median."""


# --- the three programs ----------------------------------------------------------------------


def _event(kind: str, content: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


async def _stream(request: web.Request) -> web.StreamResponse:
    number = int((await request.json())["messages"][0]["content"])
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(_event("message_start", _START))
    loop = asyncio.get_running_loop()
    # Spread over the interval, as unrelated answers are.
    due = loop.time() + INTERVAL_SECONDS * number / STREAMS
    for _ in range(EVENTS):
        due += INTERVAL_SECONDS
        await asyncio.sleep(max(0.0, due - loop.time()))
        text = f"{time.monotonic_ns():020}{_FILLER}"
        delta = {"type": "text_delta", "text": text}
        event = {"type": "content_block_delta", "index": 0, "delta": delta}
        await response.write(_event("content_block_delta", event))
    await response.write(_event("message_delta", _END))
    await response.write(_event("message_stop", {"type": "message_stop"}))
    await response.write_eof()
    return response


async def _upstream() -> None:
    application = web.Application()
    application.router.add_post("/v1/messages", _stream)
    await _serve(application)


async def _bare(base: str) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, auto_decompress=False
    ) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            headers = {"content-type": "application/json"}
            async with session.post(base + request.path, data=body, headers=headers) as answer:
                response = web.StreamResponse(headers={"content-type": answer.content_type})
                response.enable_chunked_encoding()
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        application = web.Application()
        application.router.add_post("/v1/messages", relay)
        await _serve(application)


async def _serve(application: web.Application) -> None:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


async def _client(base: str) -> None:
    late: list[int] = []

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body = {
            "model": "claude-sonnet-5",
            "max_tokens": 1000,
            "stream": True,
            "messages": [{"role": "user", "content": str(number)}],
        }
        seen = 0
        async with session.post(f"{base}/v1/messages", json=body, headers=_HEADERS) as answer:
            assert answer.status == 200, await answer.text()
            rest = b""
            async for chunk in answer.content.iter_any():
                now = time.monotonic_ns()
                *events, rest = (rest + chunk).split(b"\n\n")
                for event in events:
                    if (at := event.find(_MARK)) >= 0:
                        seen += 1
                        late.append(now - int(event[at + len(_MARK) :][:20]))
        assert seen == EVENTS, seen

    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
        ) as session,
        asyncio.TaskGroup() as group,
    ):
        for number in range(STREAMS):
            group.create_task(one(session, number))
    print(statistics.median(late) / 1e9, flush=True)


# --- measuring -------------------------------------------------------------------------------


@contextmanager
def _child(*words: str) -> Iterator[tuple[int, str]]:
    """Run one of the programs above; gives its pid and the address it printed."""
    root = Path(__file__).resolve().parents[1]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=root,
        env={"PATH": os.defpath, "PYTHONPATH": f"{root}:{root / 'src'}"},
        text=True,
        # As the gateway has one: the kernel shares processors out by session.
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        yield child.pid, child.stdout.readline().strip()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@asynccontextmanager
async def _gateway(folder: Path, upstream: str) -> AsyncIterator[tuple[int, str]]:
    """Run the real gateway with one listener in our hands; gives its pid and address."""
    layout = Layout(folder / "gateway-home")
    prepare(layout)
    provider = Provider(name="anthropic", api=Api.ANTHROPIC, base_url=upstream, secret="KEY")  # noqa: S106 - its name
    settings = GatewaySettings(providers=(provider,))
    supervisor = Supervisor(layout, settings=lambda: settings, secrets={"KEY": "sk-none"}.get)
    grant = Grant(
        workspace=new_workspace_id(),
        run=new_run_id(),
        attempt=new_attempt_id(),
        agent="bench",
        most_concurrent=STREAMS,
        run_budget=Budget(tokens=10**12, micro_usd=10**12),
    )
    await supervisor.grant(grant)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    with contextlib.ExitStack() as stack:
        stack.callback(connection.close)
        stack.callback(listener.close)
        with protocol.short_path(str(layout.gateway_socket)) as path:
            connection.connect(path)
        line = {"op": "listen", "workspace": grant.workspace, "providers": ["anthropic"]}
        socket.send_fds(connection, [protocol.encode(line)], [listener.fileno()])
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = int.from_bytes(raw[:4], "little")
        host, port = listener.getsockname()
        try:
            yield pid, f"http://{host}:{port}"
        finally:
            await supervisor.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 15)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _take(pid: int | None, base: str) -> Taken:
    before = 0.0 if pid is None else _processor_seconds(pid)

    def run() -> float:
        with _child("client", base) as (_, said):
            return float(said)

    latency = await asyncio.to_thread(run)
    after = 0.0 if pid is None else _processor_seconds(pid)
    return Taken(processor_seconds=after - before, latency_seconds=latency)


async def measure(folder: Path, *, pairs: int) -> tuple[Figure, Figure]:
    """Measure both rows at once: a run gives a figure for each."""
    taken: list[tuple[Taken, Taken, Taken]] = []
    with _child("upstream") as (_, upstream), _child("bare", upstream) as (bare_pid, bare):
        async with _gateway(folder, upstream) as (pid, ours):
            await _take(pid, ours)
            await _take(bare_pid, bare)
            for number in range(pairs):
                print(f"bench: gateway {number + 1}/{pairs}", file=sys.stderr, flush=True)
                direct = await _take(None, upstream)
                if number % 2:
                    theirs = await _take(bare_pid, bare)
                    mine = await _take(pid, ours)
                else:
                    mine = await _take(pid, ours)
                    theirs = await _take(bare_pid, bare)
                taken.append((mine, theirs, direct))
    count = STREAMS * EVENTS
    processor = [
        (one.processor_seconds / count, two.processor_seconds / count) for one, two, _ in taken
    ]
    added = [
        (one.latency_seconds - zero.latency_seconds, two.latency_seconds - zero.latency_seconds)
        for one, two, zero in taken
    ]
    return _figure("gateway-cpu", processor, 1e6, "us"), _figure(
        "gateway-latency", added, 1e3, "ms"
    )


def _figure(name: str, pairs: list[tuple[float, float]], scale: float, unit: str) -> Figure:
    ratio = statistics.median(ours / max(theirs, 1e-9) for ours, theirs in pairs)
    return Figure(
        name=name,
        ours=round(statistics.median(ours for ours, _ in pairs) * scale, 2),
        theirs=round(statistics.median(theirs for _, theirs in pairs) * scale, 2),
        ratio=round(ratio, 2),
        runs=len(pairs),
        unit=unit,
        target=f"<= {MOST_TIMES:g}",
        met=ratio <= MOST_TIMES,
    )


def main() -> None:
    """Be one of the three programs."""
    match sys.argv[1:]:
        case ["upstream"]:
            asyncio.run(_upstream())
        case ["bare", base]:
            asyncio.run(_bare(base))
        case ["client", base]:
            asyncio.run(_client(base))
        case words:
            raise SystemExit(f"no such program: {words}")


if __name__ == "__main__":
    main()
