"""A process to be killed: many agents on one ledger, and a provider that keeps its own.

The provider is a file that a request is appended to in the moment it would be sent: the line says
what it used and what that costs. Run as `python ledger_client.py LEDGER PROVIDER SEED CLIENTS
REQUESTS MICRO_USD TOKENS CUT_PERCENT ERROR_PERCENT [JOURNAL]`; prints one line for each client that
is done. With a journal it also copies what is settled into that file, as a server does, and has
the ledger forget what was copied.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from fakes.ledger_scene import MODEL, PRICE, ask_for, grant_of
from forkyard.gateway.admission import Admission
from forkyard.gateway.interface import Copied, Outcome
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.line import Reservation
from forkyard.gateway.prices import cost_micro_usd
from forkyard.gateway.serving import RefusedError
from forkyard.model.budget import Budget, TokenCounts

ASKED = 128_000


@dataclass(frozen=True, slots=True)
class Scene:
    """What the command line says."""

    ledger: Path
    provider: Path
    seed: int
    clients: int
    requests: int
    budget: Budget
    cut_percent: int
    error_percent: int
    journal: Path | None = None


class Provider:
    """Appends what it answers to its own ledger, in one write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def answer(self, reservation: Reservation, chance: random.Random) -> TokenCounts:
        """Use some of what the request may use, and remember it."""
        prompt = chance.randrange(reservation.input_tokens + 1)
        cached = chance.randrange(prompt + 1)
        written = chance.randrange(min(1_500, reservation.output_tokens) + 1)
        tokens = TokenCounts(input=prompt - cached, cache_write=cached, output=written)
        attempt = reservation.grant.attempt
        line = f"{attempt} {tokens.total} {cost_micro_usd(PRICE, tokens)}\n"
        os.write(self._descriptor, line.encode())
        return tokens


async def agent(scene: Scene, number: int, admission: Admission, provider: Provider) -> None:
    """Ask until all is asked or a budget refuses."""
    chance = random.Random(f"{scene.seed} {number}")  # noqa: S311 - a test's dice
    grant = grant_of(number)
    for _ in range(scene.requests):
        try:
            reservation = await admission.admit(
                grant.workspace,
                ask_for(chance.randrange(200, 3_000), ASKED),
                provider="anthropic",
                model=MODEL,
                price=PRICE,
            )
        except RefusedError:
            break
        dice = chance.randrange(100)
        if dice < scene.error_percent:
            outcome, tokens = Outcome.PROVIDER_ERROR, TokenCounts()
        else:
            outcome, tokens = Outcome.COMPLETE, provider.answer(reservation, chance)
        await asyncio.sleep(chance.random() / 200)
        is_cut = scene.error_percent <= dice < scene.error_percent + scene.cut_percent
        await admission.settle(
            reservation,
            outcome=Outcome.CLIENT_GONE if is_cut else outcome,
            tokens=None if is_cut else tokens,
            status=None if is_cut else 200,
        )
    os.write(1, f"{number}\n".encode())


async def main(scene: Scene) -> None:
    """Let every agent ask at once."""
    ledger = await Ledger.open(scene.ledger)
    admission = Admission(ledger)
    provider = Provider(scene.provider)
    for number in range(scene.clients):
        await admission.grant(grant_of(number, run=scene.budget))
    copying = None
    if scene.journal is not None:
        copying = asyncio.create_task(copy_and_prune(ledger, scene.journal))
    async with asyncio.TaskGroup() as group:
        for number in range(scene.clients):
            group.create_task(agent(scene, number, admission, provider))
    if copying is not None:
        copying.cancel()
    await ledger.close()


async def copy_and_prune(ledger: Ledger, journal: Path) -> None:
    """Copy what is settled, each entry once, and prune up to there, without a pause."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    copied = int(lines[-1].split()[0]) if lines else 0
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        entries = await ledger.entries_after(copied, limit=7)
        if entries:
            rows = [f"{one.sequence} {one.tokens.total} {one.micro_usd or 0}\n" for one in entries]
            os.write(descriptor, "".join(rows).encode())
            copied = entries[-1].sequence
        await ledger.prune(Copied(ledger=ledger.id, through=copied, before="9"))
        await asyncio.sleep(0.002)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[3:10]]
    asyncio.run(
        main(
            Scene(
                ledger=Path(sys.argv[1]),
                provider=Path(sys.argv[2]),
                seed=numbers[0],
                clients=numbers[1],
                requests=numbers[2],
                budget=Budget(micro_usd=numbers[3] or None, tokens=numbers[4] or None),
                cut_percent=numbers[5],
                error_percent=numbers[6],
                journal=Path(sys.argv[10]) if len(sys.argv) > 10 else None,
            )
        )
    )
