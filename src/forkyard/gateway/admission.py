"""Who may send a request now: budgets, the ledger and a fair line put together.

Use, by the HTTP side, for one request of one workspace:

    reservation = await admission.admit(workspace, ask, provider=..., model=..., price=...)
    ...send with reservation.output_tokens as the limit...
    await admission.settle(reservation, outcome=..., tokens=..., status=...)

Exactly one of `settle` and `release` follows each `admit` that returned. Between attempts the
line goes round; within one attempt it is first come, first served. Decisions are made in memory
by one thread, so two of them never race; the file's own CHECK would stop a wrong one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from forkyard.errors import InternalError, NotFoundError
from forkyard.gateway.accounts import Account, Accounts
from forkyard.gateway.budget import Ask
from forkyard.gateway.followers import Followers
from forkyard.gateway.interface import Finish, LedgerEntry, Outcome, RunStatus
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.line import Reservation, Waiting
from forkyard.gateway.prices import MOST_MODEL_NAME, ModelPrice, cost_micro_usd
from forkyard.gateway.rows import Settlement, is_credible
from forkyard.gateway.serving import Serving
from forkyard.model.budget import Grant, TokenCounts
from forkyard.model.ids import AttemptId, RunId, WorkspaceId


class Admission:
    """All grants, their balances, and who waits."""

    def __init__(self, ledger: Ledger) -> None:
        """Take an open ledger, which stays the caller's to close."""
        self._ledger = ledger
        self._accounts = Accounts()
        self._followers = Followers()
        self._serving = Serving(ledger, self._accounts, self._followers)
        self._open: dict[str, Reservation] = {}

    async def grant(self, grant: Grant) -> None:
        """Let a workspace in, or change its grant; again with the same is fine.

        Raises:
            StoreError: The ledger cannot be written.

        Durability:
            The limits are in the ledger before this returns.
        """
        standing = await self._ledger.set_budgets(grant)
        self._accounts.let_in(grant, standing)
        self._serving.open(grant.run)
        self._serving.move(grant.run)

    def revoke(self, workspace: WorkspaceId) -> None:
        """Refuse what a workspace waits for and whatever it asks later; in flight stays open."""
        account = self._accounts.let_out(workspace)
        if account is None:
            return
        run = account.grant.run
        self._serving.turn_away(run, workspace)
        self._accounts.forget_idle(account.grant)
        if not self._accounts.of_run(run):
            self._serving.close(run)
        self._serving.move(run)

    def grant_of(self, workspace: WorkspaceId) -> Grant | None:
        """Give a workspace's grant; None: not let in yet, or no more."""
        account = self._accounts.of_workspace.get(workspace)
        return None if account is None else account.grant

    async def admit(
        self,
        workspace: WorkspaceId,
        ask: Ask,
        *,
        provider: str,
        model: str,
        price: ModelPrice | None,
        refusal_status: int | None = None,
    ) -> Reservation:
        """Wait for a request's turn and reserve for it.

        Args:
            workspace: Whose listener it came in by.
            ask: What it may cost; its `bound` is made of the same `price`.
            provider: Name of the provider it goes to.
            model: Name of the model it asks for.
            price: Settles it later, too.
            refusal_status: What the agent is answered if it is refused, for the ledger.

        Raises:
            RefusedError: By a budget, by the grant's request limit, or it is revoked.
            NotFoundError: The workspace was never let in.
            StoreError: The ledger cannot be written: nothing may be sent.

        Cancellation:
            At any point nothing of it stays reserved or in line.

        Durability:
            The reservation is on disk before this returns.
        """
        account = self._account(workspace)
        waiting = Waiting(
            grant=account.grant,
            ask=ask,
            provider=provider,
            model=model[:MOST_MODEL_NAME],
            price=price,
            refusal_status=refusal_status,
            turn=asyncio.get_running_loop().create_future(),
        )
        run = account.grant.run
        self._serving.join(run, waiting)
        try:
            reservation = await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                if waiting.turn.exception() is None:
                    self._give_back(waiting.turn.result(), None)
            else:
                self._serving.leave(run, waiting)
            raise
        try:
            await self._ledger.reserve(reservation.row())
        except BaseException:
            # steps take effect in the order they were asked for: the row, if it is ever
            # written, is written before this takes it away
            self._ledger.release(reservation.id).add_done_callback(
                partial(self._released, reservation, is_entered=False)
            )
            raise
        self._open[reservation.id] = reservation
        return reservation

    async def settle(
        self,
        reservation: Reservation,
        *,
        outcome: Outcome,
        tokens: TokenCounts | None,
        is_estimated: bool = False,
        status: int | None = None,
        first_byte_milliseconds: int | None = None,
        detail: str = "",
        finish: Finish = Finish.UNKNOWN,
    ) -> LedgerEntry:
        """Book what a request used, and let the next in line try.

        Args:
            reservation: From `admit`.
            outcome: How it ended.
            tokens: What the provider told, or a bound made of what it told (`is_estimated`);
                TokenCounts() where it certainly used nothing; None: nobody knows, so it is
                booked at its upper bound and marked as estimated.
            is_estimated: Whether `tokens` holds anything that the provider did not tell.
            status: What the agent was answered; None where it was gone.
            first_byte_milliseconds: From sending to the first byte of the answer's body.
            detail: A clause for a person.
            finish: Why the model stopped writing.

        Raises:
            InternalError: It was settled or released already.
            StoreError: The ledger cannot be written; it stays reserved in the file, and the next
                start of the gateway settles it at its upper bound.

        Cancellation:
            It is settled all the same.

        Durability:
            On disk before this returns.
        """
        self._close(reservation)
        told = tokens if tokens is not None and is_credible(tokens) else None
        if told is None:
            used = TokenCounts(input=reservation.input_tokens, output=reservation.output_tokens)
            cost = reservation.micro_usd
        else:
            used = told
            cost = cost_micro_usd(reservation.price, told)
            if is_estimated and cost is not None and reservation.micro_usd is not None:
                cost = min(cost, reservation.micro_usd)
        settlement = Settlement(
            outcome=outcome,
            tokens=used,
            micro_usd=cost,
            is_estimated=is_estimated or told is None,
            status=status,
            first_byte_milliseconds=first_byte_milliseconds,
            detail=detail,
            finish=finish,
        )
        done = self._ledger.settle(reservation.id, settlement)
        done.add_done_callback(partial(self._settled, reservation))
        return await asyncio.shield(done)

    async def release(self, reservation: Reservation) -> None:
        """Give a reservation back: the request was never sent. Leaves no entry.

        Raises:
            InternalError: It was settled or released already.
            StoreError: The ledger cannot be written; the next start settles it at its bound.

        Cancellation:
            It is released all the same.
        """
        self._close(reservation)
        done = self._ledger.release(reservation.id)
        done.add_done_callback(partial(self._released, reservation))
        await asyncio.shield(done)

    async def refuse(
        self,
        workspace: WorkspaceId,
        *,
        provider: str,
        model: str,
        outcome: Outcome,
        status: int,
        detail: str,
    ) -> None:
        """Enter a request that was refused or found wrong before it asked for a reservation.

        Raises:
            NotFoundError: The workspace was never let in.
        """
        account = self._account(workspace)
        settlement = Settlement(outcome=outcome, status=status, detail=detail)
        account.refuse(detail, is_final=False)
        self._serving.record(account, provider, model[:MOST_MODEL_NAME], settlement)
        self._followers.touched(account.grant.run)

    def status(self, run: RunId) -> RunStatus | None:
        """Say what a run and its workspaces spend, hold and wait for; None: none is let in.

        Waiting for a provider's rate is not in it: governors know that.
        """
        accounts = self._accounts.of_run(run)
        if not accounts:
            return None
        line = self._serving.line(run)
        balance = self._accounts.runs[run]
        return RunStatus(
            run=run,
            budget=balance.budget,
            spent_tokens=balance.spent_tokens,
            spent_micro_usd=balance.spent_micro_usd,
            reserved_tokens=balance.reserved_tokens,
            reserved_micro_usd=balance.reserved_micro_usd,
            spent=dict(self._accounts.spent.get(run, {})),
            grants=tuple(
                self._accounts.status(
                    account,
                    waiting=sum(1 for _ in line.of(account.grant.workspace)),
                    position=line.position(account.grant.attempt),
                )
                for account in accounts
            ),
        )

    async def changes(self) -> AsyncIterator[RunStatus]:
        """Follow every run; changes of one that come while nobody reads are told as one."""
        async for run in self._followers.follow(self._accounts.runs):
            if (status := self.status(run)) is not None:
                yield status

    def touched(self, attempt: AttemptId) -> None:
        """Tell those who follow of something that is not seen here; a governor's `on_change`."""
        for account in self._accounts.of_workspace.values():
            if account.grant.attempt == attempt:
                self._followers.touched(account.grant.run)

    def _account(self, workspace: WorkspaceId) -> Account:
        account = self._accounts.of_workspace.get(workspace)
        if account is None:
            raise NotFoundError(f"cannot let {workspace} ask a model: it has no grant")
        return account

    def _close(self, reservation: Reservation) -> None:
        if self._open.pop(reservation.id, None) is None:
            raise InternalError(f"cannot settle {reservation.id}: it is not open")

    def _settled(self, reservation: Reservation, done: asyncio.Future[LedgerEntry]) -> None:
        if done.cancelled() or done.exception() is not None:
            # it may have cost all of it, and must not keep others waiting for ever
            spent = (reservation.tokens, reservation.micro_usd or 0)
        else:
            entry = done.result()
            spent = (entry.tokens.total, entry.micro_usd or 0)
            account = self._accounts.of_workspace.get(reservation.grant.workspace)
            if account is not None:
                account.ended(entry)
        self._give_back(reservation, spent)

    def _released(
        self, reservation: Reservation, done: asyncio.Future[None], *, is_entered: bool = True
    ) -> None:
        is_stuck = (done.cancelled() or done.exception() is not None) and is_entered
        self._give_back(
            reservation, (reservation.tokens, reservation.micro_usd or 0) if is_stuck else None
        )

    def _give_back(self, reservation: Reservation, spent: tuple[int, int] | None) -> None:
        grant = reservation.grant
        reserved = (reservation.tokens, reservation.micro_usd or 0)
        self._accounts.give_back(grant, reserved, spent)
        self._accounts.forget_idle(grant)
        self._serving.move(grant.run)
