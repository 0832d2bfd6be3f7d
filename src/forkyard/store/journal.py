"""The append-only truth: every change of state goes through here, and is on disk when told so.

One writer at a time. Whatever is queued while its thread waits for the disk goes into the next
transaction as one (group commit), so that many attempts at once cost one fsync, not many; a lone
append on a disk that answers in a millisecond or two is written where it is asked for, since
waking a thread and being woken by it takes longer than that. The in-memory state changes only
after the commit, on the event loop: a reader never sees what a crash could undo.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from forkyard.base.clock import Clock
from forkyard.errors import ConflictError, ForkyardError, InternalError, StoreError
from forkyard.model.events import Entity, Event
from forkyard.store.database import ServerLock, connect, is_full, open_database, store_error
from forkyard.store.projections import State, decode, encode, fold, key_of
from forkyard.store.reserve import Reserve

MOST_PER_COMMIT = 256
"""Bounds how long one slow batch holds back the answer to its first member."""

INLINE_SECONDS = 0.003
"""Commits that take less, on the average, may hold up the event loop when nothing is queued."""
_WEIGHT = 0.2
"""Of the newest commit in that average: a disk that turns slow is noticed within a few."""

_FSYNC_FAILED = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
"""The kernel may have dropped the dirty pages: trying again would lie, so the journal stops."""


class Expect(Enum):
    """What an append expects of the entity's previous value, where it is no value itself."""

    ANYTHING = "anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One new value, and what must be the previous one."""

    entity: Entity
    note: str = ""
    expect: Entity | Expect | None = Expect.ANYTHING
    """The very value that is replaced; None: it must not exist yet."""


@dataclass(slots=True)
class _Request:
    changes: tuple[Change, ...]
    bodies: tuple[str, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[tuple[Event, ...]]
    events: tuple[Event, ...] = ()
    error: ForkyardError | None = None


class Journal:
    """See the module. Made by `open`; ended by `close`."""

    def __init__(
        self,
        *,
        database: Path,
        clock: Clock,
        connection: sqlite3.Connection,
        epoch: int,
        lock: ServerLock,
        reserve: Reserve | None = None,
    ) -> None:
        """Read the newest values and start the writer; use `open` instead."""
        self.epoch = epoch
        """Number of this opening: commands of an older server can be told apart."""
        self._database = database
        self._clock = clock
        self._connection = connection
        self._lock = lock
        self._reserve = reserve
        self._newest: dict[tuple[str, str], Entity] = {}
        rows = connection.execute("SELECT kind, body FROM entities ORDER BY born")
        for kind, body in rows:
            entity = decode(kind, body)
            self._newest[key_of(entity)] = entity
        self.state: State = fold(self._newest.values())
        self.sequence: int = connection.execute(
            "SELECT coalesce(max(sequence), 0) FROM events"
        ).fetchone()[0]
        """Of the newest event that `state` contains."""
        self._reader = connect(database, read_only=True)
        self._reading = threading.Lock()
        self._changed = asyncio.Event()
        self._pending = 0
        self._commit_seconds = INLINE_SECONDS / 2
        self._broken: StoreError | None = None
        self._closed = False
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="journal", daemon=True)
        self._writer.start()

    @classmethod
    def open(
        cls,
        database: Path,
        clock: Clock,
        *,
        allow_volatile: bool = False,
        reserve: Reserve | None = None,
    ) -> Self:
        """Take the lock beside the database, open it, check it, and read the state.

        Args:
            database: The file; its lock is the same name with the suffix ``.lock``.
            clock: For the times that people read.
            allow_volatile: Allow a file system in memory; for tests.
            reserve: Given up when the disk is full, here and while the journal is open.

        Raises:
            StoreError: Held by another server, damaged, too new, or on an unfit file system.
        """
        try:
            database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = ServerLock.take(database.with_suffix(".lock"))
        except OSError as error:
            raise store_error("open", error) from error
        try:
            connection, epoch = open_database(database, allow_volatile=allow_volatile)
            try:
                return cls(
                    database=database,
                    clock=clock,
                    connection=connection,
                    epoch=epoch,
                    lock=lock,
                    reserve=reserve,
                )
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Write what is queued, then let go of the file and the lock."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._writer.join()
        with self._reading:
            self._reader.close()
        self._connection.close()
        self._lock.release()

    async def append(
        self,
        entity: Entity,
        note: str = "",
        expect: Entity | Expect | None = Expect.ANYTHING,
    ) -> Event:
        """Make one value the newest of its entity.

        Args:
            entity: The whole new value.
            note: What happened, in a few words.
            expect: The previous value, for compare-and-swap; None: it must not exist yet.

        Raises:
            ConflictError: The entity's value is not the expected one; nothing was written.
            StoreError: The disk refused; nothing was written.

        Cancellation:
            The event may still be written.

        Durability:
            On disk, and in `state`, when this returns.
        """
        events = await self.append_all([Change(entity=entity, note=note, expect=expect)])
        return events[0]

    async def append_all(
        self, changes: Sequence[Change | Entity], note: str = ""
    ) -> tuple[Event, ...]:
        """Append several values in one transaction: all of them, or none.

        Raises, Cancellation and Durability are those of `append`.
        """
        if self._closed:
            raise StoreError("cannot write the journal: it is closed")
        wanted = tuple(
            change if isinstance(change, Change) else Change(entity=change, note=note)
            for change in changes
        )
        if not wanted:
            return ()
        loop = asyncio.get_running_loop()
        request = _Request(
            changes=wanted,
            bodies=tuple(encode(change.entity) for change in wanted),
            loop=loop,
            done=loop.create_future(),
        )
        if self._pending == 0 and self._commit_seconds < INLINE_SECONDS:
            # Nothing is queued or on its way into `state`, so the thread sleeps and order holds.
            self._pending += 1
            self._commit_guarded([request])
            self._take_in([request])
        else:
            self._pending += 1
            self._queue.put(request)
        return await request.done

    def events_after(self, sequence: int, *, limit: int = 1000) -> tuple[Event, ...]:
        """Read the events past a sequence number, oldest first, at most `limit` of them."""
        with self._reading:
            rows = self._reader.execute(
                "SELECT sequence, at, kind, body, note FROM events"
                " WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (sequence, limit),
            ).fetchall()
        return tuple(
            Event(sequence=number, at=at, entity_kind=kind, entity=decode(kind, body), note=note)
            for number, at, kind, body, note in rows
        )

    def history(self, entity_id: str) -> tuple[Event, ...]:
        """Read every event of one entity, oldest first."""
        with self._reading:
            rows = self._reader.execute(
                "SELECT sequence, at, kind, body, note FROM events WHERE id = ? ORDER BY sequence",
                (entity_id,),
            ).fetchall()
        return tuple(
            Event(sequence=number, at=at, entity_kind=kind, entity=decode(kind, body), note=note)
            for number, at, kind, body, note in rows
        )

    async def wait_for_change(self, after_sequence: int) -> int:
        """Wait until `state` contains an event past a sequence number; give the newest one.

        Cancellation:
            Safe at any point.
        """
        while self.sequence <= after_sequence:
            await self._changed.wait()
        return self.sequence

    # -- the writer thread -------------------------------------------------------------------

    def _write(self) -> None:
        more = True
        while more:
            first = self._queue.get()
            if first is None:
                return
            batch = [first]
            for request in self._queued():
                if request is None:
                    more = False
                    break
                batch.append(request)
                if len(batch) >= MOST_PER_COMMIT:
                    break
            self._commit_guarded(batch)
            self._publish(batch)

    def _commit_guarded(self, batch: list[_Request]) -> None:
        began = time.perf_counter()
        try:
            self._commit(batch)
        except Exception as error:  # noqa: BLE001 - a dead writer would leave all callers waiting
            for request in batch:
                request.events = ()
                request.error = InternalError(f"cannot write the journal: {error!r}")
        took = time.perf_counter() - began
        self._commit_seconds += _WEIGHT * (took - self._commit_seconds)

    def _queued(self) -> Iterator[_Request | None]:
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def _commit(self, batch: list[_Request]) -> None:
        try:
            try:
                self._transact(batch)
            except sqlite3.Error as error:
                if not is_full(error) or self._reserve is None or not self._reserve.release():
                    raise
                for request in batch:
                    request.events, request.error = (), None
                self._transact(batch)
        except (sqlite3.Error, StoreError) as error:
            refused = store_error("write", error) if isinstance(error, sqlite3.Error) else error
            if getattr(error, "sqlite_errorcode", None) in _FSYNC_FAILED:
                self._broken = StoreError(
                    "cannot write the journal: the disk did not keep an earlier write",
                    hint="Check the disk, then start the server again.",
                )
                refused = self._broken
            for request in batch:
                if request.error is None:
                    request.error = refused
                request.events = ()

    def _transact(self, batch: list[_Request]) -> None:
        overlay: dict[tuple[str, str], Entity] = {}
        if self._broken is not None:
            raise self._broken
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for request in batch:
                self._insert(request, overlay)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._newest.update(overlay)

    def _insert(self, request: _Request, overlay: dict[tuple[str, str], Entity]) -> None:
        mine: dict[tuple[str, str], Entity] = {}
        for change in request.changes:
            key = key_of(change.entity)
            if change.expect is not Expect.ANYTHING:
                current = mine.get(key) or overlay.get(key) or self._newest.get(key)
                if current != change.expect:
                    request.error = _conflict(change, current)
                    return
            mine[key] = change.entity
        events: list[Event] = []
        for change, body in zip(request.changes, request.bodies, strict=True):
            kind, name = key_of(change.entity)
            at = self._clock.now()
            note = change.note.encode(errors="backslashreplace").decode()
            number = self._connection.execute(
                "INSERT INTO events (at, kind, id, body, note) VALUES (?, ?, ?, ?, ?)",
                (at, kind, name, body, note),
            ).lastrowid
            if number is None:
                raise StoreError("cannot write the journal: SQLite gave the event no number")
            self._connection.execute(
                "INSERT INTO entities (kind, id, sequence, born, body) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (kind, id) DO UPDATE SET"
                " sequence = excluded.sequence, body = excluded.body",
                (kind, name, number, number, body),
            )
            events.append(
                Event(sequence=number, at=at, entity_kind=kind, entity=change.entity, note=note)
            )
        overlay.update(mine)
        request.events = tuple(events)

    def _publish(self, batch: list[_Request]) -> None:
        try:
            batch[0].loop.call_soon_threadsafe(self._take_in, batch)
        except RuntimeError:
            # the loop is closed: nobody waits any more; the events are on disk
            return

    # -- on the event loop -------------------------------------------------------------------

    def _take_in(self, batch: list[_Request]) -> None:
        self._pending -= len(batch)
        for request in batch:
            for event in request.events:
                self.state.apply(event.entity)
                self.sequence = event.sequence
        for request in batch:
            if request.done.cancelled():
                continue
            if request.error is not None:
                request.done.set_exception(request.error)
            else:
                request.done.set_result(request.events)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _conflict(change: Change, current: Entity | None) -> ConflictError:
    kind, name = key_of(change.entity)
    now = "absent" if current is None else getattr(current, "state", "changed meanwhile")
    was = "absent" if change.expect is None else getattr(change.expect, "state", "as read")
    return ConflictError(
        f"cannot change {kind} {name}: it is {now}, and was expected to be {was}",
        hint="Look at it again; someone else changed it in between.",
    )
