"""The server over its real socket: one per installation, found, replaced and left in order."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forkyard import ConflictError, NotFoundError, __version__, connect
from forkyard.client.client import Client
from forkyard.config import Layout
from forkyard.errors import ConfigError
from forkyard.wire.schema import EventInfo

SPEC = "spec:\n  image: host\n"
OTHER_VERSION = """\
import sys
import forkyard
forkyard.__version__ = "0.0.1"
from forkyard.bootstrap.serving import serve
from forkyard.config import state_directory
serve(state_directory(), idle_seconds=None, announce=print, is_foreground=True)
"""
PATIENCE_SECONDS = 30.0
pytestmark = pytest.mark.anyio


def raw(home: Path, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Ask the server without the SDK; give status and body."""
    connection = http.client.HTTPConnection("server")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(Layout(home).api_socket))
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a server, or a program that is one, as our own child."""
    return subprocess.Popen([sys.executable, *arguments])


def environment_of(pid: int) -> bytes:
    """Read the environment a process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_server_is_started_on_demand_and_says_who_it_is(home: Path) -> None:
    """The first client starts it; the second finds it."""
    async with connect() as first:
        told = await first.version()
        assert (told.version, told.home, told.active) == (__version__, str(home), 0)
        async with connect() as second:
            assert (await second.version()).pid == told.pid


async def test_only_the_owner_can_reach_the_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode 0600 in a directory of mode 0700, and the server's environment holds no secret."""
    monkeypatch.setenv("SOME_API_KEY", "hunter2")
    async with connect() as client:
        pid = (await client.version()).pid
    layout = Layout(home)

    assert stat.S_IMODE(layout.api_socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(layout.run.stat().st_mode) == 0o700
    assert stat.S_IMODE(layout.server_log.stat().st_mode) == 0o600
    assert b"hunter2" not in environment_of(pid)


async def test_a_state_path_longer_than_a_socket_s_address_works(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's 107 bytes bound neither the server nor the SDK."""
    deep = home / ("d" * 60) / ("e" * 60) / "a folder"
    monkeypatch.setenv("FORKYARD_HOME", str(deep))
    async with connect() as client:
        assert (await client.version()).home == str(deep)
        await client.stop_server()


async def test_twenty_clients_at_once_start_one_server(home: Path) -> None:
    """Whoever holds the lock starts it; the others find it."""

    async def ask() -> int:
        async with Client(home) as client:
            return (await client.version()).pid

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask()) for _ in range(20)]

    assert len({one.result() for one in asked}) == 1
    assert "cannot open the state directory" not in Layout(home).server_log.read_text()


def test_processes_at_once_start_one_server(home: Path) -> None:
    """The same across processes."""
    program = (
        "import asyncio, forkyard\n"
        "async def ask():\n"
        "    async with forkyard.connect() as fy:\n"
        "        print((await fy.version()).pid)\n"
        "asyncio.run(ask())\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    told = {one.communicate(timeout=60)[0] for one in started}

    assert len(told) == 1
    assert told != {""}
    assert "cannot open the state directory" not in Layout(home).server_log.read_text()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/nothing", b"", 404, "not-found"),
        ("GET", "/", b"", 404, "not-found"),
        ("DELETE", "/v1/version", b"", 405, "not-found"),
        ("GET", "/v1/runs/run_0000", b"", 404, "not-found"),
        ("GET", "/v1/execs/exec_0000/output", b"", 404, "not-found"),
        ("GET", "/v1/events?after=-1", b"", 400, "bad-configuration"),
        ("POST", "/v1/templates", b"{", 400, "bad-configuration"),
        ("POST", "/v1/templates", b"[]", 400, "bad-configuration"),
        ("POST", "/v1/workspaces", b'{"snapshot": "none"}', 404, "not-found"),
        ("POST", "/v1/runs", b'{"text": "x", "file": "/t", "more": 1}', 400, "bad-configuration"),
    ],
)
async def test_every_error_has_the_one_shape(
    module_home: Path, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    """Code, message and problems, whoever noticed it."""
    async with Client(module_home):
        told, content = await asyncio.to_thread(raw, module_home, method, path, body)
    error = json.loads(content)["error"]

    assert (told, error["code"]) == (status, code)
    assert set(error) == {"code", "message", "hint", "problems"}
    assert error["message"].startswith("cannot ")
    assert not error["message"].endswith(".")


@pytest.mark.usefixtures("home")
async def test_every_problem_of_a_template_file_is_told_with_its_line(tmp_path: Path) -> None:
    """The SDK raises what the server found: file, line, key."""
    file = tmp_path / "t.yaml"
    file.write_text("spec:\n  image: host\n  nonsense: 1\n  limit: {memory: {megabytes: many}}\n")
    async with connect() as client:
        with pytest.raises(ConfigError) as told:
            await client.templates.apply(file)

    assert {(one.file, one.line) for one in told.value.problems} == {(str(file), 3), (str(file), 4)}


@pytest.mark.usefixtures("home")
async def test_the_description_is_served_and_valid_enough_to_generate_from() -> None:
    """OpenAPI 3.1, every operation with an id."""
    async with connect() as client:
        document = json.loads(await client._connection.send("GET", "/v1/openapi.json"))

    assert document["openapi"].startswith("3.1")
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert all(one["operationId"] and one["summary"] for one in operations)


@pytest.mark.usefixtures("home")
async def test_names_and_abbreviations_find_a_template() -> None:
    """A unique abbreviation does, a deleted one does not."""
    async with connect() as client:
        made = await client.templates.apply_text(SPEC, name="mine", file="/t.yaml")
        assert (await client.templates.get("mine")).id == made.id
        assert (await client.templates.get(made.id[:10])).id == made.id
        await client.templates.delete("mine")
        with pytest.raises(NotFoundError):
            await client.templates.get("mine")


@pytest.mark.usefixtures("home")
async def test_events_resume_exactly_where_they_broke_off() -> None:
    """By the journal's sequence: nothing twice, nothing missed, also across a killed server."""
    async with connect() as client:
        for number in range(3):
            await client.templates.apply_text(SPEC, name=f"t{number}", file="/t.yaml")
        first = await take(client, 0, 2)
        for number in range(3, 5):
            await client.templates.apply_text(SPEC, name=f"t{number}", file="/t.yaml")
        pid = (await client.version()).pid
        rest = asyncio.create_task(take(client, first[-1].sequence, 4))
        os.kill(pid, signal.SIGKILL)
        await client.templates.apply_text(SPEC, name="t5", file="/t.yaml")
        events = [*first, *await asyncio.wait_for(rest, PATIENCE_SECONDS)]

    assert [one.sequence for one in events] == list(range(1, 7))
    assert {one.kind for one in events} == {"template"}


async def take(client: Client, after: int, count: int) -> list[EventInfo]:
    """Take so many events after a sequence number."""
    taken: list[EventInfo] = []
    async for event in client.events.follow(after=after):
        taken.append(event)
        if len(taken) == count:
            break
    return taken


async def test_the_state_survives_a_killed_server(home: Path) -> None:
    """The next client starts another one, which knows everything that was acknowledged."""
    async with connect() as client:
        pid = (await client.version()).pid
        made = await client.templates.apply_text(SPEC, name="mine", file="/t.yaml")
        os.kill(pid, signal.SIGKILL)
        assert (await client.templates.get("mine")).id == made.id
        assert (await client.version()).pid != pid
    assert Layout(home).api_socket.exists()


async def test_a_server_that_exits_when_idle_leaves_nothing(home: Path) -> None:
    """No process, no socket; and the next client starts a new one."""
    server = start("-m", "forkyard", "serve", "--idle-exit", "0.3")
    try:
        assert await asyncio.to_thread(server.wait, PATIENCE_SECONDS) == 0
    finally:
        server.kill()
        server.wait()
    assert not Layout(home).api_socket.exists()
    async with connect() as client:
        assert (await client.version()).pid != server.pid


async def test_a_connected_client_keeps_a_server_from_exiting(home: Path) -> None:
    """Idle means that nobody is there, either."""
    server = start("-m", "forkyard", "serve", "--idle-exit", "1.5")
    try:
        await asyncio.to_thread(wait_for_socket, home)
        async with connect() as client:
            waiting = asyncio.create_task(take(client, 0, 1))
            done, _ = await asyncio.wait({waiting}, timeout=4.0)
            assert not done
            assert server.poll() is None
            waiting.cancel()
        assert await asyncio.to_thread(server.wait, PATIENCE_SECONDS) == 0
    finally:
        server.kill()
        server.wait()


def wait_for_socket(home: Path) -> None:
    """Wait until somebody listens."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(Layout(home).api_socket))
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server_in_order(home: Path, number: int) -> None:
    """Exit status 0, and no socket is left."""
    server = start("-m", "forkyard", "serve")
    try:
        await asyncio.to_thread(wait_for_socket, home)
        server.send_signal(number)
        assert await asyncio.to_thread(server.wait, PATIENCE_SECONDS) == 0
    finally:
        server.kill()
        server.wait()
    assert not Layout(home).api_socket.exists()


async def test_a_second_server_says_who_holds_the_state(home: Path) -> None:
    """It refuses as a conflict, with the process that serves and the folder."""
    async with connect() as client:
        pid = (await client.version()).pid
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "forkyard", "serve"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 4
    assert f"process {pid}" in done.stderr
    assert str(home) in done.stderr


async def test_an_idle_server_of_another_version_is_replaced(home: Path) -> None:
    """The handshake asks it to go and starts our own."""
    old = start("-c", OTHER_VERSION)
    try:
        await asyncio.to_thread(wait_for_socket, home)
        async with connect() as client:
            told = await client.version()
        assert told.version == __version__
        assert await asyncio.to_thread(old.wait, PATIENCE_SECONDS) == 0
    finally:
        old.kill()
        old.wait()


async def test_a_server_that_cannot_start_tells_why(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason comes from its log, not from a timeout."""
    (home / "format").write_text("99\n")
    with pytest.raises(Exception, match="it has format '99'") as told:
        async with connect():
            pass
    assert str(Layout(home).server_log) in (getattr(told.value, "hint", None) or "")
    monkeypatch.setenv("FORKYARD_HOME", "/proc/nowhere")
    with pytest.raises(Exception, match="cannot use the state directory"):
        async with connect():
            pass


@pytest.mark.usefixtures("home")
async def test_two_of_a_kind_conflict_and_the_ambiguous_is_told(tmp_path: Path) -> None:
    """A template that is being built is not deleted."""
    repository = tmp_path / "r"
    repository.mkdir()
    (repository / "a").write_text("a")
    spec = "spec:\n  repository: {path: r, include_uncommitted: true}\n"
    async with connect() as client:
        await client.templates.apply_text(spec, name="t", file=str(tmp_path / "t.yaml"))
        begun = await client.templates.begin_build("t")
        if begun.state == "building":
            with pytest.raises(ConflictError, match="being built"):
                await client.templates.delete("t")
        assert (await client.templates.wait_until_built("t", timeout_seconds=60)).state == "ready"
        log = b"".join([chunk async for chunk in client.templates.log("t")])
        assert log
