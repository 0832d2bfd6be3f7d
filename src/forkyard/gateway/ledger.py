"""The gateway's ledger as the event loop sees it: durable reservations, settled for good.

Owns the thread that alone writes the file (`ledger_file.py` says what is in it). Whatever is
asked for while one commit is being synced goes into the next one together, so the cost of a
request does not grow with their number. Steps take effect in the order of the calls.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from forkyard.base.clock import Clock, SystemClock
from forkyard.errors import ForkyardError, InternalError, StoreError
from forkyard.gateway.interface import Copied, LedgerEntry
from forkyard.gateway.ledger_file import MOST_PRUNED, LedgerFile
from forkyard.gateway.ledger_schema import ledger_error
from forkyard.gateway.rows import NewReservation, Settlement, Standing, Totals
from forkyard.model.budget import Grant
from forkyard.model.ids import AttemptId, RunId, WorkspaceId

MOST_STEPS = 512
"""In one commit: the first of them must not wait long for the last."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    step: Callable[[], object]
    finish: Callable[[object | ForkyardError], None]
    loop: asyncio.AbstractEventLoop


class Ledger:
    """An open ledger; one process has it at a time."""

    def __init__(self, file: LedgerFile, clock: Clock) -> None:
        """Use `open`."""
        self._file = file
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._broken: StoreError | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    @classmethod
    async def open(
        cls, path: Path, *, clock: Clock | None = None, allow_volatile: bool = False
    ) -> Ledger:
        """Open or create the file and settle what the last process left in flight.

        Those are settled at their upper bound as Outcome.UNKNOWN: they may have been sent.

        Raises:
            StoreError: Held by another process, damaged, unfit file system, no permission.
        """
        time = clock or SystemClock()
        file = await asyncio.to_thread(
            partial(LedgerFile.open, path, at=time.now(), allow_volatile=allow_volatile)
        )
        return cls(file, time)

    @property
    def id(self) -> str:
        """Name this file: sequence numbers of another one mean nothing here."""
        return self._file.id

    @property
    def is_broken(self) -> bool:
        """Say whether nothing can be written through this process any more; another one may."""
        return self._broken is not None

    async def set_budgets(self, grant: Grant) -> Standing:
        """Write a grant's limits into the file, which then keeps them itself.

        A limit below what is spent and reserved already becomes just that.

        Returns:
            What its attempt and its run have spent so far.
        """
        return await self._ask(partial(self._file.set_budgets, grant))

    def reserve(self, row: NewReservation) -> asyncio.Future[None]:
        """Hold back what a request may cost.

        Raises:
            InternalError: It does not fit; whoever decided that it does was wrong.
            StoreError: The file cannot be written.

        Durability:
            On disk once the future is done: only then may the request be sent.

        Cancellation:
            The row may be written all the same: `release` it.
        """
        return self._ask(partial(self._file.reserve, row))

    def settle(self, id_: str, settlement: Settlement) -> asyncio.Future[LedgerEntry]:
        """Turn a reservation into what was really spent.

        Raises:
            InternalError: Nothing is reserved under this name.
            StoreError: The file cannot be written; the next start settles at the upper bound.

        Durability:
            On disk once the future is done.

        Cancellation:
            It is settled all the same.
        """
        return self._ask(partial(self._file.settle, id_, settlement, self._clock.now()))

    def release(self, id_: str) -> asyncio.Future[None]:
        """Give a reservation back: nothing was sent. One that does not exist is fine."""
        return self._ask(partial(self._file.release, id_))

    def record(
        self, grant: Grant, *, provider: str, model: str, settlement: Settlement
    ) -> asyncio.Future[LedgerEntry]:
        """Enter a request that was never reserved for: refused, or wrong. It spends nothing."""
        step = partial(
            self._file.record,
            grant,
            provider=provider,
            model=model,
            settlement=settlement,
            at=self._clock.now(),
        )
        return self._ask(step)

    async def entries_after(self, sequence: int, *, limit: int = 1000) -> tuple[LedgerEntry, ...]:
        """Read settled entries in the order of their sequence numbers."""
        return await self._ask(partial(self._file.entries_after, sequence, limit))

    async def entries_of(
        self, workspace: WorkspaceId, *, limit: int = 1000
    ) -> tuple[LedgerEntry, ...]:
        """Read the newest that one workspace asked for, and when a budget refused it last."""
        return await self._ask(partial(self._file.entries_of, workspace, limit))

    async def prune(self, copied: Copied) -> int:
        """Forget entries that the journal has, some at a time; give how many.

        Cancellation:
            What is gone is gone; the rest goes another time.
        """
        if copied.is_dry:
            return await self._ask(partial(self._file.prune, copied))
        gone = 0
        while some := await self._ask(partial(self._file.prune, copied)):
            gone += some
            if some < MOST_PRUNED:
                break
        return gone

    async def attempt_totals(self, attempt: AttemptId) -> Totals:
        """Read one attempt's totals."""
        return await self._ask(partial(self._file.totals, "attempt", attempt))

    async def run_totals(self, run: RunId) -> Totals:
        """Read one run's totals."""
        return await self._ask(partial(self._file.totals, "run", run))

    async def close(self) -> None:
        """Write what was asked for, then let go of the file. Doing so twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _ask(self, step: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._is_closed:
            future.set_exception(
                StoreError(
                    "cannot write the ledger: it is closed",
                    hint="Ask again when the gateway has started anew.",
                )
            )
            return future

        result: list[T] = []

        def finish(failure: object | ForkyardError) -> None:
            if future.done():
                return
            if isinstance(failure, ForkyardError):
                future.set_exception(failure)
            else:
                future.set_result(result[0])

        self._jobs.put(_Job(lambda: result.append(step()), finish, loop))
        return future

    def _write(self) -> None:
        is_last = False
        while not is_last:
            batch: list[_Job] = []
            job = self._jobs.get()
            while job is not None:
                batch.append(job)
                if len(batch) == MOST_STEPS:
                    break
                try:
                    job = self._jobs.get_nowait()
                except Empty:
                    break
            is_last = job is None
            if batch:
                self._commit(batch)
        self._file.close()

    def _commit(self, batch: list[_Job]) -> None:
        outcomes: list[object | ForkyardError]
        if self._broken is None:
            try:
                outcomes = list(self._file.atomically([job.step for job in batch]))
            except sqlite3.Error as error:
                failure = ledger_error("write", error)
                outcomes = [failure] * len(batch)
                if (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_IOERR:
                    # the kernel may have dropped the pages that it could not write: another
                    # fsync would succeed and mean nothing
                    self._broken = failure
            except Exception as error:  # noqa: BLE001 - this thread must outlive any bug of a step
                outcomes = [InternalError(f"cannot change the ledger: {error!r}")] * len(batch)
        else:
            outcomes = [self._broken] * len(batch)
        for loop in {job.loop for job in batch}:
            done = [
                (job.finish, outcome)
                for job, outcome in zip(batch, outcomes, strict=True)
                if job.loop is loop
            ]
            try:
                loop.call_soon_threadsafe(_finish, done)
            except RuntimeError:  # that loop is closed: nobody waits any more
                continue


def _finish(done: list[tuple[Callable[[object | ForkyardError], None], object]]) -> None:
    for finish, outcome in done:
        finish(outcome)
