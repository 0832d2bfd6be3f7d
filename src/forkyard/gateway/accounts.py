"""What every run, attempt and workspace has spent, holds and was told: the ledger in memory.

Ahead of the file in one direction only: what is reserved here is at least what is reserved
there, so a decision made on these numbers always fits the file. Does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from forkyard.gateway.budget import Balance
from forkyard.gateway.interface import GrantStatus, LedgerEntry, Outcome
from forkyard.gateway.rows import Standing, Totals
from forkyard.model.budget import Budget, Grant
from forkyard.model.ids import AttemptId, RunId, WorkspaceId

GOOD = frozenset({Outcome.COMPLETE, Outcome.CLIENT_GONE})
"""Ends that are no fault of anybody's."""


@dataclass(slots=True, kw_only=True)
class Account:
    """One workspace that is let in."""

    grant: Grant
    in_flight: int = 0
    refused: int = 0
    refusal: str | None = None
    is_exhausted: bool = False
    last_fault: Outcome | None = None
    last_fault_detail: str = ""

    def refuse(self, reason: str, *, is_final: bool) -> None:
        """Take note of a refusal; a final one ends the agent."""
        self.refused += 1
        self.refusal = reason
        self.is_exhausted = self.is_exhausted or is_final

    def ended(self, entry: LedgerEntry) -> None:
        """Take note of how a request ended."""
        if entry.outcome in GOOD:
            self.last_fault = None
            self.last_fault_detail = ""
        else:
            self.last_fault = entry.outcome
            self.last_fault_detail = entry.detail


@dataclass(slots=True)
class Accounts:
    """All that is let in, and the balances above."""

    of_workspace: dict[WorkspaceId, Account] = field(default_factory=dict)
    attempts: dict[AttemptId, Balance] = field(default_factory=dict)
    requests: dict[AttemptId, int] = field(default_factory=dict)
    runs: dict[RunId, Balance] = field(default_factory=dict)
    spent: dict[RunId, dict[str, str]] = field(default_factory=dict)
    """By run and agent: why no further attempt is worth its beginning."""

    def let_in(self, grant: Grant, standing: Standing) -> Account:
        """Take a grant and what the file knows of it; numbers known already are newer."""
        self.attempts[grant.attempt] = replace(
            self.attempts.get(grant.attempt) or _balance(standing.attempt),
            budget=grant.attempt_budget,
        )
        self.runs[grant.run] = replace(
            self.runs.get(grant.run) or _balance(standing.run), budget=grant.run_budget
        )
        self.requests.setdefault(grant.attempt, standing.attempt.requests)
        account = self.of_workspace.get(grant.workspace)
        if account is None:
            account = Account(
                grant=grant,
                refusal=standing.budget_refusal,
                is_exhausted=standing.budget_refusal is not None,
            )
            self.of_workspace[grant.workspace] = account
        account.grant = grant
        return account

    def let_out(self, workspace: WorkspaceId) -> Account | None:
        """Forget a workspace; None: it was not let in."""
        return self.of_workspace.pop(workspace, None)

    def forget_idle(self, grant: Grant) -> None:
        """Drop the balances that nobody can change any more; the file keeps them."""
        grants = [account.grant for account in self.of_workspace.values()]
        if all(one.attempt != grant.attempt for one in grants) and not _busy(
            self.attempts.get(grant.attempt)
        ):
            self.attempts.pop(grant.attempt, None)
            self.requests.pop(grant.attempt, None)
        if all(one.run != grant.run for one in grants) and not _busy(self.runs.get(grant.run)):
            self.runs.pop(grant.run, None)
            self.spent.pop(grant.run, None)

    def sharers(self, run: RunId) -> int:
        """Count the attempts that may still spend a run's budget."""
        return len(
            {
                account.grant.attempt
                for account in self.of_workspace.values()
                if account.grant.run == run and not account.is_exhausted
            }
        )

    def reserve(self, grant: Grant, tokens: int, micro_usd: int) -> None:
        """Hold back at both levels."""
        self.attempts[grant.attempt] = self.attempts[grant.attempt].reserve(tokens, micro_usd)
        self.runs[grant.run] = self.runs[grant.run].reserve(tokens, micro_usd)
        self.requests[grant.attempt] += 1
        if (account := self.of_workspace.get(grant.workspace)) is not None:
            account.in_flight += 1

    def give_back(
        self, grant: Grant, reserved: tuple[int, int], spent: tuple[int, int] | None
    ) -> None:
        """Give back at both levels and spend; None: the request was never sent."""
        attempt = self.attempts[grant.attempt].give_back(*reserved)
        run = self.runs[grant.run].give_back(*reserved)
        if spent is None:
            self.requests[grant.attempt] -= 1
        else:
            attempt = attempt.spend(*spent)
            run = run.spend(*spent)
        self.attempts[grant.attempt] = attempt
        self.runs[grant.run] = run
        if (account := self.of_workspace.get(grant.workspace)) is not None:
            # let out and in again while something was in flight: it began anew
            account.in_flight = max(0, account.in_flight - 1)

    def of_run(self, run: RunId) -> list[Account]:
        """Give a run's workspaces, in the order they were let in."""
        return [one for one in self.of_workspace.values() if one.grant.run == run]

    def status(self, account: Account, *, waiting: int, position: int | None) -> GrantStatus:
        """Say what one workspace is doing, and how many of its requests wait for budget."""
        grant = account.grant
        balance = self.attempts[grant.attempt]
        return GrantStatus(
            workspace=grant.workspace,
            run=grant.run,
            attempt=grant.attempt,
            spent_tokens=balance.spent_tokens,
            spent_micro_usd=balance.spent_micro_usd,
            reserved_tokens=balance.reserved_tokens,
            reserved_micro_usd=balance.reserved_micro_usd,
            requests=self.requests[grant.attempt],
            in_flight=account.in_flight,
            waiting=waiting,
            queue_position=position,
            refused=account.refused,
            refusal=account.refusal,
            is_exhausted=account.is_exhausted,
            last_fault=account.last_fault,
            last_fault_detail=account.last_fault_detail,
        )


def _balance(totals: Totals) -> Balance:
    return Balance(
        budget=Budget(),
        spent_tokens=totals.spent_tokens + totals.overrun_tokens,
        spent_micro_usd=totals.spent_micro_usd + totals.overrun_micro_usd,
        reserved_tokens=totals.reserved_tokens,
        reserved_micro_usd=totals.reserved_micro_usd,
    )


def _busy(balance: Balance | None) -> bool:
    return balance is not None and balance.in_flight > 0
