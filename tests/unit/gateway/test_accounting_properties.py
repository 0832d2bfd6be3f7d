"""Any order of asking, settling, going away and crashing: no overshoot, no leak, no dead end."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.ledger_scene import MODEL, PRICE, RUN, ask_for, grant_of
from forkyard.gateway.admission import Admission
from forkyard.gateway.interface import Outcome
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.line import Reservation
from forkyard.gateway.prices import cost_micro_usd
from forkyard.gateway.serving import RefusedError
from forkyard.model.budget import Budget, TokenCounts

ATTEMPTS = 3
RUN_BUDGET = Budget(tokens=60_000, micro_usd=700_000)
ATTEMPT_BUDGET = Budget(tokens=40_000, micro_usd=500_000)


@dataclass
class World:
    """One gateway after another on one file, and what the provider has counted."""

    path: Path
    ledger: Ledger
    admission: Admission
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    sent: list[tuple[Reservation, TokenCounts]] = field(default_factory=list)
    provided: list[TokenCounts] = field(default_factory=list)

    @classmethod
    async def begin(cls, path: Path) -> World:
        """Open the file and let everyone in."""
        ledger = await Ledger.open(path, allow_volatile=True)
        world = cls(path=path, ledger=ledger, admission=Admission(ledger))
        await world.let_in()
        return world

    async def let_in(self) -> None:
        """Grant all attempts."""
        for number in range(ATTEMPTS):
            await self.admission.grant(
                grant_of(number, run=RUN_BUDGET, attempt=ATTEMPT_BUDGET, most_concurrent=3)
            )

    def ask(self, which: int, size: int, share: float) -> None:
        """Let an attempt ask; once admitted the provider counts a share of the bound at once."""

        async def request() -> None:
            try:
                reservation = await self.admission.admit(
                    grant_of(which % ATTEMPTS).workspace,
                    ask_for(size, 128_000),
                    provider="anthropic",
                    model=MODEL,
                    price=PRICE,
                )
            except RefusedError:
                return
            used = TokenCounts(
                input=round(reservation.input_tokens * share),
                output=round(reservation.output_tokens * share),
            )
            self.provided.append(used)
            self.sent.append((reservation, used))

        self.tasks.add(asyncio.create_task(request()))

    async def settle(self, which: int, *, is_known: bool) -> None:
        """End one request that is under way."""
        if self.sent:
            reservation, used = self.sent.pop(which % len(self.sent))
            await self.admission.settle(
                reservation, outcome=Outcome.COMPLETE, tokens=used if is_known else None
            )

    async def leave(self, which: int) -> None:
        """Let one client go away, wherever it is."""
        open_tasks = [task for task in self.tasks if not task.done()]
        if open_tasks:
            open_tasks[which % len(open_tasks)].cancel()

    async def crash(self) -> None:
        """Lose everything that is not in the file."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        self.sent.clear()
        await self.ledger.close()
        self.ledger = await Ledger.open(self.path, allow_volatile=True)
        self.admission = Admission(self.ledger)
        await self.let_in()

    async def check(self) -> None:
        """The provider's count <= what is spent or held <= the budget, at both levels."""
        provided = list(self.provided)
        totals = await self.ledger.run_totals(RUN)
        held = totals.spent_tokens + totals.reserved_tokens
        held_money = totals.spent_micro_usd + totals.reserved_micro_usd
        assert sum(tokens.total for tokens in provided) <= held <= (RUN_BUDGET.tokens or 0)
        money = sum(cost_micro_usd(PRICE, tokens) or 0 for tokens in provided)
        assert money <= held_money <= (RUN_BUDGET.micro_usd or 0)
        for number in range(ATTEMPTS):
            one = await self.ledger.attempt_totals(grant_of(number).attempt)
            assert one.spent_tokens + one.reserved_tokens <= (ATTEMPT_BUDGET.tokens or 0)
            assert one.spent_micro_usd + one.reserved_micro_usd <= (ATTEMPT_BUDGET.micro_usd or 0)

    async def end(self) -> None:
        """Settle whatever is sent until nobody waits: each request ends, nothing stays held."""
        while any(not task.done() for task in self.tasks):
            await self.settle(0, is_known=True)
            await asyncio.sleep(0)
        while self.sent:
            await self.settle(0, is_known=True)
        await self.check()
        totals = await self.ledger.run_totals(RUN)
        assert (totals.reserved_tokens, totals.reserved_micro_usd) == (0, 0)
        status = self.admission.status(RUN)
        assert status is not None
        assert status.reserved_tokens == 0
        assert status.spent_tokens == totals.spent_tokens
        assert all(one.in_flight == one.waiting == 0 for one in status.grants)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.integers(0, 8_000), st.floats(0, 1)),
        st.tuples(st.just("ask"), st.integers(0, 5), st.integers(0, 500), st.floats(0, 0.1)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.just(0), st.floats(0, 1)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.just(0), st.just(0.0)),
        st.tuples(st.just("pause"), st.integers(1, 5), st.just(0), st.just(0.0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0), st.just(0.0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=steps)
def test_no_order_of_events_overshoots_leaks_or_hangs(
    script: list[tuple[str, int, int, float]],
) -> None:
    """The inequality holds after every step, and at the end everyone has had an answer."""

    async def play(path: Path) -> None:
        world = await World.begin(path)
        try:
            async with asyncio.timeout(60):
                for what, which, size, share in script:
                    match what:
                        case "ask":
                            world.ask(which, size, share)
                        case "settle":
                            await world.settle(which, is_known=share < 0.7)
                        case "leave":
                            await world.leave(which)
                        case "pause":
                            for _ in range(which):
                                await asyncio.sleep(0)
                        case _:
                            await world.crash()
                    await world.check()
                await world.end()
        finally:
            await world.ledger.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder) / "ledger.db"))
