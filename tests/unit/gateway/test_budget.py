"""Admit, wait, clamp or refuse: the pure decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.gateway.budget import (
    COMFORTABLE_TOKENS,
    FLOOR_TOKENS,
    Admit,
    Ask,
    Balance,
    Level,
    Refuse,
    Wait,
    decide,
    dollars,
    spent_for,
)
from forkyard.gateway.prices import Bound
from forkyard.model.budget import Budget

HUGE = Ask(input_tokens=1_000, output_tokens=128_000)
BOUND = Bound(input_total=5_000_000_000, output_rate=20_000_000)
"""5,000 micro-dollars of input, 20 for each token written."""


def tokens(limit: int, *, spent: int = 0, reserved: int = 0, in_flight: int = 0) -> Balance:
    """Make a balance with a limit in tokens."""
    return Balance(
        budget=Budget(tokens=limit),
        spent_tokens=spent,
        reserved_tokens=reserved,
        in_flight=in_flight,
    )


def test_all_is_admitted_when_nothing_is_limited() -> None:
    """Without a budget nothing is clamped."""
    assert decide(HUGE, Balance(), Balance()) == Admit(
        output_tokens=128_000, tokens=129_000, micro_usd=None
    )


def test_request_takes_a_share_when_others_share_the_run() -> None:
    """A reservation is at most the attempt's share, so that one cut stream cannot end all."""
    assert decide(HUGE, Balance(), tokens(200_000), sharers=4) == Admit(
        output_tokens=49_000, tokens=50_000, micro_usd=None
    )


def test_request_takes_more_than_its_share_when_that_would_not_be_comfortable() -> None:
    """Enough for any ordinary answer comes before equal shares."""
    decided = decide(HUGE, Balance(), tokens(40_000), sharers=4)

    assert decided == Admit(
        output_tokens=COMFORTABLE_TOKENS, tokens=1_000 + COMFORTABLE_TOKENS, micro_usd=None
    )


def test_request_waits_when_others_in_flight_may_give_back() -> None:
    """What does not fit comfortably waits for what is reserved."""
    run = tokens(40_000, reserved=30_000, in_flight=1)

    assert decide(HUGE, Balance(), run) == Wait(level=Level.RUN)


def test_request_is_clamped_when_nothing_is_in_flight() -> None:
    """The rest of the budget is worth an answer as long as the floor fits."""
    assert decide(HUGE, Balance(), tokens(40_000, spent=35_000)) == Admit(
        output_tokens=4_000, tokens=5_000, micro_usd=None
    )


def test_request_is_refused_when_not_even_the_floor_fits_and_nothing_is_in_flight() -> None:
    """The refusal says what is left and what would be needed."""
    decided = decide(HUGE, Balance(), tokens(40_000, spent=38_000))

    assert isinstance(decided, Refuse)
    assert decided.level is Level.RUN
    assert "2000 of 40000 tokens are left" in decided.reason


def test_request_is_not_clamped_below_its_thinking_budget() -> None:
    """A limit below the thinking budget would be an error at the provider."""
    ask = Ask(input_tokens=0, output_tokens=64_000, thinking_tokens=10_000)

    assert isinstance(decide(ask, Balance(), tokens(10_000 + FLOOR_TOKENS - 1)), Refuse)
    assert isinstance(decide(ask, Balance(), tokens(10_000 + FLOOR_TOKENS)), Admit)


def test_small_request_needs_no_floor_when_it_asks_for_less() -> None:
    """Who asks for 10 tokens gets 10."""
    decided = decide(Ask(input_tokens=0, output_tokens=10), Balance(), tokens(10))

    assert decided == Admit(output_tokens=10, tokens=10, micro_usd=None)


def test_attempt_is_refused_when_its_own_budget_is_gone_though_siblings_are_in_flight() -> None:
    """Nothing that siblings give back helps an attempt whose own budget is used up."""
    run = tokens(1_000_000, reserved=900_000, in_flight=3)
    decided = decide(HUGE, tokens(10_000, spent=9_000), run)

    assert isinstance(decided, Refuse)
    assert decided.level is Level.ATTEMPT


def test_attempt_waits_for_itself_when_its_own_requests_hold_its_budget() -> None:
    """The level it waits for is its own, so siblings may pass it."""
    attempt = tokens(40_000, reserved=35_000, in_flight=1)
    run = tokens(1_000_000, reserved=35_000, in_flight=1)

    assert decide(HUGE, attempt, run) == Wait(level=Level.ATTEMPT)


def test_money_is_clamped_to_what_it_buys() -> None:
    """The output that is admitted costs no more than what is left."""
    ask = Ask(input_tokens=1_000, output_tokens=128_000, bound=BOUND)
    decided = decide(ask, Balance(), Balance(budget=Budget(micro_usd=105_000)))

    assert decided == Admit(output_tokens=5_000, tokens=6_000, micro_usd=105_000)


def test_unpriced_request_is_refused_at_once_when_the_budget_is_in_money() -> None:
    """Waiting would not make its price known."""
    run = Balance(budget=Budget(micro_usd=10**9), reserved_micro_usd=5, in_flight=1)
    decided = decide(HUGE, Balance(), run)

    assert isinstance(decided, Refuse)
    assert "no known price" in decided.reason


def test_amounts_are_written_exactly() -> None:
    """Every micro-dollar is told."""
    assert dollars(1_234_567) == "1.234567 USD"


balances = st.builds(
    lambda limits, spent, reserved: Balance(
        budget=Budget(
            tokens=None if limits[0] is None else limits[0] + spent[0] + sum(reserved),
            micro_usd=None if limits[1] is None else limits[1] + spent[1] + 20 * sum(reserved),
        ),
        spent_tokens=spent[0],
        spent_micro_usd=spent[1],
        reserved_tokens=sum(reserved),
        reserved_micro_usd=20 * sum(reserved),
        in_flight=len(reserved),
    ),
    st.tuples(
        st.none() | st.integers(0, 200_000),
        st.none() | st.integers(0, 4_000_000),
    ),
    st.tuples(st.integers(0, 100_000), st.integers(0, 2_000_000)),
    st.lists(st.integers(0, 50_000), max_size=4),
)
asks = st.builds(
    lambda size, output, thinking: Ask(
        input_tokens=size,
        output_tokens=output,
        thinking_tokens=thinking,
        bound=Bound(input_total=size * 5_000_000, output_rate=20_000_000),
    ),
    st.integers(0, 50_000),
    st.integers(1, 128_000),
    st.integers(0, 32_000),
)


@given(ask=asks, attempt=balances, run=balances, sharers=st.integers(0, 70))
def test_decision_never_passes_a_limit_and_never_waits_for_nothing(
    ask: Ask, attempt: Balance, run: Balance, sharers: int
) -> None:
    """What is admitted fits both levels and the floor; who waits has somebody to wait for."""
    match decide(ask, attempt, run, sharers=sharers):
        case Admit(output_tokens=output, tokens=reserved, micro_usd=cost):
            assert ask.floor <= output <= ask.output_tokens
            assert cost is not None
            for balance in (attempt, run):
                after = balance.reserve(reserved, cost)
                limit = balance.budget
                assert limit.tokens is None or (
                    after.spent_tokens + after.reserved_tokens <= limit.tokens
                )
                assert limit.micro_usd is None or (
                    after.spent_micro_usd + after.reserved_micro_usd <= limit.micro_usd
                )
        case Wait(level=level):
            assert (attempt if level is Level.ATTEMPT else run).in_flight > 0
        case Refuse(level=level):
            assert (attempt if level is Level.ATTEMPT else run).in_flight == 0


@pytest.mark.parametrize(
    ("run", "is_first", "is_of_one_agent"),
    [
        (tokens(100_000, spent=50_000), False, None),
        (tokens(100_000, spent=50_000), True, True),
        (tokens(100_000, spent=90_000), False, True),
        (tokens(100_000, spent=99_000), False, False),
        (Balance(budget=Budget(micro_usd=1_000_000)), False, None),
        # 16,384 tokens cost 327,680
        (Balance(budget=Budget(micro_usd=1_000_000), spent_micro_usd=700_000), False, True),
        (Balance(budget=Budget(micro_usd=1_000_000), spent_micro_usd=995_000), False, False),
    ],
)
def test_run_is_spent_when_a_further_attempt_is_not_worth_its_beginning(
    run: Balance, *, is_first: bool, is_of_one_agent: bool | None
) -> None:
    """For everybody where nothing can be had, else for the agent that was refused."""
    ask = Ask(input_tokens=1_000, output_tokens=128_000, bound=BOUND)
    found = spent_for(ask, run, is_first=is_first)

    assert (None if found is None else found.is_of_one_agent) is is_of_one_agent


def test_run_is_not_spent_when_only_the_model_has_no_price() -> None:
    """That is told before a run begins; nothing is known of what is left."""
    run = Balance(budget=Budget(micro_usd=1))

    assert spent_for(HUGE, run, is_first=True) is None
