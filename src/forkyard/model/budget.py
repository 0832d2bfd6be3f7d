"""Tokens, money and the limits on both: what an attempt may spend and what it did spend."""

from __future__ import annotations

from dataclasses import dataclass, fields

from forkyard.model.ids import AttemptId, RunId, WorkspaceId


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one request or of many; each counted once, whatever API reported them."""

    input: int = 0
    """Read by the model and not from a cache."""
    cache_read: int = 0
    cache_write: int = 0
    cache_write_long: int = 0
    """The part of `cache_write` that is kept for an hour and costs more; 0 where nobody tells."""
    output: int = 0
    """Written by the model, its reasoning included."""
    reasoning: int = 0
    """The part of `output` that was reasoning; 0 where the provider does not tell."""

    @property
    def total(self) -> int:
        """Give what a token budget counts."""
        return self.input + self.cache_read + self.cache_write + self.output

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Most that may be spent; None means no limit of ours."""

    tokens: int | None = None
    micro_usd: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Say whether nothing is limited."""
        return self.tokens is None and self.micro_usd is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one running workspace may ask of the gateway; its listening sockets are its identity."""

    workspace: WorkspaceId
    run: RunId
    attempt: AttemptId
    agent: str
    models: tuple[str, ...] = ()
    """Exact names; empty: whatever the provider's own allowlist lets through."""
    attempt_budget: Budget = Budget()
    run_budget: Budget = Budget()
    most_requests: int | None = None
    most_concurrent: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What one attempt spent on one model on one day: the server's copy of the ledger.

    The ledger is copied in the order of its sequence numbers, all rows that one batch changes in
    one transaction; so the highest `ledger_sequence` of all rows is how far it has been copied.
    """

    id: str
    """`use_` and hexadecimal digits, derived from the fields that it is grouped by."""
    run: RunId
    attempt: AttemptId
    agent: str
    provider: str
    model: str
    day: str
    """ISO date, UTC."""
    tokens: TokenCounts = TokenCounts()
    micro_usd: int = 0
    """Of the priced requests."""
    requests: int = 0
    unpriced_requests: int = 0
    estimated_requests: int = 0
    """Settled at their upper bound, since nobody knows what they really used."""
    first_byte_milliseconds: int = 0
    """Summed over the requests that got an answer."""
    price_version: str = ""
    ledger: str = ""
    """Which ledger file the sequence belongs to; a new one is another."""
    ledger_sequence: int = 0
