"""Whose trouble an end was: every outcome that the gateway knows, and what the agent says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forkyard.agents.interface import AgentEnding
from forkyard.coordinator.failure import Evidence, failure_of
from forkyard.gateway.interface import Finish, LedgerEntry, Outcome
from forkyard.model.budget import TokenCounts
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.ids import AttemptId, ExecId, RunId, WorkspaceId
from forkyard.model.run import AttemptState, Failure


def entry(
    outcome: Outcome, status: int | None = 200, *, first_byte: int | None = 10
) -> LedgerEntry:
    """Make a ledger entry."""
    return LedgerEntry(
        sequence=1,
        ledger="led_1",
        workspace=WorkspaceId("ws_000000"),
        run=RunId("run_000000"),
        attempt=AttemptId("att_000000"),
        agent="a",
        provider="anthropic",
        model="m",
        at="2026-01-01T00:00:00.000+00:00",
        tokens=TokenCounts(),
        micro_usd=0,
        price_version="",
        is_estimated=False,
        outcome=outcome,
        status=status,
        first_byte_milliseconds=first_byte,
        detail="what it was",
    )


def result(exit_code: int | None, reason: StopReason = StopReason.EXITED) -> ExecResult:
    """Make the end of a command."""
    return ExecResult(
        id=ExecId("exec_000000"),
        stop_reason=reason,
        exit_code=exit_code,
        elapsed_seconds=1.0,
        stdout_bytes=0,
        stderr_bytes=0,
    )


STARTED = AgentEnding(has_started=True)
COMPLAINS = AgentEnding(has_started=True, api_error="529 overloaded")
DONE = entry(Outcome.COMPLETE)
FAULT = entry(Outcome.PROVIDER_ERROR, 529)
CUT = replace(DONE, is_clamped=True, finish=Finish.LENGTH)
"""It came to a limit that a budget had put."""
OWN_LIMIT = replace(DONE, finish=Finish.LENGTH)
"""It came to the limit that its agent had asked for."""
PLAIN = Evidence(
    ending=AttemptState.FINISHED, result=result(0), told=STARTED, entries=(DONE,), is_let_in=True
)
FAILED = replace(PLAIN, result=result(1))


@pytest.mark.parametrize(
    ("seen", "failure"),
    [
        (PLAIN, None),
        (replace(PLAIN, entries=(), is_let_in=False), None),
        # the agent recovered, and did something
        (replace(PLAIN, entries=(FAULT, DONE)), None),
        # it recovered by its own account, and the fault had cost it its work
        (replace(PLAIN, entries=(FAULT, DONE), has_changed=False), Failure.PROVIDER),
        (replace(PLAIN, entries=(DONE, FAULT), has_changed=False), Failure.PROVIDER),
        (replace(PLAIN, entries=(DONE, FAULT)), None),
        (replace(PLAIN, entries=(DONE, FAULT), told=COMPLAINS), Failure.PROVIDER),
        (replace(FAILED, entries=(DONE, FAULT)), Failure.PROVIDER),
        (replace(FAILED, entries=(entry(Outcome.BAD_REQUEST, 400),)), Failure.AGENT),
        (replace(FAILED, entries=(entry(Outcome.BAD_REQUEST, 413),)), Failure.AGENT),
        (replace(FAILED, entries=(entry(Outcome.BAD_REQUEST, 404),)), Failure.AGENT),
        (replace(FAILED, entries=(entry(Outcome.BAD_REQUEST, 429),)), Failure.PROVIDER),
        (replace(FAILED, entries=(entry(Outcome.PROVIDER_ERROR, 404),)), Failure.PROVIDER),
        (replace(FAILED, entries=(entry(Outcome.REFUSED_LIMIT, 403),)), Failure.AGENT),
        (replace(FAILED, entries=(entry(Outcome.REFUSED_LIMIT, 429),)), Failure.BUDGET),
        (replace(PLAIN, entries=(DONE, entry(Outcome.REFUSED_BUDGET, 402))), Failure.BUDGET),
        (replace(FAILED, entries=(entry(Outcome.REFUSED_BUDGET, 402), FAULT)), Failure.BUDGET),
        (replace(PLAIN, ending=AttemptState.BUDGET_EXHAUSTED), Failure.BUDGET),
        (
            replace(
                PLAIN, entries=(entry(Outcome.UNKNOWN, None), entry(Outcome.REFUSED_BUDGET, 402))
            ),
            Failure.OURS,
        ),
        (replace(FAILED, entries=(entry(Outcome.UNKNOWN, None),)), Failure.OURS),
        (replace(PLAIN, entries=(entry(Outcome.UNKNOWN, None),)), None),
        # nothing came, and it gave up; or the stream stalled, and it says so
        (
            replace(FAILED, entries=(entry(Outcome.CLIENT_GONE, None, first_byte=None),)),
            Failure.PROVIDER,
        ),
        (
            replace(FAILED, entries=(entry(Outcome.CLIENT_GONE, None),), told=COMPLAINS),
            Failure.PROVIDER,
        ),
        (replace(FAILED, entries=(entry(Outcome.CLIENT_GONE, None),)), Failure.AGENT),
        (FAILED, Failure.AGENT),
        (replace(FAILED, entries=(), told=COMPLAINS), Failure.OURS),
        (replace(FAILED, entries=(), told=COMPLAINS, is_let_in=False), Failure.AGENT),
        (replace(FAILED, trouble="the gateway did not answer"), Failure.OURS),
        (replace(PLAIN, trouble="the gateway did not answer"), None),
        (replace(PLAIN, told=AgentEnding(has_started=False)), Failure.AGENT),
        (replace(PLAIN, ending=AttemptState.CANCELLED, entries=(FAULT,)), None),
        (replace(FAILED, ending=AttemptState.INTERRUPTED, result=None), Failure.OURS),
        # a budget's clamp cut what it was about to say, and it gave up
        (replace(FAILED, entries=(DONE, CUT)), Failure.BUDGET),
        (replace(PLAIN, entries=(DONE, CUT), told=COMPLAINS), Failure.BUDGET),
        (replace(PLAIN, entries=(DONE, CUT), has_changed=False), Failure.BUDGET),
        # a title was asked for beside it
        (replace(FAILED, entries=(CUT, DONE)), Failure.BUDGET),
        (replace(FAILED, entries=(CUT, DONE, DONE, DONE)), Failure.AGENT),
        # it went on and came to its end all the same
        (replace(PLAIN, entries=(DONE, CUT)), None),
        (replace(FAILED, entries=(DONE, OWN_LIMIT)), Failure.AGENT),
        (replace(FAILED, entries=(CUT, FAULT)), Failure.PROVIDER),
        # it tried one fault again and again until its time was over
        (
            replace(
                PLAIN,
                ending=AttemptState.TIMED_OUT,
                result=result(143, StopReason.TIMED_OUT),
                entries=(DONE, FAULT),
            ),
            Failure.PROVIDER,
        ),
        (
            replace(
                PLAIN,
                ending=AttemptState.TIMED_OUT,
                result=result(143, StopReason.TIMED_OUT),
                entries=(DONE, entry(Outcome.CLIENT_GONE, None)),
            ),
            None,
        ),
    ],
)
def test_end_has_its_class_when_the_ledger_and_the_agent_are_heard(
    seen: Evidence, failure: Failure | None
) -> None:
    """The committed table."""
    assert failure_of(seen).failure is failure


def test_reason_is_the_gateways_when_it_knows_one() -> None:
    """In words, with provider and status."""
    found = failure_of(replace(FAILED, entries=(FAULT,)))

    assert found.detail == "anthropic: what it was (529)"


def test_reason_tells_what_the_budget_left_when_an_answer_was_cut_short() -> None:
    """Whoever reads it sees that a larger budget would have helped."""
    cut = replace(CUT, tokens=TokenCounts(input=10, output=1024))
    found = failure_of(replace(FAILED, entries=(cut,)))

    assert found.detail is not None
    assert "allowed it 1024 output tokens" in found.detail
