"""Grants, prices and asks for tests of the gateway's accounts."""

from __future__ import annotations

from forkyard.gateway.budget import Ask
from forkyard.gateway.interface import Api, Price
from forkyard.gateway.prices import PriceTable, bound_of
from forkyard.model.budget import Budget, Grant
from forkyard.model.ids import AttemptId, RunId, WorkspaceId

RUN = RunId("run_0000000000aa")
MODEL = "mine"
TABLE = PriceTable(
    [
        Price(
            model=MODEL,
            input=4_000_000,
            output=20_000_000,
            cache_read=200_000,
            cache_write=5_000_000,
        )
    ]
)
PRICE = TABLE.price_of(MODEL, Api.ANTHROPIC)
assert PRICE is not None
MICRO_PER_INPUT = 5
"""At most: as if all of it were written to a cache."""
MICRO_PER_OUTPUT = 20


def grant_of(
    number: int,
    *,
    run: Budget = Budget(),
    attempt: Budget = Budget(),
    most_requests: int | None = None,
    most_concurrent: int = 8,
) -> Grant:
    """Make the grant of the n-th attempt of one run."""
    return Grant(
        workspace=WorkspaceId(f"ws_{number:012x}"),
        run=RUN,
        attempt=AttemptId(f"att_{number:032x}"),
        agent="mine",
        run_budget=run,
        attempt_budget=attempt,
        most_requests=most_requests,
        most_concurrent=most_concurrent,
    )


def ask_for(input_tokens: int, output_tokens: int, thinking_tokens: int = 0) -> Ask:
    """Make a priced ask."""
    assert PRICE is not None
    return Ask(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        thinking_tokens=thinking_tokens,
        bound=bound_of(PRICE, input_tokens),
    )
