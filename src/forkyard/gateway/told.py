"""What is made of an answer: what its agent was told, and how it is booked. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forkyard.gateway.interface import Finish, Outcome
from forkyard.gateway.protocols.interface import Reading, Rebuilt, UsageMeter
from forkyard.model.budget import TokenCounts

_WRONG_REQUEST = frozenset({400, 413, 422})
_NOBODY_KNOWS = frozenset({502, 504, 524})
"""Said by something between us and the provider, which may have worked all the same."""


@dataclass(slots=True, kw_only=True)
class Told:
    """What the agent was told, and how it is booked."""

    outcome: Outcome
    tokens: TokenCounts | None = None
    is_estimated: bool = False
    status: int | None = None
    detail: str = ""
    finish: Finish = Finish.UNKNOWN


def fault(status: int) -> Told:
    """Book an answer that is an error; it cost nothing where the provider itself said so."""
    is_unknown = status in _NOBODY_KNOWS
    return Told(
        outcome=Outcome.BAD_REQUEST if status in _WRONG_REQUEST else Outcome.PROVIDER_ERROR,
        tokens=None if is_unknown else TokenCounts(),
        is_estimated=is_unknown,
        status=status,
        detail=f"the provider answered {status}",
    )


def as_read(
    outcome: Outcome,
    why: str,
    rebuilt: Rebuilt,
    reading: Reading | None = None,
    meter: UsageMeter | None = None,
) -> Told:
    """Book an answer by what was read of it, bounded where that is not all.

    Args:
        outcome: How it ended.
        why: A clause for a person.
        rebuilt: The request.
        reading: What was read; None: ask the meter.
        meter: That reads the answer; None: nothing was read, and nobody knows what it cost.
    """
    if reading is None:
        if meter is None:
            return Told(outcome=outcome, tokens=None, is_estimated=True, detail=why)
        meter.end()
        reading = meter.reading()
    return Told(
        outcome=outcome,
        tokens=reading.bound(rebuilt),
        is_estimated=not reading.is_final,
        detail=why,
        finish=reading.finish,
    )


def wrong_with(reading: Reading, why: str) -> str:
    """Say what is wrong with an answer that came to its end, or to `why`; empty: nothing."""
    if reading.error is not None:
        return f"the provider broke off with {reading.error}"
    if reading.is_malformed:
        return "the provider's answer is malformed"
    if not why and not reading.has_ended:
        return "the provider ended the answer before its end"
    return why
