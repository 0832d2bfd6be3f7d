"""Whose workspaces are abandoned: those of clients that were away for the whole grace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from forkyard.base.clock import SystemClock
from forkyard.model.ids import new_snapshot_id, new_workspace_id
from forkyard.model.workspace import Environment, Limits, Workspace, WorkspaceState
from forkyard.server.services import WorkspaceService
from forkyard.server.sessions import Sessions, is_a_persons, owner_of
from forkyard.store.journal import Journal

pytestmark = pytest.mark.anyio


@dataclass(slots=True)
class FakeClock:
    """A clock that is set by hand."""

    seconds: float = 0.0

    def now(self) -> str:
        """Give no particular time."""
        return ""

    def monotonic(self) -> float:
        """Give the seconds that were set."""
        return self.seconds


@dataclass(slots=True, kw_only=True)
class Watch:
    """Sessions over a real journal and a clock that is set by hand."""

    journal: Journal
    sessions: Sessions
    clock: FakeClock = field(default_factory=FakeClock)


@pytest.fixture
async def watch(tmp_path: Path) -> AsyncIterator[Watch]:
    """Open a journal."""
    journal = Journal.open(tmp_path / "state.db", SystemClock(), allow_volatile=True)
    clock = FakeClock()
    nobody = cast("WorkspaceService", None)
    sessions = Sessions(journal=journal, workspaces=nobody, clock=clock, grace_seconds=20.0)
    yield Watch(journal=journal, sessions=sessions, clock=clock)
    journal.close()


async def add(journal: Journal, owner: str | None, *, ephemeral: bool = True) -> Workspace:
    """Journal a workspace."""
    row = Workspace(
        id=new_workspace_id(),
        snapshot=new_snapshot_id(),
        layers=(),
        environment=Environment(),
        limits=Limits(),
        state=WorkspaceState.STOPPED,
        created_at="",
        ephemeral=ephemeral,
        owner=owner,
    )
    await journal.append(row)
    return row


async def test_a_client_that_is_there_keeps_its_workspaces(watch: Watch) -> None:
    """However long; and once it goes, the grace begins."""
    made = await add(watch.journal, owner_of("abcdefgh"))
    stream = watch.sessions.hold("abcdefgh", asyncio.Event())
    await anext(stream)
    watch.clock.seconds = 1000.0
    assert watch.sessions.abandoned() == ()

    await stream.aclose()  # type: ignore[attr-defined] # it is a generator
    assert watch.sessions.abandoned() == ()
    watch.clock.seconds = 1019.9
    assert watch.sessions.abandoned() == ()
    watch.clock.seconds = 1020.0
    assert watch.sessions.abandoned() == (made.id,)


async def test_a_client_that_comes_back_in_time_starts_a_new_count(watch: Watch) -> None:
    """As after a server's restart."""
    await add(watch.journal, owner_of("abcdefgh"))
    assert watch.sessions.abandoned() == ()
    watch.clock.seconds = 19.0
    stream = watch.sessions.hold("abcdefgh", asyncio.Event())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    watch.clock.seconds = 38.0
    assert watch.sessions.abandoned() == ()


async def test_nothing_else_is_ever_abandoned(watch: Watch) -> None:
    """Not a person's own, not one of an attempt, not one that is gone."""
    await add(watch.journal, None)
    await add(watch.journal, owner_of("abcdefgh"), ephemeral=False)
    attempt = await add(watch.journal, "att_0123456789ab")
    gone = await add(watch.journal, owner_of("abcdefgh"))
    await watch.journal.append(replace(gone, state=WorkspaceState.DELETED))
    watch.sessions.abandoned()
    watch.clock.seconds = 1000.0

    assert watch.sessions.abandoned() == ()
    assert not is_a_persons(attempt)
    assert is_a_persons(gone)
