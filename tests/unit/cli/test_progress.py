"""What a followed run shows of its spending."""

from __future__ import annotations

import pytest

from forkyard.cli.progress import budget_of, spent, standing
from forkyard.wire.results import AttemptInfo, BudgetInfo, LiveInfo, RunInfo, UsageInfo

USED = UsageInfo(
    input_tokens=1000,
    cache_read_tokens=200,
    cache_write_tokens=30,
    output_tokens=4,
    cost_usd=0.5,
)


def attempt(usage: UsageInfo | None = None, live: LiveInfo | None = None) -> AttemptInfo:
    """Make an attempt as the server tells it."""
    return AttemptInfo(
        id="att_0", agent="a", number=1, state="running", usage=usage or UsageInfo(), live=live
    )


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (attempt(), ("-", "-")),
        (attempt(USED), ("1.2k", "0.50")),
        (attempt(USED, LiveInfo(spent_tokens=5_000_000, spent_usd=2)), ("5.0M", "2.00")),
        (attempt(USED.model_copy(update={"cost_usd": None})), ("1.2k", "-")),
    ],
)
def test_spending_is_the_newest_that_is_known(one: AttemptInfo, shown: tuple[str, str]) -> None:
    """The gateway knows before the journal does; no price is no zero."""
    assert spent(one) == shown


@pytest.mark.parametrize(
    ("live", "shown"),
    [
        (None, ""),
        (LiveInfo(), ""),
        (LiveInfo(waiting=1), "1 request waits"),
        (LiveInfo(waiting=2, queue_position=3), "2 requests wait, number 3 in line"),
        (LiveInfo(waiting=1, refusal="used up"), "refused: used up"),
        (LiveInfo(fault="answered 529"), "answered 529"),
    ],
)
def test_standing_says_what_holds_an_attempt_up(live: LiveInfo | None, shown: str) -> None:
    """Refused before waiting, waiting before the last fault."""
    assert standing(attempt(live=live)) == shown


def test_budget_is_shown_with_what_is_spent_of_it() -> None:
    """In money and tokens, where either is limited."""
    run = RunInfo(id="run_0", name="r", state="running", created_at="", usage=USED)

    assert budget_of(run) == ""
    limited = run.model_copy(update={"budget": BudgetInfo(usd=20, tokens=5_000_000)})
    assert budget_of(limited) == "  spent 0.50 of 20.00 USD, 1.2k of 5.0M tokens"
