"""Who waits for budget, in fair order: round between attempts, first come first served within."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from forkyard.gateway.budget import Ask
from forkyard.gateway.prices import ModelPrice
from forkyard.gateway.rows import NewReservation
from forkyard.model.budget import Grant
from forkyard.model.ids import AttemptId, WorkspaceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The right to send one request."""

    id: str
    grant: Grant
    provider: str
    model: str
    price: ModelPrice | None
    input_tokens: int
    """Upper bound."""
    output_tokens: int
    """The limit to send: less than what was asked for when it was clamped."""
    micro_usd: int | None
    """Upper bound of its cost; None: unpriced."""
    is_clamped: bool

    @property
    def tokens(self) -> int:
        """Give what a token budget counts at most."""
        return self.input_tokens + self.output_tokens

    def row(self) -> NewReservation:
        """Give what the ledger is to hold."""
        return NewReservation(
            id=self.id,
            grant=self.grant,
            provider=self.provider,
            model=self.model,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            micro_usd=self.micro_usd,
            price_version="" if self.price is None else self.price.version,
            is_clamped=self.is_clamped,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waiting:
    """One request that has no reservation yet."""

    grant: Grant
    ask: Ask
    provider: str
    model: str
    price: ModelPrice | None
    refusal_status: int | None
    turn: asyncio.Future[Reservation]


class Line:
    """The requests of one run that wait."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: dict[AttemptId, deque[Waiting]] = {}
        """In the order of whose turn it is; none is empty."""

    def join(self, waiting: Waiting) -> None:
        """Put a request at the end of its attempt's line."""
        self._lines.setdefault(waiting.grant.attempt, deque()).append(waiting)

    def leave(self, waiting: Waiting, *, is_served: bool) -> None:
        """Take a request out; a served one sends its attempt to the end of the round."""
        attempt = waiting.grant.attempt
        line = self._lines.get(attempt)
        if line is None or waiting not in line:
            return
        line.remove(waiting)
        if is_served or not line:
            del self._lines[attempt]
            if line:
                self._lines[attempt] = line

    def first_of_each(self) -> tuple[Waiting, ...]:
        """Give each attempt's next request, in the order of whose turn it is."""
        return tuple(line[0] for line in self._lines.values())

    def of(self, workspace: WorkspaceId) -> Iterator[Waiting]:
        """Give what one workspace waits for."""
        for line in self._lines.values():
            yield from (waiting for waiting in line if waiting.grant.workspace == workspace)

    def position(self, attempt: AttemptId) -> int | None:
        """Give an attempt's place in the round, 1 is next; None: it does not wait."""
        places = {waits: place for place, waits in enumerate(self._lines, start=1)}
        return places.get(attempt)
