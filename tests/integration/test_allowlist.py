"""The allowlist's proxy with real sandboxes and clients, in an internet of the test's own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from forkyard.config import Layout
from forkyard.gateway.egress.supervisor import EgressSupervisor
from forkyard.model.connection import Connection, ConnectionOutcome
from forkyard.model.workspace import NetworkPolicy
from forkyard.shim import protocol
from forkyard.shim.ids import EGRESS_USER_ID
from forkyard.workspace.egress import proxy_variables
from origins import Origin, certificate
from own_internet import HERE, OwnInternet, own_internet
from sandboxes import Box, describe, make_layer, open_fleet

T = TypeVar("T")
GOOD, OTHER, PRIVATE = "good.example.org", "other.example.com", "inner.example.org"
ALLOW = (GOOD, "*.below.example.org", PRIVATE, "self.example.org", "odd.example.org:8443")
FETCH = (
    "import sys, ssl, urllib.request as u\n"
    "c = ssl._create_unverified_context()\n"
    "for a in sys.argv[1:]:\n"
    "    try: print(u.urlopen(a, timeout=20, context=c).read().decode().strip())\n"
    "    except Exception as e: print(type(e).__name__, e)\n"
)


class World(NamedTuple):
    """The internet of a test, and who answers in it."""

    internet: OwnInternet
    good: Origin
    plain: Origin
    hidden: Origin
    """At a private address, at this machine's own, and under a name that is not allowed."""


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Give hosts that answer: allowed ones, and ones that nothing may reach."""
    with own_internet({GOOD: "11.22.33.44", OTHER: "11.22.33.55"}) as internet:
        internet.name("a.below.example.org", "11.22.33.44")
        internet.name("odd.example.org", "11.22.33.44")
        internet.name(PRIVATE, "10.1.2.3")
        internet.names["self.example.org"] = (HERE,)
        tls = certificate(folder, GOOD)
        found = [
            Origin(internet.listen("11.22.33.44", 443), tls),
            Origin(internet.listen("11.22.33.44", 80)),
            Origin(internet.listen("11.22.33.55", 443), tls),
            Origin(internet.listen("10.1.2.3", 443), tls),
            Origin(internet.listen_here(HERE, 443), tls),
            Origin(internet.listen("11.22.33.44", 8443), tls),
        ]
        try:
            hidden = found[2]
            found[3].asked = found[4].asked = hidden.asked
            yield World(internet, found[0], found[1], hidden)
        finally:
            for one in found:
                one.close()


def in_sandbox(
    home: Path,
    there: World,
    body: Callable[[Box, EgressSupervisor], Awaitable[T]],
    *,
    allow: tuple[str, ...] = ALLOW,
) -> T:
    """Run a test's coroutine beside one sandbox with an allowlist, where the internet is ours."""

    async def run() -> T:
        async with open_fleet(home) as (fleet, layout):
            egress = EgressSupervisor(layout, lambda: True)
            await egress.ready()
            try:
                spec = describe(
                    layout,
                    make_layer(layout, {"fetch.py": FETCH}),
                    network=NetworkPolicy.ALLOWLIST,
                    allow=allow,
                )
                await fleet.start(spec)
                return await body(Box(fleet, layout, spec), egress)
            finally:
                await egress.close()

    return there.internet.run_here(lambda: asyncio.run(run()))


async def fetch(box: Box, *addresses: str) -> list[str]:
    """Ask for addresses inside, one after another; give what came, or what went wrong."""
    spec = box.command(
        f"python3 fetch.py {' '.join(addresses)}",
        variables=proxy_variables(()),
    )
    output = await box.run(spec)
    assert output.result.exit_code == 0, output.stderr
    return output.stdout.splitlines()


async def _listed(egress: EgressSupervisor, box: Box) -> list[Connection]:
    await box.fleet.stop(box.id, epoch=1)
    found = await egress.connections(box.id, is_over=True)
    return list(found.listed)


def test_allowed_hosts_are_reached_and_listed_when_asked_by_the_proxy(
    home: Path,
) -> None:
    """By TLS and by plain http, under an exact name, one below a wildcard and a port of its own."""

    async def body(box: Box, egress: EgressSupervisor) -> tuple[list[str], list[Connection]]:
        answers = await fetch(
            box,
            f"https://{GOOD}/a",
            f"http://{GOOD}/b",
            "https://a.below.example.org/c",
            "https://odd.example.org:8443/d",
        )
        return answers, await _listed(egress, box)

    with world(home.parent) as there:
        answers, listed = in_sandbox(home, there, body)

        assert answers == ["hello"] * 4
        assert [(one.host, one.port, one.outcome, one.address) for one in listed] == [
            (GOOD, 443, ConnectionOutcome.CLOSED, "11.22.33.44"),
            (GOOD, 80, ConnectionOutcome.CLOSED, "11.22.33.44"),
            ("a.below.example.org", 443, ConnectionOutcome.CLOSED, "11.22.33.44"),
            ("odd.example.org", 8443, ConnectionOutcome.CLOSED, "11.22.33.44"),
        ]
        assert all(one.sent_bytes > 50 and one.received_bytes > 50 for one in listed)
        assert there.plain.asked[0].startswith(b"GET /b HTTP/1.1\r\nHost: good.example.org\r\n")


def test_everything_else_is_refused_in_words_when_it_would_have_answered(
    home: Path,
) -> None:
    """Another name, a private address, this machine, addresses, and what goes past the proxy."""

    async def body(box: Box, egress: EgressSupervisor) -> tuple[list[str], str, list[Connection]]:
        answers = await fetch(
            box,
            f"https://{OTHER}/",
            f"https://{PRIVATE}/",
            "https://self.example.org/",
            "https://11.22.33.44/",
            f"https://{GOOD}:8443/",
            "https://below.example.org/",
        )
        past = await box.sh(
            "python3 -c 'import socket; socket.create_connection((\"11.22.33.44\", 443), 5)';"
            f"python3 -c 'import socket; socket.getaddrinfo(\"{GOOD}\", 443)'"
        )
        return answers, past.stderr, await _listed(egress, box)

    with world(home.parent) as there:
        answers, past, listed = in_sandbox(home, there, body)

        assert [("403" in line, line.count("forkyard: cannot connect")) for line in answers] == [
            (True, 1)
        ] * 6, answers
        assert f'add "{OTHER}" to let it in' in answers[0]
        assert "leads to 10.1.2.3, which is private" in answers[1]
        assert f"leads to {HERE}, which is this machine's own" in answers[2]
        assert "only names are let in" in answers[3]
        assert f'add "{GOOD}:8443"' in answers[4]
        assert "Network is unreachable" in past
        assert "name resolution" in past
        assert [one.outcome for one in listed] == [ConnectionOutcome.REFUSED] * 6
        assert there.hidden.asked == []
        assert OTHER not in there.internet.asked, "a name that is not allowed is not even looked up"


def test_requests_wait_for_the_next_proxy_when_one_was_killed(home: Path) -> None:
    """The shim hands its socket and list to the new one; what was under way is recorded as cut."""

    async def body(box: Box, egress: EgressSupervisor) -> tuple[list[str], bool]:
        first = await fetch(box, f"https://{GOOD}/")
        before = _pid(box.layout)
        status = Path(f"/proc/{before}/status").read_text(encoding="ascii")
        os.kill(before, signal.SIGKILL)
        second = await fetch(box, f"https://{GOOD}/", f"https://{OTHER}/")
        await egress.ready()
        assert f"Uid:\t{EGRESS_USER_ID}\t{EGRESS_USER_ID}\t" in status
        assert "CapEff:\t0000000000000000" in status
        return first + second, _pid(box.layout) != before

    with world(home.parent) as there:
        answers, is_another = in_sandbox(home, there, body)

        assert answers[:2] == ["hello", "hello"]
        assert "403" in answers[2]
        assert is_another


def _pid(layout: Layout) -> int:

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with protocol.short_path(str(layout.egress_socket)) as path:
            connection.connect(path)
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(raw[:4], "little")


def test_each_sandbox_has_its_own_list_when_64_are_there_at_once(home: Path) -> None:
    """Who asks is told apart by the socket, and every answer and record is the right one's."""

    async def run() -> tuple[list[list[str]], list[list[tuple[str, str]]]]:
        async with open_fleet(home) as (fleet, layout):
            egress = EgressSupervisor(layout, lambda: True)
            await egress.ready()
            layer = make_layer(layout, {"fetch.py": FETCH})
            boxes = []
            for slot in range(64):
                spec = describe(
                    layout,
                    layer,
                    slot=slot,
                    network=NetworkPolicy.ALLOWLIST,
                    allow=(f"n{slot}.example.org",),
                )
                await fleet.start(spec)
                boxes.append(Box(fleet, layout, spec))
            answers = await asyncio.gather(
                *(
                    fetch(box, f"http://n{slot}.example.org/", f"http://n{slot ^ 1}.example.org/")
                    for slot, box in enumerate(boxes)
                )
            )
            records = [
                [(one.host, one.outcome.value) for one in await _listed(egress, box)]
                for box in boxes
            ]
            await egress.close()
            return answers, records

    with world(home.parent) as there:
        for number in range(64):
            there.internet.name(f"n{number}.example.org", "11.22.33.44")
        answers, records = there.internet.run_here(lambda: asyncio.run(run()))

    assert [answer[0] for answer in answers] == ["hello"] * 64
    assert all("403" in answer[1] for answer in answers)
    assert records == [
        [(f"n{slot}.example.org", "closed"), (f"n{slot ^ 1}.example.org", "refused")]
        for slot in range(64)
    ]
