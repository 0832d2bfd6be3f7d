"""The journal: what it acknowledges is there, in order, once, and the same for every reader."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.base.clock import SystemClock
from forkyard.errors import ConflictError, StoreError
from forkyard.model.candidate import Candidate, CandidateStatus, ChangeKind, FileChange
from forkyard.model.events import Entity
from forkyard.model.ids import AttemptId, CandidateId, TemplateId, new_template_id
from forkyard.model.workspace import Template, TemplateSpec, TemplateState
from forkyard.store.database import LOG_PAGES
from forkyard.store.journal import Change, Journal
from forkyard.store.projections import decode, encode, fold, kind_of


def _template(name: str = "t") -> Template:
    return Template(
        id=new_template_id(),
        name=name,
        spec=TemplateSpec(),
        state=TemplateState.APPLIED,
        created_at="2026-01-01",
    )


def _with_journal(home: Path, story: Callable[[Journal], Awaitable[None]]) -> None:
    async def told() -> None:
        journal = Journal.open(home / "state.db", SystemClock(), allow_volatile=True)
        try:
            await story(journal)
        finally:
            journal.close()

    asyncio.run(told())


def test_state_is_the_same_when_journal_is_opened_again(tmp_path: Path) -> None:
    """The kept newest values equal the fold of all events, and the epoch goes up."""
    epochs: list[int] = []
    states: list[list[Entity]] = []

    async def write(journal: Journal) -> None:
        epochs.append(journal.epoch)
        for number in range(5):
            template = _template(f"t{number}")
            await journal.append(template, "applied", expect=None)
            await journal.append(replace(template, state=TemplateState.BUILDING), "building")
        states.append(list(journal.state))

    async def read(journal: Journal) -> None:
        epochs.append(journal.epoch)
        states.append(list(journal.state))
        events = journal.events_after(0)
        assert [event.sequence for event in events] == list(range(1, 11))
        assert fold(event.entity for event in events) == journal.state
        assert [event.note for event in journal.history(events[0].entity.id)] == [
            "applied",
            "building",
        ]

    _with_journal(tmp_path, write)
    _with_journal(tmp_path, read)
    assert epochs == [1, 2]
    assert states[0] == states[1]


def test_nothing_is_written_when_expectation_does_not_hold(tmp_path: Path) -> None:
    """Compare-and-swap refuses a stale value, and a batch is all or nothing."""

    async def story(journal: Journal) -> None:
        first = _template()
        await journal.append(first, expect=None)
        second = replace(first, state=TemplateState.BUILDING)
        await journal.append(second, expect=first)
        with pytest.raises(ConflictError, match="it is building, and was expected to be applied"):
            await journal.append(replace(first, state=TemplateState.READY), expect=first)
        with pytest.raises(ConflictError):
            await journal.append(first, expect=None)
        other = _template("other")
        with pytest.raises(ConflictError):
            await journal.append_all([other, Change(entity=first, expect=None)])
        assert other.id not in journal.state.templates
        assert journal.state.templates[first.id] == second
        assert journal.sequence == 2

    _with_journal(tmp_path, story)


def test_one_wins_when_many_swap_the_same_value(tmp_path: Path) -> None:
    """Within one group commit, too, only one of those who saw the same value gets through."""

    async def story(journal: Journal) -> None:
        first = _template()
        await journal.append(first)

        async def swap(name: str) -> bool:
            try:
                await journal.append(replace(first, name=name), expect=first)
            except ConflictError:
                return False
            return True

        won = await asyncio.gather(*(swap(f"n{number}") for number in range(50)))
        assert won.count(True) == 1
        assert journal.state.templates[first.id].name == f"n{won.index(True)}"

    _with_journal(tmp_path, story)


def test_changes_within_one_request_see_each_other(tmp_path: Path) -> None:
    """A chain of values of one entity is one transaction."""

    async def story(journal: Journal) -> None:
        first = _template()
        second = replace(first, state=TemplateState.BUILDING)
        await journal.append_all(
            [Change(entity=first, expect=None), Change(entity=second, expect=first)]
        )
        assert journal.state.templates[first.id] == second
        assert await journal.append_all([]) == ()

    _with_journal(tmp_path, story)


def test_commits_are_grouped_when_many_write_at_once(tmp_path: Path) -> None:
    """A thousand appends in flight cost far fewer transactions, and each is acknowledged."""

    async def story(journal: Journal) -> None:
        changes = 0

        async def watch() -> None:
            nonlocal changes
            while True:
                await journal.wait_for_change(journal.sequence)
                changes += 1

        watcher = asyncio.create_task(watch())
        await asyncio.sleep(0)
        events = await asyncio.gather(*(journal.append(_template()) for _ in range(1000)))
        watcher.cancel()
        assert sorted(event.sequence for event in events) == list(range(1, 1001))
        assert 0 < changes < 200

    _with_journal(tmp_path, story)


def test_event_is_kept_when_caller_is_cancelled(tmp_path: Path) -> None:
    """Stopping to wait takes nothing back, and hurts nobody else."""

    async def story(journal: Journal) -> None:
        gone = asyncio.create_task(journal.append(_template("gone")))
        await asyncio.sleep(0)
        gone.cancel()
        await journal.append(_template("stays"))
        assert {t.name for t in journal.state.templates.values()} == {"gone", "stays"}

    _with_journal(tmp_path, story)


def test_second_server_is_refused_when_one_runs(tmp_path: Path) -> None:
    """The lock names who holds it, and is free again after a close."""

    async def story(_: Journal) -> None:
        with pytest.raises(StoreError, match="held by process"):
            Journal.open(tmp_path / "state.db", SystemClock(), allow_volatile=True)

    _with_journal(tmp_path, story)
    _with_journal(tmp_path, story)


def test_append_is_refused_when_journal_is_closed(tmp_path: Path) -> None:
    """Nothing waits for ever on a closed journal."""

    async def story() -> None:
        journal = Journal.open(tmp_path / "state.db", SystemClock(), allow_volatile=True)
        journal.close()
        journal.close()
        with pytest.raises(StoreError, match="closed"):
            await journal.append(_template())

    asyncio.run(story())


def test_newer_schema_is_refused_when_opened(tmp_path: Path) -> None:
    """A journal of another version is not touched."""

    async def nothing(_: Journal) -> None:
        return

    _with_journal(tmp_path, nothing)
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="schema 99"):
        _with_journal(tmp_path, nothing)


def test_damaged_file_is_refused_when_opened(tmp_path: Path) -> None:
    """A file that is no database says so in one sentence, and the lock is let go."""
    (tmp_path / "state.db").write_bytes(b"not a database at all" * 500)
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged"):
            Journal.open(tmp_path / "state.db", SystemClock(), allow_volatile=True)


def test_events_stay_when_someone_tries_to_change_them(tmp_path: Path) -> None:
    """The file itself refuses to rewrite history."""

    async def story(journal: Journal) -> None:
        await journal.append(_template())

    _with_journal(tmp_path, story)
    connection = sqlite3.connect(tmp_path / "state.db")
    for statement in ("DELETE FROM events", "UPDATE events SET note = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


PATHS = st.binary(min_size=1, max_size=30).map(lambda raw: raw.decode(errors="surrogateescape"))


@settings(max_examples=200, deadline=None)
@given(paths=st.lists(PATHS, max_size=5), text=st.text(max_size=50))
def test_entity_is_equal_when_read_back(paths: list[str], text: str) -> None:
    """Paths that are no UTF-8, and any text, survive the journal."""
    candidate = Candidate(
        id=CandidateId("cand_0123456789ab"),
        attempt=AttemptId("att_0123456789ab"),
        status=CandidateStatus.COMPLETE,
        base_tree="a",
        result_tree="b",
        patch_sha256="c",
        patch_bytes=1,
        manifest_sha256="d",
        created_at="now",
        files=tuple(
            FileChange(
                path=path,
                kind=ChangeKind.ADDED,
                old_mode=None,
                new_mode="100644",
                old_blob=None,
                new_blob="e",
            )
            for path in paths
        ),
        problems=(text,),
        facts={text: text},
    )
    assert decode(kind_of(candidate), encode(candidate)) == candidate


def test_unknown_kind_is_refused_when_read() -> None:
    """An entry of a newer version is never half understood."""
    with pytest.raises(StoreError, match="'hologram'"):
        decode("hologram", "{}")
    with pytest.raises(StoreError, match="'template'"):
        decode("template", '{"id": 3}')


def test_lookups_skip_what_is_deleted() -> None:
    """A name belongs to the newest thing that is still there."""
    old = replace(_template("name"), state=TemplateState.DELETED)
    new = _template("name")
    state = fold([new, old])
    assert state.template_named("name") == new
    assert state.template_named("other") is None
    assert TemplateId(old.id) in state.templates


def test_log_keeps_its_length_when_many_write(tmp_path: Path) -> None:
    """It is written once and then over again: a file that grows makes commits wait longer."""
    log = tmp_path / "state.db-wal"
    found: list[int] = []

    async def story(journal: Journal) -> None:
        found.append(log.stat().st_size)
        for _ in range(3 * LOG_PAGES):
            await journal.append(_template())
        found.append(log.stat().st_size)

    _with_journal(tmp_path, story)

    assert found[0] >= LOG_PAGES * 4096
    assert found[1] < 1.1 * found[0]
