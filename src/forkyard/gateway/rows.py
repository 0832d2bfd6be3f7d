"""What goes into the ledger and what its totals tell, as values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from forkyard.gateway.interface import Finish, Outcome
from forkyard.model.budget import Grant, TokenCounts

MOST_TOKENS = 1_000_000_000
"""Of one request that is believed; a provider that reports more reports nonsense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What one attempt or run has spent and holds reserved, as the file tells it."""

    spent_tokens: int = 0
    spent_micro_usd: int = 0
    overrun_tokens: int = 0
    """Reported by a provider beyond the upper bound and beyond the budget: its breach, not ours."""
    overrun_micro_usd: int = 0
    reserved_tokens: int = 0
    reserved_micro_usd: int = 0
    requests: int = 0
    """Ever reserved for, the released ones not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a grant stands when it is let in."""

    attempt: Totals
    run: Totals
    budget_refusal: str | None
    """Why a budget refused this workspace earlier; None: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReservation:
    """One request that is about to be sent."""

    id: str
    grant: Grant
    provider: str
    model: str
    input_tokens: int
    """Upper bound."""
    output_tokens: int
    """The limit that it is sent with."""
    micro_usd: int | None
    """Upper bound; None: unpriced."""
    price_version: str
    is_clamped: bool = False
    """`output_tokens` is less than what was asked for."""

    @property
    def tokens(self) -> int:
        """Give what a token budget counts at most."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How one request ended and what it used."""

    outcome: Outcome
    tokens: TokenCounts = field(default_factory=TokenCounts)
    micro_usd: int | None = 0
    is_estimated: bool = False
    status: int | None = None
    first_byte_milliseconds: int | None = None
    detail: str = ""
    finish: Finish = Finish.UNKNOWN


def is_credible(tokens: TokenCounts) -> bool:
    """Say whether a provider can have meant what it reports."""
    return all(0 <= getattr(tokens, one.name) <= MOST_TOKENS for one in fields(tokens))
