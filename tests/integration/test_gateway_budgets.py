"""Budgets hold at every instant, whatever is cut, killed or asked for at once.

Three ledgers are compared while it all goes on: the scripted provider's, read first, and the
gateway's file, read afterwards. What the provider has billed is never more than what the gateway
has booked or holds reserved, and that is never more than the budget.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from depth import first
from forkyard.gateway.interface import LedgerEntry, Outcome
from forkyard.gateway.supervisor import LEDGER_FILE
from forkyard.model.budget import Budget
from forkyard.model.ids import RunId, new_run_id
from forkyard.model.provider import Price
from gateways import PATIENCE, Yard, grant_for, settings_for, yard
from scripted_model.running import ScriptedModel, start_model

MODEL = "scripted-1"
PRICE = Price(
    model=MODEL, input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=3_750_000
)
SCRIPTED_PRICE = {
    "input": PRICE.input,
    "output": PRICE.output,
    "cache_read": PRICE.cache_read,
    "cache_write": PRICE.cache_write,
}
USAGE = {"input": 120, "cache_read": 40, "output": 30}
COST = 822
"""Of one such request, in micro-dollars."""
TOKENS = 190
"""Of one such request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many do how much, and what they may spend together."""

    clients: int
    requests: int
    budget: Budget


@dataclass(slots=True)
class Seen:
    """What the clients met."""

    done: int = 0
    answered: int = 0
    refused: int = 0
    killed: int = 0
    looks: int = 0
    wrong: list[str] = field(default_factory=list)


def scenarios(**turn: object) -> dict[str, object]:
    """Give one scenario of one turn."""
    return {
        "models": {MODEL: SCRIPTED_PRICE},
        "scenarios": {"default": {"toolless": True, "turns": [turn]}},
    }


def body(*, most: int = 500) -> dict[str, object]:
    """Give a request."""
    return {
        "model": MODEL,
        "max_tokens": most,
        "stream": True,
        "messages": [{"role": "user", "content": "go on"}],
    }


def billed(model: ScriptedModel) -> tuple[int, int]:
    """Add the provider's ledger up: tokens and micro-dollars."""
    bills = model.billed()
    return (
        sum(one.usage.whole_input + one.usage.output for one in bills),
        sum(one.micro_usd for one in bills),
    )


def booked(made: Yard, run: RunId) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read what is settled, and what is settled or reserved, from the gateway's file."""
    path = made.layout.gateway / LEDGER_FILE
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=PATIENCE)) as database:
        row = database.execute(
            "SELECT spent_tokens, spent_micro_usd, reserved_tokens, reserved_micro_usd"
            " FROM balances WHERE level = 'run' AND id = ?",
            (run,),
        ).fetchone()
    if row is None:
        return (0, 0), (0, 0)
    return (row[0], row[1]), (row[0] + row[2], row[1] + row[3])


def is_within(used: tuple[int, int], budget: Budget) -> bool:
    """Say whether tokens and micro-dollars keep to a budget."""
    limits = (budget.tokens, budget.micro_usd)
    return all(limit is None or one <= limit for one, limit in zip(used, limits, strict=True))


async def watch(made: Yard, model: ScriptedModel, run: RunId, budget: Budget, seen: Seen) -> None:
    """Compare the ledgers for as long as it goes on."""
    while True:
        theirs = billed(model)
        settled, held = booked(made, run)
        seen.looks += 1
        if theirs[0] > held[0] or theirs[1] > held[1]:
            seen.wrong.append(f"billed {theirs}, booked or reserved {held}")
        if not is_within(held, budget) or settled[0] > held[0] or settled[1] > held[1]:
            seen.wrong.append(f"booked or reserved {held} of {budget}")
        await asyncio.sleep(0.05)


async def client_of(address: str, requests: int, seed: int, seen: Seen) -> None:
    """Ask again and again; leave every fifth answer early; stop when a budget says so."""
    chance = random.Random(seed)  # noqa: S311 - the same load each time
    timeout = aiohttp.ClientTimeout(total=PATIENCE * 4)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for _ in range(requests):
            leaves = chance.random() < 0.2
            try:
                async with session.post(f"{address}/v1/messages", json=body()) as answer:
                    if answer.status in {400, 402, 403}:
                        seen.refused += 1
                        return
                    if leaves:
                        await answer.content.readany()
                    else:
                        await answer.read()
                    seen.answered += answer.status == 200
            except aiohttp.ClientError:
                seen.killed += 1
            seen.done += 1


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something another process does."""
    async with asyncio.timeout(PATIENCE * 8):
        while not is_so():
            await asyncio.sleep(0.02)


async def under_load(home: Path, tmp_path: Path, load: Load) -> None:
    """Run the load, kill the gateway twice in it, and compare at every instant and at the end."""
    script = scenarios(
        text="word " * 8,
        usage=USAGE,
        pieces=8,
        chunk_delay=0.002,
        fault={"every": 20, "status": 500},
    )
    run, seen = new_run_id(), Seen()
    with start_model(tmp_path, script) as model:  # type: ignore[arg-type] # plain JSON
        async with yard(home, settings_for(model.url, PRICE)) as made:
            budget = load.budget
            grants = [grant_for(run=run, run_budget=budget) for _ in range(load.clients)]
            handed = [await made.let_in(grant) for grant in grants]
            watching = asyncio.create_task(watch(made, model, run, budget, seen))
            clients = [
                asyncio.create_task(client_of(one.url("anthropic"), load.requests, number, seen))
                for number, one in enumerate(handed)
            ]
            every = load.clients * load.requests
            for share in (0.15, 0.3):
                await until(
                    lambda share=share: (
                        seen.done > every * share  # type: ignore[misc]
                        or all(one.done() for one in clients)
                    )
                )
                await made.kill()
            await asyncio.gather(*clients)
            entries: list[LedgerEntry] = []
            for grant in grants:
                entries += await made.supervisor.revoke(grant.workspace)
            watching.cancel()
            theirs, (settled, held) = billed(model), booked(made, run)
    assert seen.wrong == []
    assert seen.looks > 5
    assert seen.killed > 0
    assert settled == held
    assert theirs[0] <= settled[0]
    assert theirs[1] <= settled[1]
    assert is_within(settled, load.budget)
    if load.budget.micro_usd is not None:
        assert settled[1] >= 0.85 * load.budget.micro_usd, (settled, seen)
    if load.budget.tokens is not None:
        assert settled[0] >= 0.85 * load.budget.tokens, (settled, seen)
    exact = [one for one in entries if not one.is_estimated and one.tokens.total]
    assert {(one.tokens.total, one.micro_usd) for one in exact} == {(TOKENS, COST)}
    assert len(exact) >= seen.answered - seen.killed
    assert {one.outcome for one in entries if one.is_estimated} <= {
        Outcome.UNKNOWN,
        Outcome.CLIENT_GONE,
    }


@pytest.mark.parametrize("budget", first(Budget(micro_usd=300_000), Budget(tokens=90_000)))
def test_budget_holds_at_every_instant_when_the_gateway_is_killed_under_load(
    home: Path, tmp_path: Path, budget: Budget
) -> None:
    """Disconnects, errors and two SIGKILLs: billed <= booked <= budget, and little is wasted."""
    asyncio.run(under_load(home, tmp_path, Load(clients=8, requests=40, budget=budget)))


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("budget", [Budget(micro_usd=7_000_000), Budget(tokens=2_100_000)])
def test_budget_holds_at_every_instant_when_many_are_killed_under_load(
    home: Path, tmp_path: Path, budget: Budget
) -> None:
    """The same with 64 clients of 200 requests each."""
    asyncio.run(under_load(home, tmp_path, Load(clients=64, requests=200, budget=budget)))


def test_each_client_gets_an_answer_when_all_ask_for_more_than_the_budget(
    home: Path, tmp_path: Path
) -> None:
    """Four share 2 USD; each call asks for 128,000 output tokens, 1.92 USD at the stated price."""
    usage = {"input": 200, "output": 4000}
    answers = [0, 0, 0, 0]

    async def ask(number: int, address: str) -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(20):
                async with session.post(
                    f"{address}/v1/messages", json=body(most=128_000)
                ) as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        assert "budget" in text, text
                        return
                    answers[number] += 1

    async def go() -> None:
        run, budget, seen = new_run_id(), 2_000_000, Seen()
        limit = Budget(micro_usd=budget)
        script = scenarios(text="word " * 8, usage=usage, pieces=4, chunk_delay=0.02)
        with start_model(tmp_path, script) as model:  # type: ignore[arg-type] # plain JSON
            async with yard(home, settings_for(model.url, PRICE)) as made:
                grants = [grant_for(run=run, run_budget=limit) for _ in range(4)]
                handed = [await made.let_in(grant) for grant in grants]
                watching = asyncio.create_task(watch(made, model, run, limit, seen))
                async with asyncio.TaskGroup() as group:
                    for number, one in enumerate(handed):
                        group.create_task(ask(number, one.url("anthropic")))
                await until(lambda: (made.supervisor.status(run) or None) is not None)
                status = made.supervisor.status(run)
                for grant in grants:
                    await made.supervisor.revoke(grant.workspace)
                watching.cancel()
                theirs, (settled, _) = billed(model), booked(made, run)
        assert seen.wrong == []
        assert min(answers) >= 1
        assert theirs == settled
        assert settled[1] >= 0.85 * budget
        assert status is not None
        assert any(one.is_exhausted for one in status.grants)

    asyncio.run(go())
