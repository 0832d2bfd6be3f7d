"""Whether a request may go to the provider now: pure arithmetic over two levels of budget.

Agents ask for far more output than they use, so a request that does not fit is no reason to end
an agent: it waits while others are in flight that may give something back, then it gets what is
left, and it is refused only when nothing that could come back would help.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from forkyard.gateway.prices import Bound
from forkyard.model.budget import Budget

FLOOR_TOKENS = 1_024
"""Output, beside thinking, below which a request is not worth its input's price."""
COMFORTABLE_TOKENS = 16_384
"""Output, beside thinking, that hardly any step of an agent passes: it does not wait for more."""

_LEAST_TOKENS = 5_120
"""No request at all is admitted with less: the bound of an empty one, and the least output."""
_LEAST_MICRO_USD = 10_000
"""No agent gets a first answer for less than a cent."""

_UNPRICED = "is in money and the model has no known price"


class Level(StrEnum):
    """Whose budget it is."""

    ATTEMPT = "attempt"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one request may cost, before anything is clamped."""

    input_tokens: int
    """At least as many as the provider can count."""
    output_tokens: int
    """The limit that the agent asked for, the provider's and the policy's limits applied."""
    thinking_tokens: int = 0
    """Its explicit thinking budget: a limit below this is an error at the provider."""
    bound: Bound | None = None
    """In money; None: the model has no known price."""

    @property
    def floor(self) -> int:
        """Give the least output that it is sent with."""
        return min(self.output_tokens, self.thinking_tokens + FLOOR_TOKENS)

    @property
    def comfortable(self) -> int:
        """Give the output that it does not wait for more than."""
        return min(self.output_tokens, self.thinking_tokens + COMFORTABLE_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """One level's budget, and what is spent and reserved of it."""

    budget: Budget = Budget()
    spent_tokens: int = 0
    spent_micro_usd: int = 0
    reserved_tokens: int = 0
    reserved_micro_usd: int = 0
    in_flight: int = 0

    @property
    def free_tokens(self) -> int | None:
        """Give what is neither spent nor reserved; None: no limit."""
        if self.budget.tokens is None:
            return None
        return max(0, self.budget.tokens - self.spent_tokens - self.reserved_tokens)

    @property
    def free_micro_usd(self) -> int | None:
        """Give what is neither spent nor reserved; None: no limit."""
        if self.budget.micro_usd is None:
            return None
        return max(0, self.budget.micro_usd - self.spent_micro_usd - self.reserved_micro_usd)

    def reserve(self, tokens: int, micro_usd: int) -> Balance:
        """Give the balance with one more request in flight."""
        return replace(
            self,
            reserved_tokens=self.reserved_tokens + tokens,
            reserved_micro_usd=self.reserved_micro_usd + micro_usd,
            in_flight=self.in_flight + 1,
        )

    def give_back(self, tokens: int, micro_usd: int) -> Balance:
        """Give the balance with one request less in flight."""
        return replace(
            self,
            reserved_tokens=self.reserved_tokens - tokens,
            reserved_micro_usd=self.reserved_micro_usd - micro_usd,
            in_flight=self.in_flight - 1,
        )

    def spend(self, tokens: int, micro_usd: int) -> Balance:
        """Give the balance with so much more spent."""
        return replace(
            self,
            spent_tokens=self.spent_tokens + tokens,
            spent_micro_usd=self.spent_micro_usd + micro_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Send it, with this limit on its output."""

    output_tokens: int
    tokens: int
    """To reserve: input's bound and output's limit."""
    micro_usd: int | None
    """To reserve; None: unpriced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Others in flight may give back what it lacks."""

    level: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Nothing that could come back would help."""

    level: Level
    reason: str
    """A clause for a person and for the agent."""


Decision = Admit | Wait | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A run's budget is worth no further beginning."""

    reason: str
    is_of_one_agent: bool
    """Others, whose model is cheaper or whose prompt is smaller, may still do with what is left."""


def decide(ask: Ask, attempt: Balance, run: Balance, *, sharers: int = 1) -> Decision:
    """Decide on the request that is next in line.

    Args:
        ask: The request.
        attempt: Balance of its attempt.
        run: Balance of its run.
        sharers: How many attempts the run's budget is shared by; a reservation takes no more
            than its share of what is free, so that one cut stream cannot use up all of it.
    """
    levels = ((Level.ATTEMPT, attempt), (Level.RUN, run))
    if ask.bound is None:
        for level, balance in levels:
            if balance.budget.micro_usd is not None:
                return Refuse(level=level, reason=f"{_whose(level)} {_UNPRICED}")
    free = {level: _affordable(ask, balance) for level, balance in levels}
    wanted = ask.comfortable
    for level, balance in levels:
        if balance.in_flight == 0 and free[level] < wanted:
            if free[level] < ask.floor:
                return Refuse(level=level, reason=_reason(ask, level, balance))
            wanted = free[level]
    now = min(free.values())
    if now < wanted:
        return Wait(level=next(level for level, _ in levels if free[level] < wanted))
    output = min(now, max(wanted, _affordable(ask, run, sharers=max(1, sharers))))
    return Admit(
        output_tokens=output,
        tokens=ask.input_tokens + output,
        micro_usd=None if ask.bound is None else ask.bound.micro_usd(output),
    )


def spent_for(ask: Ask, run: Balance, *, is_first: bool) -> Spent | None:
    """Say whether attempts that have not begun should, after the run refused a request.

    Args:
        ask: What was refused.
        run: What is left.
        is_first: It was its attempt's very first: the next attempt of that agent begins like it.

    Returns:
        None: something may come of it.
    """
    tokens, micro_usd = run.free_tokens, run.free_micro_usd
    if micro_usd is not None and ask.bound is None:
        return None  # it was no matter of how much is left
    parts = []
    if tokens is not None:
        parts.append(f"{tokens} of {run.budget.tokens} tokens are left")
    if micro_usd is not None:
        parts.append(f"{dollars(micro_usd)} of {dollars(run.budget.micro_usd or 0)} are left")
    reason = f"the run's budget is used up: {'; '.join(parts)}"
    if (tokens is not None and tokens < _LEAST_TOKENS) or (
        micro_usd is not None and micro_usd < _LEAST_MICRO_USD
    ):
        return Spent(reason=reason, is_of_one_agent=False)
    is_poor = tokens is not None and tokens < COMFORTABLE_TOKENS
    if micro_usd is not None and ask.bound is not None:
        answer = replace(ask.bound, input_total=0)
        is_poor |= answer.affordable(micro_usd, COMFORTABLE_TOKENS) < COMFORTABLE_TOKENS
    return Spent(reason=reason, is_of_one_agent=True) if is_first or is_poor else None


def _affordable(ask: Ask, balance: Balance, *, sharers: int = 1) -> int:
    most = ask.output_tokens
    if (tokens := balance.free_tokens) is not None:
        most = min(most, tokens // sharers - ask.input_tokens)
    if (micro_usd := balance.free_micro_usd) is not None:
        most = -1 if ask.bound is None else ask.bound.affordable(micro_usd // sharers, most)
    return most


def _whose(level: Level) -> str:
    return f"the {level.value}'s budget"


def _reason(ask: Ask, level: Level, balance: Balance) -> str:
    parts = []
    if (tokens := balance.free_tokens) is not None:
        parts.append(
            f"{tokens} of {balance.budget.tokens} tokens are left,"
            f" it may need {ask.input_tokens + ask.floor}"
        )
    if (micro_usd := balance.free_micro_usd) is not None and ask.bound is not None:
        parts.append(
            f"{dollars(micro_usd)} of {dollars(balance.budget.micro_usd or 0)} are left,"
            f" it may need {dollars(ask.bound.micro_usd(ask.floor))}"
        )
    return f"{_whose(level)} does not cover the next request: " + "; ".join(parts)


def dollars(micro_usd: int) -> str:
    """Write an amount for a person, exact."""
    return f"{micro_usd // 1_000_000}.{micro_usd % 1_000_000:06d} USD"
