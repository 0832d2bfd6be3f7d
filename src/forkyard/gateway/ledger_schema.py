"""The ledger's tables, what they refuse by themselves, and how the file is opened.

`balances` has a row per attempt and per run; its CHECKs make it impossible to spend or reserve
more than the limit, whoever asks. `reservations` is what is in flight now. `entries` is what is
settled: numbered in the order of settlement, never changed, and removed only up to the number
in `meta` under `pruned`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import uuid
from pathlib import Path

from forkyard.errors import StoreError

SCHEMA_VERSION = "2"

FIRST_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",
    """CREATE TABLE balances (
        level TEXT NOT NULL CHECK (level IN ('attempt', 'run')),
        id TEXT NOT NULL,
        limit_tokens INTEGER,
        limit_micro_usd INTEGER,
        spent_tokens INTEGER NOT NULL DEFAULT 0 CHECK (spent_tokens >= 0),
        spent_micro_usd INTEGER NOT NULL DEFAULT 0 CHECK (spent_micro_usd >= 0),
        overrun_tokens INTEGER NOT NULL DEFAULT 0 CHECK (overrun_tokens >= 0),
        overrun_micro_usd INTEGER NOT NULL DEFAULT 0 CHECK (overrun_micro_usd >= 0),
        reserved_tokens INTEGER NOT NULL DEFAULT 0 CHECK (reserved_tokens >= 0),
        reserved_micro_usd INTEGER NOT NULL DEFAULT 0 CHECK (reserved_micro_usd >= 0),
        requests INTEGER NOT NULL DEFAULT 0 CHECK (requests >= 0),
        PRIMARY KEY (level, id),
        CHECK (limit_tokens IS NULL OR spent_tokens + reserved_tokens <= limit_tokens),
        CHECK (limit_micro_usd IS NULL
               OR spent_micro_usd + reserved_micro_usd <= limit_micro_usd)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE reservations (
        id TEXT PRIMARY KEY,
        workspace TEXT NOT NULL,
        run TEXT NOT NULL,
        attempt TEXT NOT NULL,
        agent TEXT NOT NULL,
        provider TEXT NOT NULL,
        model TEXT NOT NULL,
        input_tokens INTEGER NOT NULL CHECK (input_tokens >= 0),
        output_tokens INTEGER NOT NULL CHECK (output_tokens >= 0),
        micro_usd INTEGER CHECK (micro_usd >= 0),
        price_version TEXT NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE entries (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        workspace TEXT NOT NULL,
        run TEXT NOT NULL,
        attempt TEXT NOT NULL,
        agent TEXT NOT NULL,
        provider TEXT NOT NULL,
        model TEXT NOT NULL,
        at TEXT NOT NULL,
        input INTEGER NOT NULL,
        cache_read INTEGER NOT NULL,
        cache_write INTEGER NOT NULL,
        cache_write_long INTEGER NOT NULL,
        output INTEGER NOT NULL,
        reasoning INTEGER NOT NULL,
        micro_usd INTEGER,
        price_version TEXT NOT NULL,
        is_estimated INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        status INTEGER,
        first_byte_milliseconds INTEGER,
        detail TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX entries_of_workspace ON entries (workspace, sequence)",
    """CREATE TRIGGER entries_stay BEFORE DELETE ON entries
        BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END""",
    """CREATE TRIGGER entries_same BEFORE UPDATE ON entries
        BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END""",
)
_TO_SECOND = (
    "ALTER TABLE reservations ADD COLUMN is_clamped INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE entries ADD COLUMN is_clamped INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE entries ADD COLUMN finish TEXT NOT NULL DEFAULT ''",
    "INSERT INTO meta VALUES ('pruned', '0')",
    "DROP TRIGGER entries_stay",
    """CREATE TRIGGER entries_stay BEFORE DELETE ON entries
        WHEN OLD.sequence > (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'pruned')
        BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END""",
    "UPDATE meta SET value = '2' WHERE key = 'schema'",
)


def take_lock(path: Path) -> int:
    """Make this process the only one that has the file; the kernel drops the lock with it.

    Raises:
        StoreError: Another process holds it.
    """
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StoreError(
            f"cannot open the ledger {path}: another gateway holds it",
            hint="Wait until the other gateway has ended; it ends when its server tells it to.",
        ) from error
    return lock


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check the file, make its tables where it is new, and bring it up to this version.

    Raises:
        StoreError: It is damaged, or of another version.
    """
    problems = [row[0] for row in connection.execute("PRAGMA quick_check")]
    if problems != ["ok"]:
        raise StoreError(
            f"cannot trust the ledger {path}: {problems[0]}",
            hint="Restore the file from a backup; nothing was changed in it.",
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
            for statement in FIRST_SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('schema', '1')")
            connection.execute("INSERT INTO meta VALUES ('ledger', ?)", (uuid.uuid4().hex,))
        if _schema(connection) == "1":
            for statement in _TO_SECOND:
                connection.execute(statement)
        _refuse_other_schema(connection, path)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _refuse_other_schema(connection: sqlite3.Connection, path: Path) -> None:
    found = _schema(connection)
    if found != SCHEMA_VERSION:
        raise StoreError(
            f"cannot read the ledger {path}: schema {found}, expected {SCHEMA_VERSION}",
            hint="Use the version of Forkyard that wrote it, or a newer one.",
        )


def _schema(connection: sqlite3.Connection) -> str:
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    return "none" if row is None else str(row[0])


def ledger_error(action: str, error: sqlite3.Error | OSError) -> StoreError:
    """Say in our words what SQLite or the kernel refused."""
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreError(
            f"cannot {action} the ledger: the disk is full",
            hint="Free space on the file system of the state directory; agents wait or are told.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(
            f"cannot {action} the ledger: the file is damaged ({error})",
            hint="Restore the file from a backup; nothing was changed in it.",
        )
    return StoreError(
        f"cannot {action} the ledger: {error}",
        hint="Look at the disk and the permissions of the state directory.",
    )
