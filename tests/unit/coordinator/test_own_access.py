"""People's own workspaces at the gateway: who runs is let in, who does not is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.gateway import FakeGateway
from forkyard.base.clock import SystemClock
from forkyard.coordinator.own_access import OwnAccess
from forkyard.coordinator.usage import UsageCopier
from forkyard.model.budget import Budget
from forkyard.model.ids import SnapshotId, new_workspace_id
from forkyard.model.workspace import (
    Environment,
    Limits,
    NetworkPolicy,
    Workspace,
    WorkspaceState,
)
from forkyard.store.journal import Journal

pytestmark = pytest.mark.anyio


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    """Open a journal."""
    opened = Journal.open(tmp_path / "state.db", SystemClock(), allow_volatile=True)
    yield opened
    opened.close()


async def add(
    journal: Journal,
    *,
    network: NetworkPolicy = NetworkPolicy.GATEWAY,
    state: WorkspaceState = WorkspaceState.RUNNING,
    owner: str | None = None,
) -> Workspace:
    """Have a workspace."""
    row = Workspace(
        id=new_workspace_id(),
        snapshot=SnapshotId("snap_000000000000"),
        layers=(),
        environment=Environment(),
        limits=Limits(),
        state=state,
        created_at="now",
        display_name="mine",
        network=network,
        owner=owner,
        budget=Budget(tokens=9),
    )
    await journal.append(row, "created", expect=None)
    return row


def own_access(journal: Journal, gateway: FakeGateway) -> OwnAccess:
    """Make what is tested."""
    return OwnAccess(
        journal=journal,
        gateway=gateway,
        usage=UsageCopier(journal=journal, gateway=gateway),
        is_a_persons=lambda row: row.owner is None,
    )


async def test_workspace_is_let_in_once_when_it_runs(journal: Journal) -> None:
    """With its budget and name; one that is stopped, or a run's, or has no such network, is not."""
    gateway = FakeGateway()
    row = await add(journal)
    await add(journal, state=WorkspaceState.STOPPED)
    await add(journal, network=NetworkPolicy.NONE)
    await add(journal, owner="att_000000000000")
    access = own_access(journal, gateway)
    await access.look()
    await access.look()
    assert [one.workspace for one in gateway.granted] == [row.id]
    assert gateway.granted[0].attempt_budget == Budget(tokens=9)
    assert gateway.granted[0].agent == "mine"


async def test_workspace_has_the_same_names_when_another_server_lets_it_in(
    journal: Journal,
) -> None:
    """So that its budget goes on where it was."""
    gateway = FakeGateway()
    await add(journal)
    for _ in range(2):
        await own_access(journal, gateway).look()
    first, second = gateway.granted
    assert first == second


async def test_spending_is_copied_when_the_workspace_has_stopped(journal: Journal) -> None:
    """And it is let in again when it starts again."""
    gateway = FakeGateway()
    row = await add(journal)
    access = own_access(journal, gateway)
    await access.look()
    gateway.settle(gateway.granted[0])
    await journal.append(replace(row, state=WorkspaceState.STOPPED), "stopped")
    await access.look()
    assert gateway.revoked == [row.id]
    assert [one.agent for one in journal.state.usage.values()] == ["mine"]
    await journal.append(row, "started")
    await access.look()
    assert len(gateway.granted) == 2


async def test_letting_in_is_tried_again_when_there_was_no_gateway(journal: Journal) -> None:
    """Who asks meanwhile waits."""
    gateway = FakeGateway(trouble="there is none")
    await add(journal)
    access = own_access(journal, gateway)
    await access.look()
    await access.look()
    assert gateway.granted == []
    gateway.trouble = None
    await access.look()
    assert len(gateway.granted) == 1
