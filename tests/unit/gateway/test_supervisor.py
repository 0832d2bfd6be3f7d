"""The server's side of the gateway: what it keeps when a gateway does not do as it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakes.gateway_process import FakeProcess, fake_process
from forkyard.config import Layout
from forkyard.errors import ConfigError, ForkyardError, GatewayError, StoreError
from forkyard.gateway.interface import GatewaySettings, GrantStatus, RunStatus
from forkyard.gateway.supervisor import LEDGER_FILE, Supervisor
from forkyard.model.budget import Budget, Grant
from gateways import grant_for

PATIENCE = 30.0


def run(scene: Callable[[], Awaitable[None]]) -> None:
    """Tell a scene."""

    async def told() -> None:
        async with asyncio.timeout(PATIENCE):
            await scene()

    asyncio.run(told())


def supervisor_for(layout: Layout) -> Supervisor:
    """Make a server's side without providers."""
    layout.gateway.mkdir(parents=True, exist_ok=True)
    layout.gateway_log.parent.mkdir(parents=True, exist_ok=True)
    return Supervisor(
        layout, settings=lambda: GatewaySettings(providers=()), secrets=lambda _: None
    )


def status_of(grant: Grant) -> GrantStatus:
    """Say that a workspace does nothing."""
    return GrantStatus(
        workspace=grant.workspace,
        run=grant.run,
        attempt=grant.attempt,
        spent_tokens=1,
        spent_micro_usd=1,
        reserved_tokens=0,
        reserved_micro_usd=0,
        requests=1,
        in_flight=0,
        waiting=0,
        queue_position=None,
        refused=0,
    )


@asynccontextmanager
async def pair(home: Path) -> AsyncIterator[tuple[Supervisor, FakeProcess]]:
    """Have a server's side, and what answers it."""
    layout = Layout(home)
    async with fake_process(layout) as process:
        supervisor = supervisor_for(layout)
        try:
            yield supervisor, process
        finally:
            await supervisor.close()


@pytest.mark.parametrize("trouble", [StoreError("cannot write: I/O"), GatewayError("no")])
def test_grant_is_said_to_the_next_gateway_when_one_could_not_take_it(
    tmp_path: Path, trouble: ForkyardError
) -> None:
    """A broken ledger is the gateway's trouble, not the journal's, and the grant stands."""

    async def scene() -> None:
        async with pair(tmp_path) as (supervisor, process):
            process.troubles["grant"] = trouble
            grant = grant_for()
            with pytest.raises(GatewayError):
                await supervisor.grant(grant)
            process.troubles.clear()
            said = process.count("grant")
            process.die()
            again = (await process.until_heard("grant", said + 1))[-1]
            assert again["grant"]["workspace"] == grant.workspace

    run(scene)


def test_grant_is_forgotten_when_its_settings_are_wrong(tmp_path: Path) -> None:
    """The next gateway is told the others only."""

    async def scene() -> None:
        async with pair(tmp_path) as (supervisor, process):
            process.troubles["grant"] = ConfigError("no price")
            with pytest.raises(ConfigError):
                await supervisor.grant(grant_for())
            process.troubles.clear()
            good = grant_for()
            await supervisor.grant(good)
            said = process.count("grant")
            process.die()
            again = (await process.until_heard("grant", said + 1))[said]
            assert again["grant"]["workspace"] == good.workspace

    run(scene)


def test_revoke_is_a_gateways_trouble_when_its_ledger_is_broken(tmp_path: Path) -> None:
    """Only the journal's own StoreError may be taken for the journal's."""

    async def scene() -> None:
        async with pair(tmp_path) as (supervisor, process):
            (Layout(tmp_path).gateway / LEDGER_FILE).touch()
            grant = grant_for()
            await supervisor.grant(grant)
            process.troubles["revoke"] = StoreError("cannot write: I/O")
            with pytest.raises(GatewayError):
                await supervisor.revoke(grant.workspace)

    run(scene)


def test_gateway_is_tried_again_when_none_could_be_started(tmp_path: Path) -> None:
    """The system refuses a process once; the grant reaches the gateway that comes later."""

    async def scene() -> None:
        layout = Layout(tmp_path)
        supervisor = supervisor_for(layout)
        layout.gateway_log.mkdir()  # whatever needs it cannot be started
        grant = grant_for()
        try:
            with pytest.raises(GatewayError):
                await supervisor.grant(grant)
            async with fake_process(layout) as process:
                said = (await process.until_heard("grant", 1))[0]
                assert said["grant"]["workspace"] == grant.workspace
                await supervisor.close()
        finally:
            await supervisor.close()

    run(scene)


def test_status_of_a_run_is_forgotten_when_its_last_grant_is_revoked(tmp_path: Path) -> None:
    """A run that is over spends nothing live."""

    async def scene() -> None:
        async with pair(tmp_path) as (supervisor, process):
            first = grant_for()
            second = grant_for(run=first.run)
            await supervisor.grant(first)
            await supervisor.grant(second)
            changes = supervisor.changes()
            process.tell(
                RunStatus(
                    run=first.run,
                    budget=Budget(),
                    spent_tokens=1,
                    spent_micro_usd=1,
                    reserved_tokens=0,
                    reserved_micro_usd=0,
                    grants=(status_of(second),),
                )
            )
            assert (await anext(changes)).run == first.run
            await supervisor.revoke(first.workspace)
            assert supervisor.status(first.run) is not None
            await supervisor.revoke(second.workspace)
            assert supervisor.status(first.run) is None

    run(scene)
