"""Whose turn it is: the lines of all runs, moved on whenever something was given back.

Decisions are made in memory by one thread, so two of them never race.
"""

from __future__ import annotations

import asyncio
import uuid

from forkyard.gateway.accounts import Account, Accounts
from forkyard.gateway.budget import Admit, Level, Refuse, Wait, decide, spent_for
from forkyard.gateway.followers import Followers
from forkyard.gateway.interface import EVERY_AGENT, LedgerEntry, Outcome
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.line import Line, Reservation, Waiting
from forkyard.gateway.rows import Settlement
from forkyard.model.ids import RunId, WorkspaceId

MOST_REFUSALS = 100
"""Of one workspace that are entered one by one; an agent that goes on asking is only counted."""


class RefusedError(Exception):
    """A request that gets no reservation; the refusal is in the ledger already."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        """Keep which kind of refusal it is and why, in words that may reach the agent."""
        super().__init__(reason)
        self.outcome = outcome
        """REFUSED_BUDGET or REFUSED_LIMIT."""
        self.reason = reason


class Serving:
    """See the module; `Admission` alone uses it."""

    def __init__(self, ledger: Ledger, accounts: Accounts, followers: Followers) -> None:
        """Keep where refusals are entered, who may spend what, and who is told."""
        self._ledger = ledger
        self._accounts = accounts
        self._followers = followers
        self._lines: dict[RunId, Line] = {}

    def open(self, run: RunId) -> None:
        """Have a line for a run. Idempotent."""
        self._lines.setdefault(run, Line())

    def close(self, run: RunId) -> None:
        """Forget a run that nobody is let in for any more."""
        del self._lines[run]

    def line(self, run: RunId) -> Line:
        """Give the line of a run that somebody is let in for."""
        return self._lines[run]

    def join(self, run: RunId, waiting: Waiting) -> None:
        """Put a request in line; its turn may come at once."""
        self._lines[run].join(waiting)
        self.move(run)

    def leave(self, run: RunId, waiting: Waiting) -> None:
        """Take a request out that nobody waits for any more."""
        if (line := self._lines.get(run)) is not None:
            line.leave(waiting, is_served=False)
            self.move(run)

    def turn_away(self, run: RunId, workspace: WorkspaceId) -> None:
        """Refuse all that a workspace waits for."""
        line = self._lines[run]
        for waiting in tuple(line.of(workspace)):
            line.leave(waiting, is_served=False)
            if not waiting.turn.done():
                waiting.turn.set_exception(
                    RefusedError(Outcome.REFUSED_LIMIT, "this workspace is no longer let in")
                )

    def move(self, run: RunId) -> None:
        """Serve everyone whose turn it is, until the next in line has to wait."""
        line = self._lines.get(run)
        while line is not None and self._serve_one(line):
            pass
        self._followers.touched(run)

    def record(self, account: Account, provider: str, model: str, settlement: Settlement) -> None:
        """Enter a refusal, unless there were very many of them."""
        if account.refused <= MOST_REFUSALS:
            self._ledger.record(
                account.grant, provider=provider, model=model, settlement=settlement
            ).add_done_callback(_looked_at)

    def _serve_one(self, line: Line) -> bool:
        for waiting in line.first_of_each():
            if waiting.turn.done():  # its task was cancelled at this very moment
                line.leave(waiting, is_served=False)
                return True
            grant = waiting.grant
            account = self._accounts.of_workspace[grant.workspace]
            most = account.grant.most_requests
            if most is not None and self._accounts.requests[grant.attempt] >= most:
                reason = f"the attempt has made its {most} requests"
                self._refuse(line, waiting, Outcome.REFUSED_LIMIT, reason)
                return True
            if account.in_flight >= max(1, account.grant.most_concurrent):
                continue
            match decide(
                waiting.ask,
                self._accounts.attempts[grant.attempt],
                self._accounts.runs[grant.run],
                sharers=self._accounts.sharers(grant.run),
            ):
                case Admit() as admitted:
                    self._admit(line, waiting, admitted)
                    return True
                case Refuse() as refused:
                    self._take_note(waiting, refused)
                    self._refuse(line, waiting, Outcome.REFUSED_BUDGET, refused.reason)
                    return True
                case Wait(level=Level.RUN):
                    # who comes later must not take what this one waits for
                    return False
                case Wait():
                    continue
        return False

    def _admit(self, line: Line, waiting: Waiting, admitted: Admit) -> None:
        line.leave(waiting, is_served=True)
        self._accounts.reserve(waiting.grant, admitted.tokens, admitted.micro_usd or 0)
        waiting.turn.set_result(
            Reservation(
                id=uuid.uuid4().hex,
                grant=waiting.grant,
                provider=waiting.provider,
                model=waiting.model,
                price=waiting.price,
                input_tokens=waiting.ask.input_tokens,
                output_tokens=admitted.output_tokens,
                micro_usd=admitted.micro_usd,
                is_clamped=admitted.output_tokens < waiting.ask.output_tokens,
            )
        )

    def _take_note(self, waiting: Waiting, refused: Refuse) -> None:
        """See whose further attempts are not worth their beginning on what is left of a run's."""
        if refused.level is not Level.RUN:
            return
        grant = waiting.grant
        is_first = self._accounts.requests[grant.attempt] == 0
        run = self._accounts.runs[grant.run]
        spent = spent_for(waiting.ask, run, is_first=is_first)
        if spent is not None:
            whose = grant.agent if spent.is_of_one_agent else EVERY_AGENT
            self._accounts.spent.setdefault(grant.run, {})[whose] = spent.reason

    def _refuse(self, line: Line, waiting: Waiting, outcome: Outcome, reason: str) -> None:
        line.leave(waiting, is_served=True)
        account = self._accounts.of_workspace[waiting.grant.workspace]
        account.refuse(reason, is_final=True)
        settlement = Settlement(outcome=outcome, status=waiting.refusal_status, detail=reason)
        self.record(account, waiting.provider, waiting.model, settlement)
        waiting.turn.set_exception(RefusedError(outcome, reason))


def _looked_at(done: asyncio.Future[LedgerEntry]) -> None:
    if not done.cancelled():
        done.exception()  # a refusal that cannot be entered is told to the agent all the same
