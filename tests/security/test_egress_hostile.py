"""Hostile clients and hostile names at the allowlist's proxy, with hosts that would answer.

Each exchange is the proxy's own, in a process that sees the test's internet, over a socket pair.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkyard.gateway.egress.exchange import Exchange
from forkyard.gateway.egress.hello import ACCESS_DENIED
from forkyard.gateway.egress.names import Names
from forkyard.gateway.egress.records import Records, read
from forkyard.model.connection import Connection
from forkyard.model.hosts import read_rule
from forkyard.model.ids import new_workspace_id
from origins import Origin, certificate, client_hello
from own_internet import HERE, OwnInternet, own_internet

GOOD = "good.example.org"
CONNECT = f"CONNECT {GOOD}:443 HTTP/1.1\r\n\r\n".encode()
QUICK = 0.4


@dataclass(slots=True)
class Scene:
    """An internet, its hosts, and how to talk to the proxy in it."""

    internet: OwnInternet
    folder: Path
    tls: Origin
    plain: Origin

    def tell(self, *pieces: bytes, pause: float = 0.0) -> tuple[bytes, list[Connection]]:
        """Say pieces to a proxy, the second and later ones after its answer or a pause."""
        workspace = new_workspace_id()

        async def run() -> bytes:
            ours, theirs = socket.socketpair()
            for one in (ours, theirs):
                one.settimeout(0)
            exchange = Exchange(
                client=theirs,
                rules=tuple(map(read_rule, (GOOD, "*.bad.example.org"))),
                names=Names(),
                turn=asyncio.Semaphore(8),
                records=Records(self.folder, workspace),
                head_seconds=QUICK,
                idle_seconds=QUICK,
            )
            running = asyncio.ensure_future(exchange.run())
            loop = asyncio.get_running_loop()
            heard = b""
            for number, piece in enumerate(pieces):
                if number:
                    if pause:
                        await asyncio.sleep(pause)
                    else:
                        heard += await loop.sock_recv(ours, 65536)
                try:
                    await loop.sock_sendall(ours, piece)
                except OSError:
                    break
            while chunk := await loop.sock_recv(ours, 65536):
                heard += chunk
            ours.close()
            async with asyncio.timeout(20):
                await running
            return heard

        heard = self.internet.run_here(lambda: asyncio.run(run()))
        return heard, list(read(self.folder, workspace).listed)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Give one for all of these tests."""
    folder = tmp_path_factory.mktemp("egress")
    with own_internet({GOOD: "11.22.33.44"}) as internet:
        tls = Origin(internet.listen("11.22.33.44", 443), certificate(folder, GOOD))
        plain = Origin(internet.listen("11.22.33.44", 80))
        yield Scene(internet, folder, tls, plain)
        tls.close()
        plain.close()


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (client_hello("other.example.org"), "is for other.example.org, not for the host"),
        (client_hello(f"a.{GOOD}"), "not for the host"),
        (client_hello(None), "names no host (SNI)"),
        (b"GET / HTTP/1.1\r\nHost: good.example.org\r\n\r\n", "does not begin with a TLS"),
        (b"SSH-2.0-x\r\n", "does not begin with a TLS"),
    ],
)
def test_the_host_gets_nothing_when_the_greeting_is_not_for_it(
    scene: Scene, greeting: bytes, words: str
) -> None:
    """The client gets an alert, the record the reason, and the host not one byte."""
    before = list(scene.tls.asked)

    heard, (record,) = scene.tell(CONNECT, greeting)

    assert heard == b"HTTP/1.1 200 Connected\r\n\r\n" + ACCESS_DENIED
    assert (record.outcome, record.sent_bytes) == ("refused", 0)
    assert words in record.reason
    assert [one for one in scene.tls.asked if one] == [one for one in before if one]


def test_a_greeting_that_is_sent_along_is_passed_on_when_it_is_for_the_host(scene: Scene) -> None:
    """The proof that the tests above could let something through: this one is let through."""
    heard, (record,) = scene.tell(CONNECT + client_hello(GOOD))

    assert b"\x16\x03\x03" in heard, "the host's own greeting"
    assert record.outcome == "cut"
    assert "nothing came" in record.reason
    assert record.sent_bytes == len(client_hello(GOOD))


@pytest.mark.parametrize(
    ("begun", "status", "words"),
    [
        (b"CONNECT good", b"408", "did not come"),
        (b"", b"408", "did not come"),
        (b"X" * 20_000, b"431", "longer than"),
        (b"\x05\x01\x00" + b"\r\n\r\n", b"400", "cannot be read"),
    ],
)
def test_a_head_ends_when_it_is_slow_or_long(
    scene: Scene, begun: bytes, status: bytes, words: str
) -> None:
    """Who says a byte now and then does not keep a place for ever."""
    heard, (record,) = scene.tell(begun)

    assert heard.startswith(b"HTTP/1.1 " + status)
    assert words in record.reason


def test_a_greeting_ends_when_it_is_slow(scene: Scene) -> None:
    """Byte for byte is no way to keep a connection either."""
    heard, (record,) = scene.tell(CONNECT, client_hello(GOOD)[:50])

    assert heard.endswith(ACCESS_DENIED)
    assert "did not come within" in record.reason


def test_no_second_request_reaches_a_host_when_one_hides_behind_the_first(scene: Scene) -> None:
    """Neither in the same packet, nor behind a body, nor later."""
    first = f"POST http://{GOOD}/a HTTP/1.1\r\nHost: {GOOD}\r\nContent-Length: 4\r\n\r\n".encode()
    hidden = b"GET /b HTTP/1.1\r\nHost: other.example.org\r\n\r\n"
    before = len(scene.plain.asked)

    heard, records = scene.tell(first + b"body" + hidden)
    again, _ = scene.tell(first + b"bo", b"dy" + hidden, pause=0.1)

    assert heard.endswith(b"hello\n")
    assert again.endswith(b"hello\n")
    assert b"Connection: close" in heard
    assert len(records) == 1
    assert scene.plain.asked[before].endswith(b"\r\n\r\nbody")
    assert all(b"other.example.org" not in asked for asked in scene.plain.asked[before:])


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        (("10.1.2.3",), "10.1.2.3, which is private"),
        (("127.0.0.1",), "which is loopback"),
        (("169.254.169.254",), "link-local"),
        (("::1",), "loopback"),
        (("::ffff:11.22.33.44",), "in disguise"),
        (("64:ff9b::b16:212c",), "translated"),
        (("2002:b16:212c::1",), "6to4"),
        (("fd00:ec2::254",), "private"),
        ((HERE,), "this machine's own"),
    ],
)
def test_a_name_is_refused_when_it_leads_where_nobody_may_go(
    scene: Scene, addresses: tuple[str, ...], words: str
) -> None:
    """Its owner says where it leads; we say whether that is gone to."""
    scene.internet.names["x.bad.example.org"] = addresses

    heard, (record,) = scene.tell(b"CONNECT x.bad.example.org:443 HTTP/1.1\r\n\r\n")

    assert heard.startswith(b"HTTP/1.1 403 ")
    assert words in record.reason
    assert record.outcome == "refused"


def test_an_address_is_pinned_when_a_name_is_answered_otherwise_a_moment_later(
    scene: Scene,
) -> None:
    """What was looked at is what is connected to; the next connection looks again."""
    name = "rebind.bad.example.org"
    scene.internet.names[name] = ("11.22.33.44", "127.0.0.1")
    scene.internet.in_turn.add(name)
    ask = f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode()

    first, (good,) = scene.tell(ask)
    second, (bad,) = scene.tell(ask)

    assert first.endswith(b"hello\n")
    assert good.address == "11.22.33.44"
    assert b"which is loopback" in second
    assert bad.address == "127.0.0.1"


def test_public_addresses_are_used_when_a_name_leads_to_others_as_well(scene: Scene) -> None:
    """A network that translates adds addresses of its own; they are passed over."""
    scene.internet.names["mixed.bad.example.org"] = ("10.1.1.1", "11.22.33.44")
    name = "mixed.bad.example.org"

    heard, (record,) = scene.tell(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())

    assert heard.endswith(b"hello\n")
    assert record.address == "11.22.33.44"


def test_it_is_told_when_a_host_cannot_be_found_or_reached(scene: Scene) -> None:
    """Trouble that is nobody's refusal is no refusal."""
    lost, (absent,) = scene.tell(b"CONNECT absent.bad.example.org:443 HTTP/1.1\r\n\r\n")
    scene.internet.name("closed.bad.example.org", "11.22.33.66")
    shut, (closed,) = scene.tell(b"CONNECT closed.bad.example.org:443 HTTP/1.1\r\n\r\n")

    assert lost.startswith(b"HTTP/1.1 502 ")
    assert shut.startswith(b"HTTP/1.1 502 ")
    assert (absent.outcome, closed.outcome) == ("failed", "failed")
    assert "Connection refused" in closed.reason
