"""The ledger's SQLite file: the one transaction that each step is.

Every step changes both levels, the attempt's and the run's, together. Blocking; used by one
thread at a time. `ledger_schema.py` says what the tables are and what they refuse.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from forkyard.base.durable import make_directory, sync_directory
from forkyard.errors import InternalError
from forkyard.gateway.interface import Copied, Finish, LedgerEntry, Outcome
from forkyard.gateway.ledger_schema import ledger_error, prepare, take_lock
from forkyard.gateway.rows import NewReservation, Settlement, Standing, Totals
from forkyard.model.budget import Grant, TokenCounts
from forkyard.model.ids import AttemptId, RunId, WorkspaceId
from forkyard.store.database import connect, refuse_unfit_file_system

MOST_PRUNED = 2_000
"""In one step: requests wait for it."""
LOST = "the gateway ended while it was under way"

_WHO = "workspace, run, attempt, agent, provider, model"
_COUNTS = "input, cache_read, cache_write, cache_write_long, output, reasoning"
_ENTRY = (
    f"{_WHO}, at, {_COUNTS}, micro_usd, price_version,"
    " is_estimated, outcome, status, first_byte_milliseconds, detail, is_clamped, finish"
)
_ADD_ENTRY = f"INSERT INTO entries ({_ENTRY}) VALUES ({', '.join('?' * 22)})"  # noqa: S608 - constants

_OLD = "WHERE sequence <= ? AND at < ? AND workspace NOT IN (SELECT value FROM json_each(?))"

T = TypeVar("T")


class LedgerFile:
    """The open file; one process has it at a time, by a lock that the kernel drops with us."""

    def __init__(self, connection: sqlite3.Connection, lock: int) -> None:
        """Use `open`."""
        self._connection = connection
        self._lock = lock
        self.id = str(self._value("SELECT value FROM meta WHERE key = 'ledger'"))

    @classmethod
    def open(cls, path: Path, *, at: str, allow_volatile: bool = False) -> LedgerFile:
        """Open or create the file, and settle what was in flight at its upper bound.

        Raises:
            StoreError: Held by another process, damaged, newer, unfit file system, no permission.
        """
        try:
            make_directory(path.parent)
            refuse_unfit_file_system(path.parent, allow_volatile=allow_volatile)
            lock = take_lock(path)
            try:
                fresh = not path.exists()
                connection = connect(path)
                try:
                    prepare(connection, path)
                    path.chmod(0o600)
                    if fresh:
                        sync_directory(path.parent)
                    file = cls(connection, lock)
                    file.atomically([lambda: file.settle_lost(at)])
                except BaseException:
                    connection.close()
                    raise
            except BaseException:
                os.close(lock)
                raise
        except (sqlite3.Error, OSError) as error:
            raise ledger_error("open", error) from error
        return file

    def close(self) -> None:
        """Let go of the file; doing so twice is fine."""
        if self._lock >= 0:
            self._connection.close()
            os.close(self._lock)
            self._lock = -1

    def atomically(self, steps: Sequence[Callable[[], T]]) -> list[T | InternalError]:
        """Do many steps in one transaction; one that fails takes only itself back.

        Raises:
            sqlite3.Error: The file cannot be written: none of them happened.

        Durability:
            All of them are on disk when this returns.
        """
        results: list[T | InternalError] = []
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for step in steps:
                self._connection.execute("SAVEPOINT step")
                try:
                    results.append(step())
                except (InternalError, sqlite3.IntegrityError, OverflowError) as error:
                    self._connection.execute("ROLLBACK TO step")
                    results.append(_refusal(error))
                self._connection.execute("RELEASE step")
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return results

    def set_budgets(self, grant: Grant) -> Standing:
        """Write a grant's limits; one that is passed already becomes what it is passed by."""
        for level, id_, budget in (
            ("attempt", grant.attempt, grant.attempt_budget),
            ("run", grant.run, grant.run_budget),
        ):
            self._connection.execute(
                "INSERT INTO balances (level, id) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (level, id_),
            )
            self._connection.execute(
                """UPDATE balances SET
                    limit_tokens = max(?, spent_tokens + reserved_tokens),
                    limit_micro_usd = max(?, spent_micro_usd + reserved_micro_usd)
                WHERE level = ? AND id = ?""",
                (budget.tokens, budget.micro_usd, level, id_),
            )
        refusal = self._value(
            "SELECT detail FROM entries WHERE workspace = ? AND outcome = ? LIMIT 1",
            (grant.workspace, Outcome.REFUSED_BUDGET),
        )
        return Standing(
            attempt=self.totals("attempt", grant.attempt),
            run=self.totals("run", grant.run),
            budget_refusal=None if refusal is None else str(refusal),
        )

    def reserve(self, row: NewReservation) -> None:
        """Hold back a request's upper bound at both levels, or fail."""
        for level, id_ in (("attempt", row.grant.attempt), ("run", row.grant.run)):
            changed = self._connection.execute(
                """UPDATE balances SET
                    reserved_tokens = reserved_tokens + ?,
                    reserved_micro_usd = reserved_micro_usd + ?,
                    requests = requests + 1
                WHERE level = ? AND id = ?""",
                (row.tokens, row.micro_usd or 0, level, id_),
            )
            if changed.rowcount != 1:
                raise InternalError(f"cannot reserve for {id_}: its budget was never set")
        self._connection.execute(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.id,
                *(row.grant.workspace, row.grant.run, row.grant.attempt, row.grant.agent),
                *(row.provider, row.model, row.input_tokens, row.output_tokens),
                *(row.micro_usd, row.price_version, int(row.is_clamped)),
            ),
        )

    def settle(self, id_: str, settlement: Settlement, at: str) -> LedgerEntry:
        """Turn a reservation into an entry, at both levels."""
        row = self._connection.execute(
            f"DELETE FROM reservations WHERE id = ? RETURNING {_WHO},"  # noqa: S608 - constants
            " input_tokens + output_tokens, micro_usd, price_version, is_clamped",
            (id_,),
        ).fetchone()
        if row is None:
            raise InternalError(f"cannot settle {id_}: nothing is reserved under this name")
        *who, tokens, micro_usd, version, is_clamped = row
        spent = (settlement.tokens.total, settlement.micro_usd or 0)
        for level, name in (("attempt", who[2]), ("run", who[1])):
            self._spend(level, name, (tokens, micro_usd or 0), spent)
        return self._add_entry(tuple(who), settlement, version, at, is_clamped=bool(is_clamped))

    def _spend(
        self, level: str, id_: str, reserved: tuple[int, int], spent: tuple[int, int]
    ) -> None:
        # what a provider reports beyond its bound may still fit into what is free; the rest is
        # kept apart, since the budget was never asked for it
        room = self._connection.execute(
            """SELECT limit_tokens - spent_tokens - reserved_tokens,
                limit_micro_usd - spent_micro_usd - reserved_micro_usd
            FROM balances WHERE level = ? AND id = ?""",
            (level, id_),
        ).fetchone()
        within = [
            used if free is None else min(used, free + held)
            for used, held, free in zip(spent, reserved, room, strict=True)
        ]
        self._connection.execute(
            """UPDATE balances SET
                reserved_tokens = reserved_tokens - ?, reserved_micro_usd = reserved_micro_usd - ?,
                spent_tokens = spent_tokens + ?, spent_micro_usd = spent_micro_usd + ?,
                overrun_tokens = overrun_tokens + ?, overrun_micro_usd = overrun_micro_usd + ?
            WHERE level = ? AND id = ?""",
            (*reserved, *within, spent[0] - within[0], spent[1] - within[1], level, id_),
        )

    def release(self, id_: str) -> None:
        """Give a reservation back as if it had never been made; none of that name is fine."""
        row = self._connection.execute(
            "DELETE FROM reservations WHERE id = ?"
            " RETURNING attempt, run, input_tokens + output_tokens, micro_usd",
            (id_,),
        ).fetchone()
        if row is None:
            return
        attempt, run, tokens, micro_usd = row
        for level, name in (("attempt", attempt), ("run", run)):
            self._connection.execute(
                """UPDATE balances SET
                    reserved_tokens = reserved_tokens - ?,
                    reserved_micro_usd = reserved_micro_usd - ?,
                    requests = requests - 1
                WHERE level = ? AND id = ?""",
                (tokens, micro_usd or 0, level, name),
            )

    def record(
        self, grant: Grant, *, provider: str, model: str, settlement: Settlement, at: str
    ) -> LedgerEntry:
        """Enter a request that nothing was reserved for, and that spent nothing."""
        if settlement.tokens.total or settlement.micro_usd:
            raise InternalError(f"cannot enter a request of {grant.workspace}: it was not reserved")
        who = (grant.workspace, grant.run, grant.attempt, grant.agent, provider, model)
        return self._add_entry(who, settlement, "", at)

    def settle_lost(self, at: str) -> int:
        """Settle every open reservation at its upper bound; it may have been sent.

        Returns:
            How many there were.
        """
        rows = self._connection.execute(
            "SELECT id, input_tokens, output_tokens, micro_usd FROM reservations"
        ).fetchall()
        for id_, input_tokens, output_tokens, micro_usd in rows:
            settlement = Settlement(
                outcome=Outcome.UNKNOWN,
                tokens=TokenCounts(input=input_tokens, output=output_tokens),
                micro_usd=micro_usd,
                is_estimated=True,
                detail=LOST,
            )
            self.settle(id_, settlement, at)
        return len(rows)

    def prune(self, copied: Copied) -> int:
        """Delete some entries that the journal has; what balances say of them stays.

        Returns:
            How many; fewer than `MOST_PRUNED`: no more can go now.
        """
        if copied.ledger != self.id:
            return 0
        which = (copied.through, copied.before, json.dumps(copied.live))
        if copied.is_dry:
            count = self._connection.execute(f"SELECT count(*) FROM entries {_OLD}", which)  # noqa: S608 - constants
            return _whole(count.fetchone()[0])
        # The trigger lets nothing go beyond this number, whoever asks.
        self._connection.execute(
            "UPDATE meta SET value = CAST(max(CAST(value AS INTEGER), ?) AS TEXT)"
            " WHERE key = 'pruned'",
            (copied.through,),
        )
        return self._connection.execute(
            "DELETE FROM entries WHERE sequence IN"  # noqa: S608 - constants
            f" (SELECT sequence FROM entries {_OLD} ORDER BY sequence LIMIT ?)",
            (*which, MOST_PRUNED),
        ).rowcount

    def totals(self, level: str, id_: str) -> Totals:
        """Read one attempt's or run's totals; nothing is known of it: all zero."""
        row = self._connection.execute(
            """SELECT spent_tokens, spent_micro_usd, overrun_tokens, overrun_micro_usd,
                reserved_tokens, reserved_micro_usd, requests
            FROM balances WHERE level = ? AND id = ?""",
            (level, id_),
        ).fetchone()
        if row is None:
            return Totals()
        return Totals(
            spent_tokens=row[0],
            spent_micro_usd=row[1],
            overrun_tokens=row[2],
            overrun_micro_usd=row[3],
            reserved_tokens=row[4],
            reserved_micro_usd=row[5],
            requests=row[6],
        )

    def entries_after(self, sequence: int, limit: int) -> tuple[LedgerEntry, ...]:
        """Read settled entries in their order."""
        rows = self._connection.execute(
            f"SELECT sequence, {_ENTRY} FROM entries"  # noqa: S608 - constants
            " WHERE sequence > ? ORDER BY sequence LIMIT ?",
            (sequence, limit),
        )
        return tuple(self._entry(row) for row in rows)

    def entries_of(self, workspace: WorkspaceId, limit: int) -> tuple[LedgerEntry, ...]:
        """Read one workspace's newest entries and its newest refusal of a budget, in order."""
        rows = self._connection.execute(
            f"SELECT sequence, {_ENTRY} FROM entries"  # noqa: S608 - constants
            " WHERE sequence IN ("
            "  SELECT sequence FROM (SELECT sequence FROM entries"
            "   WHERE workspace = ?1 ORDER BY sequence DESC LIMIT ?2)"
            "  UNION"
            "  SELECT max(sequence) FROM entries WHERE workspace = ?1 AND outcome = ?3"
            " ) ORDER BY sequence",
            (workspace, limit, Outcome.REFUSED_BUDGET.value),
        )
        return tuple(self._entry(row) for row in rows)

    def _add_entry(
        self,
        who: tuple[object, ...],
        settlement: Settlement,
        version: str,
        at: str,
        *,
        is_clamped: bool = False,
    ) -> LedgerEntry:
        tokens = settlement.tokens
        row = (
            *who,
            at,
            *(tokens.input, tokens.cache_read, tokens.cache_write, tokens.cache_write_long),
            *(tokens.output, tokens.reasoning, settlement.micro_usd, version),
            *(int(settlement.is_estimated), settlement.outcome.value, settlement.status),
            *(settlement.first_byte_milliseconds, settlement.detail),
            *(int(is_clamped), settlement.finish.value),
        )
        cursor = self._connection.execute(_ADD_ENTRY, row)
        return self._entry((cursor.lastrowid, *row))

    def _entry(self, row: Sequence[object]) -> LedgerEntry:
        counts = [_whole(value) for value in row[8:14]]
        return LedgerEntry(
            sequence=_whole(row[0]),
            ledger=self.id,
            workspace=WorkspaceId(str(row[1])),
            run=RunId(str(row[2])),
            attempt=AttemptId(str(row[3])),
            agent=str(row[4]),
            provider=str(row[5]),
            model=str(row[6]),
            at=str(row[7]),
            tokens=TokenCounts(
                input=counts[0],
                cache_read=counts[1],
                cache_write=counts[2],
                cache_write_long=counts[3],
                output=counts[4],
                reasoning=counts[5],
            ),
            micro_usd=None if row[14] is None else _whole(row[14]),
            price_version=str(row[15]),
            is_estimated=bool(row[16]),
            outcome=Outcome(str(row[17])),
            status=None if row[18] is None else _whole(row[18]),
            first_byte_milliseconds=None if row[19] is None else _whole(row[19]),
            detail=str(row[20]),
            is_clamped=bool(row[21]),
            finish=Finish(str(row[22])),
        )

    def _value(self, query: str, arguments: tuple[str, ...] = ()) -> object:
        row = self._connection.execute(query, arguments).fetchone()
        return None if row is None else row[0]


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise InternalError(f"cannot read the ledger: {value!r} stands where a number belongs")
    return value


def _refusal(error: Exception) -> InternalError:
    if isinstance(error, InternalError):
        return error
    return InternalError(f"cannot change the ledger: {error}")
