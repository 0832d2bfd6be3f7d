"""What a model's tokens cost, in whole micro-dollars, and the most that one request can cost.

Prices come from the settings, else from the price table that is installed with us; nothing is
fetched. A model that neither knows has no price: unknown is never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from functools import cache

from forkyard.gateway.interface import Api, Price
from forkyard.model.budget import TokenCounts

MILLION = 1_000_000
MOST_MODEL_NAME = 200
"""Longer names come from nobody but an attacker, and no table holds one."""

_TABLES = {Api.ANTHROPIC: "anthropic", Api.OPENAI: "openai", Api.GEMINI: "google"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A rate that holds for prompts of more than so many tokens."""

    above: int
    rate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Micro-dollars per million tokens, by the length of the whole prompt."""

    base: int
    tiers: tuple[Tier, ...] = ()
    """Ascending; the last one that the prompt is longer than holds for all of its tokens."""

    def at(self, prompt_tokens: int) -> int:
        """Give the rate for a prompt of this length."""
        found = self.base
        for tier in self.tiers:
            if prompt_tokens > tier.above:
                found = tier.rate
        return found

    def most(self, prompt_tokens: int) -> int:
        """Give the dearest rate of any prompt that is no longer than this."""
        reached = [tier.rate for tier in self.tiers if prompt_tokens > tier.above]
        return max([self.base, *reached])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """What one model costs, and which table says so."""

    version: str
    """`settings`, or the table's name and version."""
    input: Rate
    output: Rate
    cache_read: Rate
    cache_write: Rate
    cache_write_long: Rate
    """Of tokens that are kept for an hour instead of minutes."""


class PriceTable:
    """The prices in force: settings first, then the installed table."""

    def __init__(self, overrides: Iterable[Price] = ()) -> None:
        """Take the prices of the settings; a later one of the same model wins."""
        self._overrides = {price.model.lower(): _of_settings(price) for price in overrides}

    def price_of(
        self, model: str, api: Api, *, moment: datetime | None = None
    ) -> ModelPrice | None:
        """Look a model up as it was asked for.

        Args:
            model: Its name in the request.
            api: Whose list to look in; a model sold by others under its name is not guessed at.
            moment: When the request is made; prices change. Now, if None.

        Returns:
            None: nobody knows what it costs.
        """
        if len(model) > MOST_MODEL_NAME:
            return None
        found = self._overrides.get(model.lower())
        return found or _of_table(model, api, moment or datetime.now(tz=UTC))


def cost_micro_usd(price: ModelPrice | None, tokens: TokenCounts) -> int | None:
    """Price one request, rounded up to a whole micro-dollar; None where the price is unknown."""
    if price is None:
        return None
    prompt = tokens.input + tokens.cache_read + tokens.cache_write
    long = min(tokens.cache_write_long, tokens.cache_write)
    total = (
        tokens.input * price.input.at(prompt)
        + tokens.cache_read * price.cache_read.at(prompt)
        + (tokens.cache_write - long) * price.cache_write.at(prompt)
        + long * price.cache_write_long.at(prompt)
        + tokens.output * price.output.at(prompt)
    )
    return -(-total // MILLION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most that a request can cost beside what it writes, and the most per token written."""

    input_total: int
    """Millionths of a micro-dollar."""
    output_rate: int
    """Micro-dollars per million tokens."""

    def micro_usd(self, output_tokens: int) -> int:
        """Give the most that the request costs when it may write so many tokens."""
        return -(-(self.input_total + output_tokens * self.output_rate) // MILLION)

    def affordable(self, micro_usd: int, asked: int) -> int:
        """Give how many tokens it may write, at most `asked`; negative: not even its input."""
        left = micro_usd * MILLION - self.input_total
        if left < 0:
            return -1
        return asked if self.output_rate == 0 else min(asked, left // self.output_rate)


def bound_of(price: ModelPrice, input_tokens: int, *, has_long_cache: bool = True) -> Bound:
    """Bound what a request can cost: each input token at the dearest rate it could be billed at.

    Args:
        price: Of its model.
        input_tokens: At least as many as the provider can count.
        has_long_cache: False only when the body cannot ask for a cache of an hour.
    """
    rates = [price.input, price.cache_read, price.cache_write]
    if has_long_cache:
        rates.append(price.cache_write_long)
    return Bound(
        input_total=input_tokens * max(rate.most(input_tokens) for rate in rates),
        output_rate=price.output.most(input_tokens),
    )


def _of_settings(price: Price) -> ModelPrice:
    return ModelPrice(
        version="settings",
        input=Rate(base=price.input),
        output=Rate(base=price.output),
        cache_read=Rate(base=price.cache_read),
        cache_write=Rate(base=price.cache_write),
        cache_write_long=Rate(base=price.cache_write),
    )


def _of_table(model: str, api: Api, moment: datetime) -> ModelPrice | None:
    from genai_prices import __version__, data_snapshot  # noqa: PLC0415 - slow, gateway only

    table = data_snapshot.get_snapshot()
    provider = table.find_provider(None, _TABLES[api], None)
    # not the table's own lookup: it keeps every name it was ever asked for
    found = provider.find_model(model, all_providers=table.providers)
    if found is None:
        return None
    prices = found.get_prices(moment)
    rates = {
        name: _rate(getattr(prices, f"{name}_mtok"))
        for name in ("input", "output", "cache_read", "cache_write", "cache_write_1h")
    }
    if rates["input"] is None or rates["output"] is None:
        return None
    write = rates["cache_write"] or rates["input"]
    return ModelPrice(
        version=f"genai-prices {__version__}",
        input=rates["input"],
        output=rates["output"],
        cache_read=rates["cache_read"] or rates["input"],
        cache_write=write,
        cache_write_long=rates["cache_write_1h"] or write,
    )


def _rate(value: object) -> Rate | None:
    from genai_prices.types import TieredPrices  # noqa: PLC0415 - slow, gateway only

    if isinstance(value, TieredPrices):
        return Rate(
            base=_micro(value.base),
            tiers=tuple(Tier(above=tier.start, rate=_micro(tier.price)) for tier in value.tiers),
        )
    return _rate_of(value) if isinstance(value, Decimal) else None


@cache
def _rate_of(value: Decimal) -> Rate:
    return Rate(base=_micro(value))


def _micro(dollars: Decimal) -> int:
    return int((dollars * MILLION).to_integral_value(rounding=ROUND_CEILING))
