"""Copying the ledger: once each, in order, whatever dies or is replaced on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.gateway import FakeGateway
from forkyard.base.clock import SystemClock
from forkyard.coordinator.usage import ENTRIES_AT_ONCE, UsageCopier, booked
from forkyard.gateway.interface import Outcome
from forkyard.model.budget import Grant, TokenCounts, UsageRow
from forkyard.model.ids import new_attempt_id, new_run_id, new_workspace_id
from forkyard.model.run import Attempt, AttemptState
from forkyard.store.journal import Journal

pytestmark = pytest.mark.anyio


def grant() -> Grant:
    """Make a grant."""
    return Grant(
        workspace=new_workspace_id(), run=new_run_id(), attempt=new_attempt_id(), agent="a"
    )


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    """Open a journal."""
    opened = Journal.open(tmp_path / "state.db", SystemClock(), allow_volatile=True)
    yield opened
    opened.close()


def total(rows: dict[str, UsageRow]) -> tuple[int, int, int]:
    """Add requests, tokens and money up."""
    return (
        sum(row.requests for row in rows.values()),
        sum(row.tokens.total for row in rows.values()),
        sum(row.micro_usd for row in rows.values()),
    )


async def test_entry_is_copied_once_when_asked_again(journal: Journal) -> None:
    """Also by another copier, which knows nothing but the journal."""
    gateway, one = FakeGateway(), grant()
    for _ in range(3):
        gateway.settle(one)
    for _ in range(2):
        await UsageCopier(journal=journal, gateway=gateway).copy()
    gateway.settle(one)
    await UsageCopier(journal=journal, gateway=gateway).copy()

    assert total(journal.state.usage) == (4, 4 * 15, 4 * 1000)
    assert journal.state.usage_of(one.attempt) == tuple(journal.state.usage.values())


async def test_everything_is_copied_when_there_is_more_than_one_batch(journal: Journal) -> None:
    """Batch after batch."""
    gateway, one = FakeGateway(), grant()
    for _ in range(ENTRIES_AT_ONCE + 7):
        gateway.settle(one)
    await UsageCopier(journal=journal, gateway=gateway).copy()

    assert total(journal.state.usage)[0] == ENTRIES_AT_ONCE + 7


async def test_new_ledger_is_copied_from_its_start_when_the_old_one_is_lost(
    journal: Journal,
) -> None:
    """Its numbers begin anew; what was copied of the old one stays."""
    gateway, one = FakeGateway(), grant()
    for _ in range(3):
        gateway.settle(one)
    copier = UsageCopier(journal=journal, gateway=gateway)
    await copier.copy()
    gateway.ledger = "led_2"
    newest = [gateway.settle(one)]
    await copier.copy(known=newest)
    await copier.copy()
    await UsageCopier(journal=journal, gateway=gateway).copy()

    assert total(journal.state.usage)[0] == 4


async def test_rows_are_told_apart_when_model_or_day_differ(journal: Journal) -> None:
    """Attributable by run, attempt, agent, model and day."""
    gateway, one, other = FakeGateway(), grant(), grant()
    gateway.settle(one)
    gateway.settle(one, model="model-2")
    gateway.settle(one, at="2026-01-03T00:00:00.000+00:00")
    gateway.settle(other)
    await UsageCopier(journal=journal, gateway=gateway).copy()

    keys = {(row.attempt, row.model, row.day) for row in journal.state.usage.values()}
    assert len(keys) == len(journal.state.usage) == 4


async def test_refusal_is_no_request_and_no_price_is_no_zero(journal: Journal) -> None:
    """What was never sent spent nothing; what has no price is counted as such."""
    gateway, one = FakeGateway(), grant()
    gateway.settle(one, Outcome.REFUSED_BUDGET, status=402)
    gateway.settle(one, micro_usd=None)
    await UsageCopier(journal=journal, gateway=gateway).copy()
    (row,) = journal.state.usage.values()

    assert (row.requests, row.unpriced_requests, row.micro_usd) == (1, 1, 0)


@given(st.lists(st.integers(min_value=0, max_value=9), max_size=30), st.integers(0, 30))
async def test_sum_is_the_same_however_the_ledger_is_cut(inputs: list[int], cut: int) -> None:
    """Two batches give what one gives."""
    gateway, one = FakeGateway(), grant()
    for index, count in enumerate(inputs):
        gateway.settle(one, tokens=TokenCounts(input=count), model=f"m{index % 3}")
    whole = booked({}, gateway.entries)
    first = booked({}, gateway.entries[:cut])
    second = {**first, **booked(first, gateway.entries[cut:])}

    assert {key: replace(row, ledger_sequence=0) for key, row in second.items()} == {
        key: replace(row, ledger_sequence=0) for key, row in whole.items()
    }


async def test_entries_go_when_they_were_copied_long_ago(journal: Journal) -> None:
    """What is younger stays, and so does the copy; asking again counts nothing twice."""
    gateway, one = FakeGateway(), grant()
    copier = UsageCopier(journal=journal, gateway=gateway)
    gateway.settle(one)
    gateway.settle(one, at="2026-02-01T00:00:00.000+00:00")
    now = "2026-02-02T03:04:06.000+00:00"

    assert await copier.prune("2026-01-05T00:00:00.000+00:00") == 0
    await copier.copy()
    assert await copier.prune(now, is_dry=True) == 1
    assert await copier.prune(now) == 1
    assert await copier.prune(now) == 0
    assert [entry.sequence for entry in gateway.entries] == [2]
    gateway.settle(one)
    await UsageCopier(journal=journal, gateway=gateway).copy()
    assert total(journal.state.usage) == (3, 3 * 15, 3 * 1000)


async def test_entries_stay_when_their_attempt_is_not_over(journal: Journal) -> None:
    """However old they are: its end is told by them."""
    gateway, one = FakeGateway(), grant()
    copier = UsageCopier(journal=journal, gateway=gateway)
    attempt = Attempt(
        id=one.attempt, run=one.run, task=0, agent="a", number=1, epoch=1,
        state=AttemptState.RUNNING, created_at="2026", workspace=one.workspace,
    )  # fmt: skip
    await journal.append(attempt, "runs")
    gateway.settle(one)
    await copier.copy()
    now = "2027-01-01T00:00:00.000+00:00"

    assert await copier.prune(now) == 0
    over = replace(attempt, state=AttemptState.FINISHED, cleanup="done")
    await journal.append(over, "is over", expect=attempt)
    assert await copier.prune(now) == 1
