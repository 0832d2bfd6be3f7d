"""What was spent, from the journal's rows: per attempt and run, and in any other grouping. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from forkyard.coordinator.access import is_let_in
from forkyard.gateway.interface import GrantStatus
from forkyard.model.budget import Budget, TokenCounts, UsageRow
from forkyard.model.run import Attempt, AttemptState, Run
from forkyard.store.projections import State
from forkyard.wire.results import BudgetInfo, LiveInfo, UsageInfo, UsageLine, UsageReport

MICRO = 1_000_000
GROUPINGS: dict[str, Callable[[UsageRow], str]] = {
    "run": lambda row: row.run,
    "attempt": lambda row: row.attempt,
    "agent": lambda row: row.agent,
    "model": lambda row: f"{row.provider}/{row.model}",
    "day": lambda row: row.day,
}


def usd(micro_usd: int) -> float:
    """Give dollars as JSON has them; exact to the micro-dollar up to a billion."""
    return micro_usd / MICRO


def total_of(rows: Iterable[UsageRow]) -> UsageRow | None:
    """Add rows up; None where there are none."""
    total: UsageRow | None = None
    for row in rows:
        if total is None:
            total = row
            continue
        total = replace(
            total,
            tokens=total.tokens + row.tokens,
            micro_usd=total.micro_usd + row.micro_usd,
            requests=total.requests + row.requests,
            unpriced_requests=total.unpriced_requests + row.unpriced_requests,
            estimated_requests=total.estimated_requests + row.estimated_requests,
            first_byte_milliseconds=total.first_byte_milliseconds + row.first_byte_milliseconds,
        )
    return total


def spent_by(rows: Iterable[UsageRow]) -> UsageInfo:
    """Tell what metered attempts spent; no row is nothing spent."""
    total = total_of(rows)
    tokens = TokenCounts() if total is None else total.tokens
    is_priced = total is None or total.unpriced_requests == 0
    return UsageInfo(
        input_tokens=tokens.input,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
        output_tokens=tokens.output,
        reasoning_tokens=tokens.reasoning,
        cost_usd=usd(0 if total is None else total.micro_usd) if is_priced else None,
        requests=0 if total is None else total.requests,
        estimated_requests=0 if total is None else total.estimated_requests,
    )


def usage_of_attempt(attempt: Attempt, run: Run, state: State) -> UsageInfo:
    """Tell what an attempt spent; nulls where nothing of it is metered, or it never began."""
    rows = state.usage_of(attempt.id)
    agent = next((one for one in run.tasks[attempt.task].agents if one.name == attempt.agent), None)
    is_metered = agent is not None and is_let_in(agent, run.limits)
    if not rows and (not is_metered or attempt.state is AttemptState.QUEUED):
        return UsageInfo()
    return spent_by(rows)


def usage_of_run(run: Run, state: State) -> UsageInfo:
    """Tell what all attempts of a run spent; nulls where nothing of it is metered."""
    rows = [row for one in state.attempts_of(run.id) for row in state.usage_of(one.id)]
    is_metered = any(is_let_in(agent, run.limits) for task in run.tasks for agent in task.agents)
    return spent_by(rows) if rows or is_metered else UsageInfo()


def budget_view(budget: Budget) -> BudgetInfo | None:
    """Tell a run's budget."""
    if budget.is_unlimited:
        return None
    return BudgetInfo(
        tokens=budget.tokens, usd=None if budget.micro_usd is None else usd(budget.micro_usd)
    )


def live_view(grant: GrantStatus) -> LiveInfo:
    """Tell what an attempt does at the gateway now."""
    fault = None
    if grant.last_fault is not None:
        fault = grant.last_fault_detail or grant.last_fault.value
    return LiveInfo(
        spent_tokens=grant.spent_tokens,
        spent_usd=usd(grant.spent_micro_usd),
        reserved_usd=usd(grant.reserved_micro_usd),
        in_flight=grant.in_flight,
        waiting=grant.waiting,
        queue_position=grant.queue_position,
        refused=grant.refused,
        refusal=grant.refusal,
        fault=fault,
    )


def usage_report(rows: Sequence[UsageRow], by: str, state: State) -> UsageReport:
    """Group what was spent.

    Args:
        rows: Those that are asked for.
        by: One of `GROUPINGS`.
        state: For names.
    """
    groups: dict[str, list[UsageRow]] = defaultdict(list)
    for row in rows:
        groups[GROUPINGS[by](row)].append(row)
    lines = [
        UsageLine(
            key=key,
            name=_name_of(by, group[0], state),
            first_byte_milliseconds=_first_byte(group),
            **spent_by(group).model_dump(),
        )
        for key, group in groups.items()
    ]
    if by in {"agent", "model", "day"}:
        lines.sort(key=lambda line: line.key)
    return UsageReport(
        by=by,
        lines=lines,
        total=spent_by(rows),
        price_versions=sorted({row.price_version for row in rows if row.price_version}),
    )


def _first_byte(rows: Sequence[UsageRow]) -> int | None:
    total = total_of(rows)
    if total is None or not total.requests:
        return None
    return round(total.first_byte_milliseconds / total.requests)


def _name_of(by: str, row: UsageRow, state: State) -> str:
    run, attempt = state.runs.get(row.run), state.attempts.get(row.attempt)
    match by:
        case "run":
            return row.agent if run is None else run.name
        case "attempt":
            return row.agent if attempt is None else f"{row.agent}#{attempt.number}"
        case _:
            return ""
