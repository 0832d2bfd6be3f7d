"""Network `open` against what really answers: the internet is reached, this machine never is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.model.workspace import NetworkPolicy
from origins import Origin
from own_internet import HERE, RESOLVER, OwnInternet, own_internet
from sandboxes import Box, describe, make_layer, open_fleet

ASK = (
    "import socket, sys\n"
    "for place in sys.argv[1:]:\n"
    "    host, _, port = place.rpartition(':')\n"
    "    try:\n"
    "        s = socket.create_connection((host, int(port)), 3)\n"
    "        s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\n"
    "        print(place, 'REACHED' if b'hello' in s.recv(4096) + s.recv(4096) else 'odd')\n"
    "    except OSError as e:\n"
    "        print(place, 'no')\n"
)
PRIVATE = ("10.1.2.3", "172.16.9.9", "192.168.7.7", "100.64.1.1", "169.254.169.254", "198.18.0.9")


@pytest.fixture
def internet() -> Iterator[OwnInternet]:
    """Give an internet with one public name."""
    with own_internet({"www.example.org": "11.22.33.44"}) as made:
        yield made


def _ask(home: Path, internet: OwnInternet, *places: str) -> dict[str, str]:
    async def run() -> str:
        async with open_fleet(home) as (fleet, layout):
            layer = make_layer(layout, {"ask.py": ASK})
            spec = describe(layout, layer, network=NetworkPolicy.OPEN)
            await fleet.start(spec)
            output = await Box(fleet, layout, spec).sh(f"python3 ask.py {' '.join(places)}")
            assert output.result.exit_code == 0, output.stderr
            return output.stdout

    told = internet.run_here(lambda: asyncio.run(run()))
    return dict(line.split() for line in told.splitlines())


def test_only_the_internet_is_reached_when_all_of_them_would_answer(
    home: Path, internet: OwnInternet
) -> None:
    """Private, shared, link-local and metadata addresses, and each of this machine's own."""
    origins = [Origin(internet.listen(address, 80)) for address in ("11.22.33.44", *PRIVATE)]
    mine = Origin(internet.listen_here("0.0.0.0", 8080))  # noqa: S104 - what a careless service does
    places = ["www.example.org:80", *(f"{one}:80" for one in PRIVATE)]
    places += [f"{one}:8080" for one in (HERE, "127.0.0.1", "10.0.2.2", "10.0.2.3", "10.0.2.100")]

    told = _ask(home, internet, *places)
    for one in (*origins, mine):
        one.close()

    assert told.pop("www.example.org:80") == "REACHED"
    assert set(told.values()) == {"no"}, told
    assert [one.connections for one in (*origins, mine)] == [1, 0, 0, 0, 0, 0, 0, 0]


def test_the_resolver_leads_to_nothing_else_when_its_other_ports_would_answer(
    home: Path, internet: OwnInternet
) -> None:
    """The address that answers names inside stands for names only, also where that is loopback."""
    beside = Origin(internet.listen(RESOLVER, 8080))
    told = _ask(home, internet, "10.0.2.3:8080")
    internet.resolver.write_text("nameserver 127.0.0.53\n")
    local = Origin(internet.listen_here("0.0.0.0", 8080))  # noqa: S104 - what a careless service does
    again = _ask(home, internet, "10.0.2.3:8080")
    beside.close()
    local.close()

    assert (told, again) == ({"10.0.2.3:8080": "no"}, {"10.0.2.3:8080": "no"})
    assert beside.connections == local.connections == 0
