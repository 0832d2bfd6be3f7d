"""What a request costs, and the most that it can cost."""

from __future__ import annotations

from datetime import UTC, datetime

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.gateway.interface import Api, Price
from forkyard.gateway.prices import (
    ModelPrice,
    PriceTable,
    Rate,
    Tier,
    bound_of,
    cost_micro_usd,
)
from forkyard.model.budget import TokenCounts

MOMENT = datetime(2026, 11, 30, tzinfo=UTC)
MINE = Price(model="mine", input=3, output=15, cache_read=1, cache_write=4)


def flat(rate: int) -> Rate:
    """Make a rate without tiers."""
    return Rate(base=rate)


def priced(**rates: Rate) -> ModelPrice:
    """Make a price; what is not named costs nothing."""
    names = ("input", "output", "cache_read", "cache_write", "cache_write_long")
    return ModelPrice(version="test", **{name: rates.get(name, flat(0)) for name in names})


def test_settings_win_when_both_know_a_model() -> None:
    """An override replaces the table's price, whatever the case of the name."""
    mine = Price(model="GPT-4o", input=1, output=2, cache_read=3, cache_write=4)
    price = PriceTable([mine]).price_of("gpt-4o", Api.OPENAI, moment=MOMENT)

    assert price is not None
    assert (price.version, price.input.base, price.output.base) == ("settings", 1, 2)
    assert price.cache_write_long == price.cache_write


def test_price_names_the_table_and_its_version_when_the_table_knows_it() -> None:
    """The version goes into each entry of the ledger."""
    price = PriceTable().price_of("gpt-4o", Api.OPENAI, moment=MOMENT)

    assert price is not None
    assert price.version == f"genai-prices {genai_prices.__version__}"
    assert price.input.base == 2_500_000
    assert price.output.base == 10_000_000


@pytest.mark.parametrize("model", ["no-such-model", "", "x" * 100_000, "claude-" + "\x00" * 500])
def test_price_is_unknown_when_nobody_knows_the_model(model: str) -> None:
    """Unknown is None, never a price of 0."""
    price = PriceTable().price_of(model, Api.ANTHROPIC, moment=MOMENT)

    assert price is None
    assert cost_micro_usd(price, TokenCounts(input=1_000_000)) is None


def test_price_is_unknown_when_another_provider_sells_the_model() -> None:
    """A model of one maker is not priced from another's list."""
    assert PriceTable().price_of("gpt-4o", Api.ANTHROPIC, moment=MOMENT) is None


@pytest.mark.parametrize(
    ("model", "api", "provider"),
    [
        ("claude-opus-5-5", Api.ANTHROPIC, "anthropic"),
        ("claude-sonnet-4-5", Api.ANTHROPIC, "anthropic"),
        ("gpt-5.5", Api.OPENAI, "openai"),
        ("gemini-2.5-pro", Api.GEMINI, "google"),
    ],
)
@pytest.mark.parametrize("scale", [1, 300])
def test_cost_equals_the_tables_own_arithmetic(
    model: str, api: Api, provider: str, scale: int
) -> None:
    """Beside rounding up, short and long prompts cost what the table itself says."""
    tokens = TokenCounts(
        input=1001 * scale, cache_read=777 * scale, cache_write=100 * scale, output=93 * scale
    )
    usage = genai_prices.Usage(
        input_tokens=tokens.input + tokens.cache_read + tokens.cache_write,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
        output_tokens=tokens.output,
    )
    theirs = genai_prices.calc_price(
        usage, model, provider_id=provider, genai_request_timestamp=MOMENT
    ).total_price
    ours = cost_micro_usd(PriceTable().price_of(model, api, moment=MOMENT), tokens)

    assert ours is not None
    assert 0 <= ours - theirs * 1_000_000 < 1


def test_cost_rounds_up_when_it_is_less_than_a_micro_dollar() -> None:
    """A request that used anything never costs nothing."""
    price = PriceTable([MINE]).price_of("mine", Api.OPENAI)

    assert cost_micro_usd(price, TokenCounts(input=1)) == 1
    assert cost_micro_usd(price, TokenCounts()) == 0


def test_cost_takes_the_long_rate_when_a_cache_is_kept_for_an_hour() -> None:
    """The part of the written cache that is kept long costs its own rate, the rest the other."""
    price = priced(cache_write=flat(5_000_000), cache_write_long=flat(8_000_000))

    assert cost_micro_usd(price, TokenCounts(cache_write=10, cache_write_long=4)) == 62


def test_tier_counts_the_whole_prompt_when_it_is_passed() -> None:
    """Cached tokens count to the length, and all tokens then cost the tier's rate."""
    tiered = Rate(base=1_000_000, tiers=(Tier(above=100, rate=2_000_000),))
    price = priced(input=tiered, output=tiered)

    assert cost_micro_usd(price, TokenCounts(input=50, cache_read=50, output=10)) == 60
    assert cost_micro_usd(price, TokenCounts(input=50, cache_read=51, output=10)) == 120


rates = st.builds(
    lambda base, tiers: Rate(
        base=base, tiers=tuple(Tier(above=above, rate=rate) for above, rate in sorted(tiers))
    ),
    st.integers(0, 10**8),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 10**8)), max_size=3),
)
prices = st.builds(
    ModelPrice,
    version=st.just("test"),
    input=rates,
    output=rates,
    cache_read=rates,
    cache_write=rates,
    cache_write_long=rates,
)


@given(
    price=prices,
    counts=st.lists(st.integers(0, 4_000), min_size=4, max_size=4),
    room=st.integers(0, 3_000),
)
def test_no_request_costs_more_than_its_bound(
    price: ModelPrice, counts: list[int], room: int
) -> None:
    """However the provider splits the input, the bound holds."""
    tokens = TokenCounts(
        input=counts[0],
        cache_read=counts[1],
        cache_write=counts[2],
        cache_write_long=counts[2] // 2,
        output=counts[3],
    )
    cost = cost_micro_usd(price, tokens)

    assert cost is not None
    assert cost <= bound_of(price, sum(counts[:3]) + room).micro_usd(counts[3])


@given(
    price=prices,
    input_tokens=st.integers(0, 10_000),
    money=st.integers(0, 10**7),
    asked=st.integers(0, 200_000),
)
def test_what_is_affordable_is_the_most_that_fits(
    price: ModelPrice, input_tokens: int, money: int, asked: int
) -> None:
    """It fits, and one token more would not."""
    bound = bound_of(price, input_tokens)
    output = bound.affordable(money, asked)

    if output < 0:
        assert bound.micro_usd(0) > money
    else:
        assert output <= asked
        assert bound.micro_usd(output) <= money
        assert output == asked or bound.micro_usd(output + 1) > money
