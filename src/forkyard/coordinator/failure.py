"""Whose trouble kept an agent from an ordinary end: pure.

What the gateway saw decides, the agent's word comes last: agents call an end a success after
their provider broke off, and blame a provider for a refusal of ours.

| seen | whose |
|---|---|
| a budget of ours refused a request, after the gateway died with one under way | ours |
| a budget of ours refused a request | budget |
| the sandbox died, or the gateway did and the agent gave up | ours |
| the newest answer was 401, 402, 403, 404, 429, 5xx, cut, stalled, malformed, late | provider |
| such an answer on the way, and in the end nothing was changed | provider |
| the newest answer was 400, 413, 422, or a path or model that is not allowed | agent |
| it was given no more requests, and gave up | budget |
| a budget had cut one of its last answers short, and it gave up | budget |
| none of these, and the agent could not start or exited with another status than 0 | agent |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forkyard.agents.interface import AgentEnding
from forkyard.gateway.interface import LedgerEntry, Outcome
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.run import AttemptState, Failure

_OF_THE_PROVIDER = frozenset({401, 402, 403, 404, 408, 429})
_FIRST_SERVER_ERROR = 500
_NO_SUCH_KEY = 401
_NOT_ALLOWED = frozenset({403, 404, 405})
_LAST_ANSWERS = 3
"""Beside its main request an agent may ask for a title, and it may try again once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that tells how an agent ended."""

    ending: AttemptState
    """Of the attempt."""
    result: ExecResult | None
    """None: nobody knows how its command ended."""
    told: AgentEnding | None = None
    """What its driver makes of it."""
    entries: Sequence[LedgerEntry] = ()
    """In the ledger's order."""
    trouble: str | None = None
    """Why the ledger could not be read to its end."""
    is_let_in: bool = False
    has_changed: bool = True
    """Whether it left any change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whose it was, and a clause that says what happened where the gateway knows."""

    failure: Failure | None = None
    detail: str | None = None


def failure_of(seen: Evidence) -> Finding:
    """Classify the end of an attempt."""
    refused = _newest(seen.entries, Outcome.REFUSED_BUDGET)
    if refused is not None or seen.ending is AttemptState.BUDGET_EXHAUSTED:
        lost = sum(one.outcome is Outcome.UNKNOWN for one in seen.entries)
        if lost:
            return Finding(failure=Failure.OURS, detail=_lost_budget(lost, refused))
        return Finding(failure=Failure.BUDGET, detail=_refusal(refused))
    if seen.ending is AttemptState.CANCELLED:
        return Finding()
    if seen.ending is AttemptState.INTERRUPTED:
        return Finding(failure=Failure.OURS)
    found = _at_the_gateway(seen)
    if found.failure is None and _is_the_agents_own(seen):
        return Finding(failure=Failure.AGENT)
    return found


def _refusal(entry: LedgerEntry | None) -> str | None:
    return None if entry is None else f"refused at the gateway: {entry.detail}"


def _lost_budget(lost: int, refused: LedgerEntry | None) -> str:
    requests = "a request" if lost == 1 else f"{lost} requests"
    then = refused.detail if refused is not None and refused.detail else "a budget refused"
    return (
        f"the gateway died with {requests} under way, which counts as all that it might have"
        f" used; then {then}"
    )


def _at_the_gateway(seen: Evidence) -> Finding:
    gave_up = _gave_up(seen)
    if gave_up and seen.trouble is not None:
        return Finding(failure=Failure.OURS, detail=seen.trouble)
    if not seen.entries:
        has_missed_it = seen.told is not None and seen.told.api_error is not None
        if gave_up and seen.is_let_in and has_missed_it:
            return Finding(failure=Failure.OURS, detail="no request of it reached a model")
        return Finding()
    last = seen.entries[-1]
    if gave_up and (found := _of(last, seen)) is not None:
        words = _refusal(last) if found is Failure.BUDGET else _words(last)
        return Finding(failure=found, detail=words)
    if gave_up and (cut := _cut_short(seen.entries)) is not None:
        return Finding(
            failure=Failure.BUDGET,
            detail="an answer was cut short: what was left of a budget allowed it"
            f" {cut.tokens.output} output tokens, less than the agent had asked for",
        )
    if not seen.has_changed:
        for entry in reversed(seen.entries):
            if _of(entry, seen) is Failure.PROVIDER:
                return Finding(failure=Failure.PROVIDER, detail=_words(entry))
    return Finding()


def _cut_short(entries: Sequence[LedgerEntry]) -> LedgerEntry | None:
    """Find one of the last answers that ended where a budget had put its limit."""
    whole = [one for one in entries if one.outcome is Outcome.COMPLETE]
    return next((one for one in reversed(whole[-_LAST_ANSWERS:]) if one.is_cut_short), None)


def _gave_up(seen: Evidence) -> bool:
    """Say whether it ended otherwise than agents do whose work is done."""
    if seen.result is None:
        return False
    if seen.result.stop_reason is StopReason.TIMED_OUT:
        return True
    is_sad = seen.told is not None and (
        seen.told.api_error is not None or seen.told.claims_success is False
    )
    return seen.result.exit_code != 0 or is_sad or not seen.has_changed


def _of(entry: LedgerEntry, seen: Evidence) -> Failure | None:
    match entry.outcome:
        case Outcome.PROVIDER_ERROR:
            return Failure.PROVIDER
        case Outcome.BAD_REQUEST:
            is_provider = entry.status is not None and (
                entry.status in _OF_THE_PROVIDER - {404} or entry.status >= _FIRST_SERVER_ERROR
            )
            return Failure.PROVIDER if is_provider else Failure.AGENT
        case Outcome.REFUSED_LIMIT:
            # a model or path that is not allowed, or more requests than it was given
            return Failure.AGENT if entry.status in _NOT_ALLOWED else Failure.BUDGET
        case Outcome.REFUSED_BUDGET:
            return Failure.BUDGET
        case Outcome.UNKNOWN:
            return Failure.OURS
        case Outcome.CLIENT_GONE:
            return Failure.PROVIDER if _waited_in_vain(entry, seen) else None
        case Outcome.COMPLETE:
            return None


def _waited_in_vain(entry: LedgerEntry, seen: Evidence) -> bool:
    """Tell an agent that lost patience with its provider from one that was ended or crashed."""
    if seen.result is None or seen.result.stop_reason is not StopReason.EXITED:
        return False
    has_said_so = seen.told is not None and seen.told.api_error is not None
    return has_said_so or entry.first_byte_milliseconds is None


def _is_the_agents_own(seen: Evidence) -> bool:
    if seen.told is not None and not seen.told.has_started:
        return True
    result = seen.result
    if result is None or result.stop_reason is StopReason.TIMED_OUT:
        return False
    return result.exit_code != 0


def _newest(entries: Sequence[LedgerEntry], outcome: Outcome) -> LedgerEntry | None:
    return next((one for one in reversed(entries) if one.outcome is outcome), None)


def _words(entry: LedgerEntry) -> str:
    what = entry.detail or entry.outcome.value
    status = "" if entry.status is None or str(entry.status) in what else f" ({entry.status})"
    key = "; is its key right? `forkyard secret list`" if entry.status == _NO_SUCH_KEY else ""
    return f"{entry.provider}: {what}{status}{key}"
