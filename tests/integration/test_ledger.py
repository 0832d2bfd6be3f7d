"""The ledger under SIGKILL: the provider's count <= ours <= the budget, whenever one looks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.ledger_scene import RUN
from forkyard.gateway.interface import LedgerEntry, Outcome
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.rows import Totals

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """How many ask how often, for how much, with what trouble."""

    folder: Path
    clients: int
    requests: int
    micro_usd: int = 0
    tokens: int = 0
    cut_percent: int = 0
    error_percent: int = 0
    journal: Path | None = None

    @property
    def ledger(self) -> Path:
        """Our ledger's file."""
        return self.folder / "ledger.db"

    @property
    def provider(self) -> Path:
        """The provider's own ledger."""
        return self.folder / "provider.txt"

    @contextlib.contextmanager
    def started(self, seed: int) -> Iterator[subprocess.Popen[bytes]]:
        """Start the process; it is dead at the end, however that comes."""
        numbers = (
            *(seed, self.clients, self.requests, self.micro_usd, self.tokens),
            *(self.cut_percent, self.error_percent),
        )
        child = subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "tests" / "fakes" / "ledger_client.py")),
                *(str(self.ledger), str(self.provider), *map(str, numbers)),
                *([] if self.journal is None else [str(self.journal)]),
            ],
            env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
        )
        with child:
            try:
                yield child
            finally:
                child.kill()

    def provided(self) -> tuple[int, int, set[str]]:
        """Sum the provider's ledger: tokens, micro-dollars, and who got an answer."""
        if not self.provider.exists():
            return 0, 0, set()
        # the last line may be half there: it is looked at while it is written
        whole = self.provider.read_text().rpartition("\n")[0]
        lines = [line.split() for line in whole.splitlines()]
        return (
            sum(int(line[1]) for line in lines),
            sum(int(line[2]) for line in lines),
            {line[0] for line in lines},
        )

    def entries(self) -> list[LedgerEntry]:
        """Open our ledger as the next gateway does, and read all of it."""

        async def read() -> list[LedgerEntry]:
            ledger = await Ledger.open(self.ledger)
            try:
                found: list[LedgerEntry] = []
                while page := await ledger.entries_after(len(found)):
                    found.extend(page)
                totals = await ledger.run_totals(RUN)
                assert totals.reserved_tokens == totals.reserved_micro_usd == 0
                assert totals.overrun_tokens == totals.overrun_micro_usd == 0
                assert totals.spent_tokens == sum(entry.tokens.total for entry in found)
                assert totals.spent_micro_usd == sum(entry.micro_usd or 0 for entry in found)
            finally:
                await ledger.close()
            return found

        return asyncio.run(read())

    def check(self) -> tuple[int, int]:
        """Hold the inequality over everything; no process may have the ledger.

        Returns:
            What is settled: tokens and micro-dollars.
        """
        provided_tokens, provided_money, _ = self.provided()
        entries = self.entries()
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        tokens = sum(entry.tokens.total for entry in entries)
        money = sum(entry.micro_usd or 0 for entry in entries)
        assert provided_tokens <= tokens
        assert provided_money <= money
        assert not self.tokens or tokens <= self.tokens
        assert not self.micro_usd or money <= self.micro_usd
        return tokens, money

    def look(self) -> None:
        """Hold the inequality from outside while the process runs: ours counts what is in flight.

        The provider's file is read first: what it holds by then was reserved before.
        """
        provided_tokens, provided_money, _ = self.provided()
        address = f"file:{self.ledger}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=10)) as connection:
            row = connection.execute(
                "SELECT spent_tokens, spent_tokens + reserved_tokens, spent_micro_usd,"
                " spent_micro_usd + reserved_micro_usd FROM balances WHERE level = 'run'"
            ).fetchone() or (0, 0, 0, 0)  # nobody is let in yet
        assert provided_tokens <= row[1]
        assert provided_money <= row[3]
        assert not self.tokens or row[1] <= self.tokens
        assert not self.micro_usd or row[3] <= self.micro_usd

    def wait_for_lines(self, count: int, child: subprocess.Popen[bytes]) -> None:
        """Wait until the provider has answered so often, looking all the while."""
        end = time.monotonic() + PATIENCE_SECONDS
        while child.poll() is None and time.monotonic() < end:
            if self.provider.exists():
                self.look()
                if self.provider.read_bytes().count(b"\n") >= count:
                    return
            time.sleep(0.01)

    def run_to_its_end(self, seed: int) -> None:
        """Let every client finish, looking all the while."""
        with self.started(seed) as child:
            self.wait_for_lines(sys.maxsize, child)
            assert child.wait() == 0
            assert child.stdout is not None
            assert len(child.stdout.read().splitlines()) == self.clients


def test_four_attempts_share_two_dollars(tmp_path: Path) -> None:
    """Each asks for 128,000 tokens a call; nobody is starved, nothing is passed, all is used."""
    scene = Scene(folder=tmp_path, clients=4, requests=1_000, micro_usd=2_000_000)
    scene.run_to_its_end(1)
    tokens, money = scene.check()

    assert (tokens, money) == scene.provided()[:2]
    assert money >= 0.85 * scene.micro_usd
    assert len(scene.provided()[2]) == scene.clients


@pytest.mark.parametrize("limit", ["micro_usd", "tokens"])
def test_many_clients_with_cuts_errors_and_two_kills(tmp_path: Path, limit: str) -> None:
    """64 clients x 200 requests, 20 % cut, 5 % refused by the provider, two SIGKILLs."""
    budget = {"micro_usd": 2_000_000_000, "tokens": 100_000_000}[limit]
    scene = Scene(
        folder=tmp_path,
        clients=64,
        requests=200,
        cut_percent=20,
        error_percent=5,
        micro_usd=budget if limit == "micro_usd" else 0,
        tokens=budget if limit == "tokens" else 0,
    )
    answers = 0
    for seed in (1, 2):
        with scene.started(seed) as child:
            scene.wait_for_lines(answers + 400, child)
            child.send_signal(signal.SIGKILL)
            child.wait()
        scene.check()
        answers = scene.provider.read_bytes().count(b"\n")
    scene.run_to_its_end(3)
    tokens, money = scene.check()

    assert (money if limit == "micro_usd" else tokens) >= 0.85 * budget


@pytest.mark.parametrize("rounds", [8, pytest.param(60, marks=pytest.mark.deep)])
def test_killed_at_any_moment_nothing_is_lost_or_passed(tmp_path: Path, rounds: int) -> None:
    """After each of many SIGKILLs the inequality holds, and what was in flight is at its bound."""
    chance = random.Random(7)  # noqa: S311 - a test's dice
    scene = Scene(folder=tmp_path, clients=8, requests=100_000, micro_usd=10**9, error_percent=5)
    answers = 0
    for seed in range(rounds):
        with scene.started(seed) as child:
            scene.wait_for_lines(answers + chance.randrange(1, 40), child)
            child.kill()
            child.wait()
        scene.check()
        answers = scene.provider.read_bytes().count(b"\n")
    outcomes = {entry.outcome for entry in scene.entries()}

    assert Outcome.UNKNOWN in outcomes
    assert Outcome.COMPLETE in outcomes


@pytest.mark.parametrize("rounds", [6, pytest.param(40, marks=pytest.mark.deep)])
def test_killed_while_it_forgets_every_entry_is_copied_or_still_there(
    tmp_path: Path, rounds: int
) -> None:
    """Each exactly once, however often it is killed; and balances count those that went, too."""
    chance = random.Random(11)  # noqa: S311 - a test's dice
    journal = tmp_path / "journal.txt"
    scene = Scene(
        folder=tmp_path, clients=8, requests=100_000, micro_usd=10**9, cut_percent=20,
        journal=journal,
    )  # fmt: skip
    answers, went = 0, 0
    for seed in range(rounds):
        with scene.started(seed) as child:
            scene.wait_for_lines(answers + chance.randrange(20, 80), child)
            child.kill()
            child.wait()
        answers = scene.provider.read_bytes().count(b"\n")
        rows = [[int(word) for word in line.split()] for line in journal.read_text().splitlines()]
        left, totals = asyncio.run(_left(scene.ledger, rows[-1][0]))
        sequences = [row[0] for row in rows] + [entry.sequence for entry in left]
        assert sequences == list(range(1, len(sequences) + 1))
        spent = sum(row[2] for row in rows) + sum(entry.micro_usd or 0 for entry in left)
        assert totals.spent_micro_usd == spent
        assert scene.provided()[1] <= spent <= scene.micro_usd
        with contextlib.closing(sqlite3.connect(scene.ledger)) as connection:
            went = (
                rows[-1][0]
                - connection.execute(
                    "SELECT count(*) FROM entries WHERE sequence <= ?", (rows[-1][0],)
                ).fetchone()[0]
            )

    assert went > 0


async def _left(path: Path, after: int) -> tuple[list[LedgerEntry], Totals]:
    """Open a ledger as the next gateway does; give what is not copied yet, and the totals."""
    ledger = await Ledger.open(path)
    try:
        found: list[LedgerEntry] = []
        while page := await ledger.entries_after(found[-1].sequence if found else after):
            found.extend(page)
        return found, await ledger.run_totals(RUN)
    finally:
        await ledger.close()
