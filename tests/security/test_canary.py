"""A provider's key, planted as a canary, is nowhere but with the gateway and its provider.

A real server and a real gateway, an agent that takes down all that it can read and provokes every
kind of error, a provider that repeats the key in each of them. Then everything is searched.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from canary import Canary, Detector, new_canary
from forkyard import connect_blocking
from forkyard.config import Layout
from projects import alive, attempts, forkyard, make_repository, run_result, write_task

NAME = "ANTHROPIC_API_KEY"
CONTROL = "control-value-0a1b2c3d4e"
RUMMAGE = Path(__file__).with_name("rummage.py")


class Provider(ThreadingHTTPServer):
    """A provider whose errors repeat the key that it was asked with, in several codings."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on loopback."""
        self.keys: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answers)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer as the prompt says: `KIND STATUS`."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers.get("x-api-key", "")
        self.server.keys.append(key)
        kind, status = str(body["messages"][0]["content"]).split()
        if kind == "gone":
            self.connection.shutdown(2)
        elif status != "200" or kind == "text":
            self._error(int(status), key, is_json=kind != "text")
        else:
            self._message(is_stream=bool(body.get("stream")), is_cut=kind == "cut")

    def _error(self, status: int, key: str, *, is_json: bool) -> None:
        said = f"key {key}, {base64.b64encode(b'x' + key.encode()).decode()}, {key.encode().hex()}"
        error = {"type": "error", "error": {"type": "authentication_error", "message": said}}
        self.send_response(status)
        self.send_header("request-id", f"req_{key}")
        self.send_header("x-echo", key)
        if status in {429, 529}:
            self.send_header("retry-after", "999")  # more than the gateway waits for
        self._body(
            (json.dumps({**error, key: [key]}) if is_json else said).encode(), is_json=is_json
        )

    def _message(self, *, is_stream: bool, is_cut: bool) -> None:
        usage = {"input_tokens": 5, "output_tokens": 2}
        message: dict[str, Any] = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-5",
            "content": [], "stop_reason": None, "usage": usage,
        }  # fmt: skip
        self.send_response(200)
        if not is_stream:
            done = {
                **message,
                "content": [{"type": "text", "text": "ok"}],
                "stop_reason": "end_turn",
            }
            self._body(json.dumps(done).encode(), is_json=True)
            return
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
        if not is_cut:
            events += [
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
                {"type": "message_stop"},
            ]
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self.close_connection = True

    def _body(self, content: bytes, *, is_json: bool) -> None:
        self.send_header("content-type", "application/json" if is_json else "text/plain")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def providing() -> Iterator[Provider]:
    """Run a provider."""
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever)
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


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


class Watch:
    """Searches the process table again and again while a run is under way."""

    def __init__(self, detector: Detector) -> None:
        """Begin."""
        self.found: set[str] = set()
        self.looks = 0
        self._detector = detector
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            self.found.update(self._detector.in_processes())
            self.looks += 1

    def end(self) -> None:
        """Stop."""
        self._is_over.set()
        self._thread.join()


def _plant(home: Path, canary: Canary, provider: Provider) -> list[str]:
    """Set the secrets by the command line, in ways that go wrong too; give what was said."""
    (home / "gateway.yaml").write_text(
        "providers:\n"
        f"  - {{name: anthropic, api: anthropic, url: '{provider.url}', secret: {NAME}}}\n"
    )

    def secret(*arguments: str, stdin: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "forkyard", "secret", *arguments],
            input=stdin, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout + done.stderr

    return [
        secret("set", NAME, "--json", stdin=canary.value),
        secret("set", "CONTROL", stdin=CONTROL),
        secret("set", "bad name", stdin=canary.value),
        secret("set", "TOO_LONG", stdin=canary.value * 400),
        secret("set", "SPACED", stdin=f" {canary.value} "),
        secret("list", "--json", stdin=""),
    ]


def _wrong_requests(home: Path, canary: Canary) -> list[bytes]:
    """Send the value where it does not belong; give the answers."""
    value = canary.value
    told = [
        raw(home, "PUT", f"/v1/secrets/{NAME}", f'{{"value": "{value}'.encode()),
        raw(home, "PUT", f"/v1/secrets/{NAME}", json.dumps({"value": [value]}).encode()),
        raw(home, "PUT", f"/v1/secrets/{NAME}", json.dumps({"value": value, "x": value}).encode()),
        raw(home, "PUT", "/v1/secrets/a%20b", json.dumps({"value": value}).encode()),
        raw(home, "POST", f"/v1/secrets/{NAME}", json.dumps({"value": value}).encode()),
        raw(home, "GET", f"/v1/secrets/{NAME}"),
    ]
    assert [status for status, _ in told] == [400, 400, 400, 400, 405, 405]
    return [body for _, body in told]


def _task(folder: Path) -> Path:
    program = RUMMAGE.read_text()
    agent = {
        "name": "rummager",
        "driver": "command",
        "command": '/usr/bin/python3 -c "$RUMMAGE"',
        "env": {"RUMMAGE": program, "CONTROL_VALUE": CONTROL},
        "gateway": True,
    }
    return write_task(
        folder,
        json.dumps(
            {
                "name": "canary",
                "prompt": "Look around.",
                "start": {"repository": {"path": "repo"}},
                "agents": [agent],
                "checks": [{"name": "prints", "run": "cat control.txt; test -s answers.txt"}],
            }
        ),
    )


def test_key_is_nowhere_when_an_agent_has_done_its_worst(home: Path, tmp_path: Path) -> None:
    """The whole way of a key, every error on it, and then a search of everything."""
    canary = new_canary()
    detector = Detector(canary)
    make_repository(tmp_path / "repo")
    with providing() as provider:
        said = _plant(home, canary, provider)
        watch = Watch(detector)
        try:
            answers = _wrong_requests(home, canary)
            finished = forkyard("run", _task(tmp_path), "--json", directory=tmp_path)
            (gateway,) = gateways(home)
            environment = Path(f"/proc/{gateway}/environ").read_bytes()
            # Dying by a signal that would leave a core, and by one that nobody can catch.
            os.kill(gateway, signal.SIGABRT)
            with connect_blocking() as client:
                server = client.version().pid
            os.kill(server, signal.SIGKILL)
        finally:
            watch.end()
    attempt = attempts(run_result(finished))["rummager"]
    with connect_blocking() as client:
        served = [
            b"".join(client.runs.log(attempt["id"], stream=stream))
            for stream in ("stdout", "stderr")
        ]
        patch = client.candidates.patch(attempt["candidate"]["id"])
        shown = forkyard("compare", "last", directory=tmp_path).stdout

    # It was used, every time, and by nobody but the gateway.
    assert len(provider.keys) >= 12
    assert set(provider.keys) == {canary.value}
    # The agent did what it was meant to do, and the gateway's errors came through, masked.
    assert b"== garbage" in patch
    assert patch.count(f"[secret {NAME}]".encode()) > 20
    # And the key is nowhere.
    assert detector.in_files(home) == []
    assert detector.in_git(Layout(home).objects) == []
    assert detector.in_files(tmp_path) == []
    assert watch.found == set()
    assert watch.looks > 10
    assert detector.in_processes() == []
    for content in (*said, finished.stdout, finished.stderr, shown):
        assert not detector.is_in(content.encode())
    for raw_content in (*answers, *served, patch, environment):
        assert not detector.is_in(raw_content)
    _journal_holds_nothing(home, detector)
    # What the agent was given to print is masked where it is shown and kept, and flagged.
    assert served[0].count(b"[secret CONTROL]") == 3
    assert served[1].endswith(b"[secret CONTROL]")
    kept = [
        path for path in Layout(home).runs.rglob("*") if path.is_file() and path.name != "patch"
    ]
    assert not any(CONTROL.encode() in path.read_bytes() for path in kept)
    assert any(b"[secret CONTROL]" in path.read_bytes() for path in kept)
    assert {(one["path"], one["secret"]) for one in attempt["candidate"]["secrets"]} >= {
        ("control.txt", "CONTROL")
    }
    assert NAME not in {one["secret"] for one in attempt["candidate"]["secrets"]}


def gateways(home: Path) -> list[int]:
    """Find the gateway process of a state directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"forkyard.gateway.main" in words and os.fsencode(home) in words:
                found.append(int(entry.name))
    return found


def _journal_holds_nothing(home: Path, detector: Detector) -> None:
    """Read every column of every table as SQLite has it, whatever its pages look like."""
    for file in (Layout(home).database, Layout(home).gateway / "ledger.db"):
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
            tables = [row[0] for row in database.execute("SELECT name FROM sqlite_schema")]
            assert tables
            dump = "\n".join(database.iterdump())
        assert not detector.is_in(dump.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "coding",
    [
        lambda value: value,
        lambda value: value[9:31],
        lambda value: value[20:40].hex().encode(),
        lambda value: base64.b64encode(b"x" + value),
        lambda value: base64.encodebytes(b"key: " + value * 3),
        lambda value: base64.urlsafe_b64encode(b"??" + value),
        lambda value: "".join(f"%{one:02X}" for one in value).encode(),
        lambda value: json.dumps(value.decode()).encode(),
        lambda value: value.decode().encode("utf-16-le"),
        lambda value: b"\n".join((value[:30], value[30:])),
        lambda value: value[::-1],
    ],
)
def test_detector_fires_when_a_canary_was_planted(coding: Any, tmp_path: Path) -> None:  # noqa: ANN401 - a table's lambda
    """In files, names, links, git objects, databases, arguments and environments; else silent."""
    canary = new_canary()
    detector, other = Detector(canary), Detector(new_canary())
    content = coding(canary.value.encode())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_bytes(b"\0before" + content + b"after")
    (tmp_path / "link").symlink_to(content.hex()[:200] + "/x" if b"\0" in content else "/x")

    assert "sub/file" in detector.in_files(tmp_path)
    assert other.in_files(tmp_path) == []


def test_detector_fires_when_a_process_or_store_holds_it(tmp_path: Path) -> None:
    """The places of the great test that are no plain files."""
    canary = new_canary()
    detector = Detector(canary)
    repository = make_repository(tmp_path / "repo")
    assert detector.in_git(repository / ".git") == []
    blob = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=repository, check=True,
        input=canary.value.encode() * 40, capture_output=True,
    ).stdout  # fmt: skip
    assert blob
    assert detector.in_git(repository / ".git")
    assert detector.in_files(repository / ".git")
    assert detector.in_processes() == []
    for words, variables in (
        (["sleep", "20", canary.value], {}),
        (["sleep", "20"], {"K": canary.value}),
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)", *words], env=variables
        )
        try:
            deadline = time.monotonic() + 10
            while not detector.in_processes() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert detector.in_processes()
        finally:
            process.kill()
            process.wait()
    assert alive(canary.value) == []
