"""What was spent, as the wire tells it: null where nothing is known, grouped as asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forkyard.gateway.interface import GrantStatus, Outcome
from forkyard.model.budget import Budget, TokenCounts, UsageRow
from forkyard.model.ids import AttemptId, RunId, SnapshotId, WorkspaceId
from forkyard.model.run import (
    AgentSpec,
    Attempt,
    AttemptState,
    Run,
    RunLimits,
    RunState,
    Task,
    TaskProgress,
)
from forkyard.server.spending import GROUPINGS, live_view, usage_report
from forkyard.server.views import run_view
from forkyard.store.projections import State, fold

RUN = RunId("run_000000")
ATTEMPT = AttemptId("att_000000")
ROW = UsageRow(
    id="use_1",
    run=RUN,
    attempt=ATTEMPT,
    agent="a",
    provider="anthropic",
    model="m",
    day="2026-01-01",
    tokens=TokenCounts(input=1, cache_read=2, cache_write=3, output=4, reasoning=1),
    micro_usd=1_000_001,
    requests=2,
    first_byte_milliseconds=30,
    price_version="p",
)


def state(agent: AgentSpec, *rows: UsageRow) -> State:
    """Make a state with one run of one attempt."""
    task = Task(name="t", prompt="", snapshot=SnapshotId("snap_000000"), agents=(agent,))
    run = Run(
        id=RUN,
        name="r",
        tasks=(task,),
        progress=(TaskProgress(),),
        limits=RunLimits(),
        state=RunState.RUNNING,
        created_at="",
    )
    attempt = Attempt(
        id=ATTEMPT,
        run=RUN,
        task=0,
        agent=agent.name,
        number=1,
        epoch=1,
        state=AttemptState.RUNNING,
        created_at="",
    )
    return fold([run, attempt, *rows])


METERED = AgentSpec(name="a", driver="command", command="x", model="m")


def test_usage_is_null_when_nothing_is_metered() -> None:
    """Not measured is not zero; measured and nothing spent is."""
    plain = run_view(state(AgentSpec(name="a", driver="command", command="x")).runs[RUN],
                     state(AgentSpec(name="a", driver="command", command="x")))  # fmt: skip
    metered = state(METERED)
    begun = run_view(metered.runs[RUN], metered)

    assert plain.usage.input_tokens is None
    assert plain.tasks[0].attempts[0].usage.cost_usd is None
    assert begun.usage.input_tokens == 0
    assert begun.usage.cost_usd == 0


def test_cost_is_null_when_a_model_has_no_price() -> None:
    """A sum that leaves something out is no sum."""
    known = state(METERED, ROW, replace(ROW, id="use_2", model="n"))
    unknown = state(METERED, ROW, replace(ROW, id="use_2", model="n", unpriced_requests=1))

    assert run_view(known.runs[RUN], known).usage.cost_usd == pytest.approx(2.000002, abs=1e-9)
    assert run_view(unknown.runs[RUN], unknown).usage.cost_usd is None
    assert run_view(unknown.runs[RUN], unknown).usage.input_tokens == 2


@pytest.mark.parametrize("by", GROUPINGS)
def test_every_grouping_has_the_same_total(by: str) -> None:
    """However it is cut."""
    rows = (ROW, replace(ROW, id="use_2", model="n", day="2026-01-02"))
    report = usage_report(rows, by, state(METERED, *rows))

    assert sum(line.output_tokens or 0 for line in report.lines) == report.total.output_tokens == 8
    assert len(report.lines) == (2 if by in {"model", "day"} else 1)
    assert report.lines[0].first_byte_milliseconds == 15
    assert report.price_versions == ["p"]


def test_live_view_says_who_waits_and_why_something_was_refused() -> None:
    """What the gateway last said, in dollars."""
    status = GrantStatus(
        workspace=WorkspaceId("ws_000000"),
        run=RUN,
        attempt=ATTEMPT,
        spent_tokens=5,
        spent_micro_usd=1_500_000,
        reserved_tokens=6,
        reserved_micro_usd=250_000,
        requests=3,
        in_flight=1,
        waiting=2,
        queue_position=4,
        refused=1,
        refusal="used up",
        last_fault=Outcome.PROVIDER_ERROR,
    )
    seen = live_view(status)

    assert (seen.spent_usd, seen.reserved_usd, seen.queue_position) == (1.5, 0.25, 4)
    assert (seen.waiting, seen.refused, seen.refusal, seen.fault) == (
        2, 1, "used up", "provider-error",
    )  # fmt: skip


def test_budget_is_told_with_the_run() -> None:
    """Null where there is none."""
    found = state(METERED)
    run = replace(found.runs[RUN], limits=RunLimits(budget=Budget(micro_usd=2_500_000)))

    assert run_view(found.runs[RUN], found).budget is None
    budget = run_view(run, found).budget
    assert budget is not None
    assert (budget.usd, budget.tokens) == (2.5, None)
