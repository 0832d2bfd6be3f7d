"""Ports of a workspace, reached from this machine; ranges of ports that are each copy's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard import BlockingClient, ConflictError
from forkyard.errors import ForkyardError
from living import PATIENCE_SECONDS, forkyard, prepare

ECHO = """\
import socket, threading
def serve(family, address, port):
    listener = socket.create_server((address, port), family=family)
    def run():
        while True:
            one, _ = listener.accept()
            threading.Thread(target=answer, args=(one,), daemon=True).start()
    threading.Thread(target=run).start()
def answer(one):
    with one:
        while chunk := one.recv(65536):
            one.sendall(chunk)
        one.sendall(b"over")
serve(socket.AF_INET, "127.0.0.1", 8000)
serve(socket.AF_INET6, "::1", 8001)
print("listening", flush=True)
"""


@pytest.fixture(scope="module")
def prepared(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a template."""
    prepare(module_home, tmp_path_factory.mktemp("forward"))
    return module_home


@pytest.fixture
def client(prepared: Path) -> Iterator[BlockingClient]:
    """Connect; afterwards no workspace is left."""
    with BlockingClient(prepared) as connected:
        yield connected
        for one in connected.workspaces.list():
            connected.workspaces.get(one.id).delete()


@pytest.fixture
def echoing(client: BlockingClient) -> str:
    """Give a workspace without network in which servers listen on loopback, both kinds."""
    workspace = client.workspaces.create(template="t")
    outcome = workspace.exec(
        "python3 echo.py > log 2>&1 & until grep -q listening log; do sleep 0.05; done",
        variables={},
    ) if workspace.exec("cat > echo.py", input=ECHO.encode()).succeeded else None  # fmt: skip
    assert outcome is not None
    assert outcome.succeeded
    return str(workspace.id)


def ask(port: int, content: bytes) -> bytes:
    """Send something to a port here, end it, and read all of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as one:
        one.sendall(content)
        one.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := one.recv(65536):
            answer += chunk
    return answer


@pytest.mark.parametrize("port", [8000, 8001])
def test_a_server_on_the_loopback_inside_is_reached(
    client: BlockingClient, echoing: str, port: int
) -> None:
    """Whatever `localhost` means there; with an end of its own for each direction."""
    with client.workspaces.get(echoing).forward((0, port)) as ports:
        assert ask(ports[port], b"hello") == b"helloover"
        assert ask(ports[port], b"x" * 3_000_000) == b"x" * 3_000_000 + b"over"


def test_where_nobody_listens_the_reason_is_told(client: BlockingClient, echoing: str) -> None:
    """And whoever connected here is hung up on."""
    told: list[ForkyardError] = []

    with client.workspaces.get(echoing).forward((0, 9), on_trouble=told.append) as ports:
        assert ask(ports[9], b"") == b""

    assert "connection refused" in told[0].message


def test_forwarding_goes_on_with_the_next_server(client: BlockingClient, echoing: str) -> None:
    """Connections under way are lost with a killed server; new ones find the next."""
    with client.workspaces.get(echoing).forward((0, 8000)) as ports:
        assert ask(ports[8000], b"one") == b"oneover"
        os.kill(client.version().pid, signal.SIGKILL)

        assert ask(ports[8000], b"two") == b"twoover"


def test_a_port_that_is_taken_here_is_refused(client: BlockingClient, echoing: str) -> None:
    """With what to do instead."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConflictError, match="address already in use") as told:
            client.workspaces.get(echoing).forward((port, 8000)).__enter__()

    assert "0:8000" in (told.value.hint or "")


def test_each_copy_has_ports_of_its_own(client: BlockingClient) -> None:
    """Stable, told inside, never two alike; one that is ephemeral has none."""
    made = [client.workspaces.create(template="t") for _ in range(3)]
    firsts = [one.info.ports_first for one in made]

    assert len(set(firsts)) == 3
    assert all(24000 <= first < 32000 for first in firsts)
    outcome = made[0].exec("echo $FORKYARD_PORT_FIRST $FORKYARD_PORT_COUNT")
    assert outcome.stdout == f"{firsts[0]} 10\n".encode()
    assert client.workspaces.get(made[0].id).info.ports_first == firsts[0]
    with client.workspaces.run(template="t") as ephemeral:
        assert ephemeral.info.ports_first is None


def test_the_command_forwards_a_workspace_s_own_ports(
    client: BlockingClient, prepared: Path
) -> None:
    """One to one, so that two copies on one host do not meet."""
    workspace = client.workspaces.create(template="t")
    first = workspace.info.ports_first
    workspace.exec("cat > echo.py", input=ECHO.replace("8000", str(first)).encode())
    workspace.exec("python3 echo.py > log 2>&1 & until grep -q listening log; do sleep 0.05; done")
    program = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "workspace", "forward", workspace.id],
        env={**os.environ, "FORKYARD_HOME": str(prepared)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(10)]

    assert lines[0] == f"127.0.0.1:{first} -> {first} in {workspace.id}\n"
    assert ask(first, b"mine") == b"mineover"
    program.send_signal(signal.SIGINT)
    program.stdout.close()
    assert program.wait(PATIENCE_SECONDS) == 130
    told = forkyard(prepared, "forward", workspace.id, "80:x", code=2)
    assert b"[LOCAL:]REMOTE" in told.stderr
