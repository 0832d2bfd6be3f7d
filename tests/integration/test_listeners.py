"""The gateway's sockets inside sandboxes: who is reached under which name, and who goes on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from forkyard.model.workspace import NetworkPolicy
from forkyard.shim.protocol import Message, receive_rights
from forkyard.workspace.runtime import RUNTIMES
from sandboxes import Box, in_box

PROVIDERS = ("anthropic", "openai")
FETCH = "python3 -c 'import urllib.request as u; print(u.urlopen(\"{}\", timeout=30).read())'"


class Handed(NamedTuple):
    """What a shim handed over."""

    message: Message
    listeners: dict[str, socket.socket]
    connection: socket.socket

    def close(self) -> None:
        """Die as a gateway does: everything it holds goes at once."""
        for one in (*self.listeners.values(), self.connection):
            one.close()


class Counter:
    """Listens where the gateway does, and takes what shims hand over."""

    def __init__(self, path: Path) -> None:
        """Bind."""
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(30)

    def take(self) -> Handed:
        """Wait for one shim."""
        connection, _ = self._listener.accept()
        connection.settimeout(30)
        line, rights = receive_rights(connection, 4096)
        message = json.loads(line)
        sockets = (socket.socket(fileno=number) for number in rights)
        return Handed(message, dict(zip(message["providers"], sockets, strict=True)), connection)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def _answer_one(listener: socket.socket, word: str) -> None:
    listener.settimeout(30)
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(word)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + word.encode())


def _with_counter(
    home: Path,
    body: Callable[[Box, Counter], Awaitable[None]],
    runtimes: tuple[str, ...] = RUNTIMES,
) -> None:
    (home / "run").mkdir(exist_ok=True)
    counter = Counter(home / "run" / "gateway.sock")

    async def in_sandbox(box: Box) -> None:
        await body(box, counter)

    try:
        in_box(
            home,
            in_sandbox,
            network=NetworkPolicy.GATEWAY,
            providers=PROVIDERS,
            runtimes=runtimes,
        )
    finally:
        counter.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_provider_answers_under_its_name_when_its_socket_was_handed_over(
    home: Path, runtime: str
) -> None:
    """The socket a request comes through tells who asks, and for which provider."""

    async def body(box: Box, counter: Counter) -> None:
        handed = await asyncio.to_thread(counter.take)
        try:
            assert handed.message["workspace"] == box.id
            for name, listener in handed.listeners.items():
                answering = asyncio.to_thread(_answer_one, listener, f"I am {name}")
                output, _ = await asyncio.gather(
                    box.sh(FETCH.format(f"http://{name}/v1")), answering
                )
                assert output.stdout == f"b'I am {name}'\n", output.stderr
        finally:
            handed.close()

    _with_counter(home, body, runtimes=(runtime,))


def test_nothing_else_is_reachable_when_the_network_is_the_gateway(home: Path) -> None:
    """No route but loopback, no name but the providers', no port but theirs."""

    async def body(box: Box, counter: Counter) -> None:
        handed = await asyncio.to_thread(counter.take)
        handed.connection.settimeout(0)
        routes = await box.sh("cat /proc/net/route | wc -l; cat /proc/net/dev | wc -l")
        elsewhere = await box.sh(FETCH.format("http://192.0.2.1/"))
        unknown = await box.sh(FETCH.format("http://gemini/"))
        other_port = await box.sh(FETCH.format("http://anthropic:443/"))
        handed.close()

        assert routes.stdout.split() == ["1", "3"], "the head lines and loopback"
        assert "Network is unreachable" in elsewhere.stderr
        assert "Temporary failure in name resolution" in unknown.stderr
        assert "Connection refused" in other_port.stderr

    _with_counter(home, body)


def test_a_request_waits_and_is_answered_when_the_gateway_died_and_another_came(
    home: Path,
) -> None:
    """The shim keeps the sockets: who asks meanwhile waits in the kernel's queue."""

    async def body(box: Box, counter: Counter) -> None:
        first = await asyncio.to_thread(counter.take)
        counter.close()
        first.close()
        asking = asyncio.ensure_future(box.sh(FETCH.format("http://openai/v1")))
        await box.sh("until grep -q ' 01 ' /proc/net/tcp; do sleep 0.01; done")

        second = Counter(box.layout.gateway_socket)
        handed = await asyncio.to_thread(second.take)
        await asyncio.to_thread(_answer_one, handed.listeners["openai"], "late")
        output = await asking
        handed.close()
        second.close()

        assert output.stdout == "b'late'\n", output.stderr

    _with_counter(home, body)


def test_connections_are_refused_when_the_workspace_was_stopped(home: Path) -> None:
    """A duplicate that the gateway still holds is dead from the stop on."""

    async def body(box: Box, counter: Counter) -> None:
        handed = await asyncio.to_thread(counter.take)
        await box.fleet.stop(box.id, epoch=box.spec.epoch)
        listener = handed.listeners["anthropic"]
        listener.settimeout(0)

        with pytest.raises(OSError, match="Invalid argument"):
            os.close(listener.accept()[0].detach())
        handed.close()

    _with_counter(home, body)
