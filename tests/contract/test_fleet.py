"""What every fleet keeps to, and its fake: the rules of `workspace/interface.py`.

A new way to isolate adds itself to `FLEETS` and passes. What only a real one can show (limits,
hardening, signals that do not reach) is in tests/integration/test_fleet.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.fleet import FakeFleet
from forkyard.model.execution import ExecSpec, StopReason
from forkyard.model.ids import new_exec_id, new_workspace_id
from forkyard.workspace.interface import Fleet, SandboxSpec
from sandboxes import PATH, describe, make_layer, open_fleet, prepare

pytestmark = pytest.mark.anyio

SEVEN = "echo said; exit 7"
LONG = "echo began; sleep 31417001"


@dataclass(slots=True)
class Ground:
    """One machine with a fleet, and how to ask for things on it."""

    fleet: Fleet
    describe: Callable[[int], SandboxSpec]
    """A fresh workspace in a slot."""

    async def box(self, slot: int = 0) -> SandboxSpec:
        """Have a sandbox."""
        spec = self.describe(slot)
        await self.fleet.start(spec)
        return spec

    @staticmethod
    def command(spec: SandboxSpec, script: str) -> ExecSpec:
        """Describe a command in it."""
        return ExecSpec(
            id=new_exec_id(),
            workspace=spec.workspace,
            argv=("/bin/sh", "-c", script),
            working_directory="/workspace/repo",
            variables={"PATH": PATH},
            timeout_seconds=60.0,
            grace_seconds=0.2,
        )


@asynccontextmanager
async def fake(home: Path) -> AsyncIterator[Ground]:
    """Give the fake, scripted to do what the commands say."""
    layout = prepare(home)
    fleet = FakeFleet(layout)
    fleet.script("exit 7", exit_code=7, stdout=b"said\n")
    fleet.script("sleep 31417001", stdout=b"began\n", held=asyncio.Event())
    layer = make_layer(layout, {"file": "content"})
    yield Ground(fleet, lambda slot: describe(layout, layer, slot=slot))


@asynccontextmanager
async def local(home: Path) -> AsyncIterator[Ground]:
    """Give sandboxes of this machine."""
    async with open_fleet(home) as (fleet, layout):
        layer = make_layer(layout, {"file": "content"})
        yield Ground(fleet, lambda slot: describe(layout, layer, slot=slot))


FLEETS: dict[str, Callable[[Path], AbstractAsyncContextManager[Ground]]] = {
    "fake": fake,
    "local": local,
}


@pytest.fixture(params=FLEETS)
async def ground(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Ground]:
    """Give each of them in turn."""
    async with FLEETS[request.param](home) as made:
        yield made


async def test_a_sandbox_is_there_once_when_it_is_asked_for_twice(ground: Ground) -> None:
    """`start` is idempotent by workspace and epoch."""
    spec = await ground.box()
    await asyncio.gather(ground.fleet.start(spec), ground.fleet.start(spec))
    (found,) = await ground.fleet.running()
    assert (found.workspace, found.epoch, found.execs) == (spec.workspace, 1, ())


async def test_a_command_that_fails_is_a_result(ground: Ground) -> None:
    """Status and output are its own; its record is durable."""
    spec = await ground.box()
    command = ground.command(spec, SEVEN)
    assert ground.fleet.recorded_result(spec.workspace, command.id) is None
    result = await ground.fleet.exec(command, epoch=1)
    assert (result.stop_reason, result.exit_code) == (StopReason.EXITED, 7)
    async with asyncio.timeout(20):  # told at once, and on disk soon after
        while (recorded := ground.fleet.recorded_result(spec.workspace, command.id)) is None:
            await asyncio.sleep(0.01)
    assert (recorded.stop_reason, recorded.exit_code) == (StopReason.EXITED, 7)


async def test_a_command_runs_once_when_it_is_asked_for_again(ground: Ground) -> None:
    """`exec` is idempotent by id: while it runs, and after it ended."""
    spec = await ground.box()
    command = ground.command(spec, SEVEN)
    first, second = await asyncio.gather(
        ground.fleet.exec(command, epoch=1), ground.fleet.exec(command, epoch=1)
    )
    third = await ground.fleet.exec(command, epoch=1)
    assert first == second == third


async def test_a_command_is_interrupted_when_there_is_no_sandbox_of_that_epoch(
    ground: Ground,
) -> None:
    """It did not run, which is nobody's failure but ours; it is no result that stays."""
    spec = ground.describe(0)
    command = ground.command(spec, SEVEN)
    lost = await ground.fleet.exec(command, epoch=1)
    assert (lost.stop_reason, lost.exit_code) == (StopReason.INTERRUPTED, None)
    await ground.fleet.start(spec)
    lost = await ground.fleet.exec(command, epoch=2)
    assert lost.stop_reason is StopReason.INTERRUPTED
    assert ground.fleet.recorded_result(spec.workspace, command.id) is None
    assert (await ground.fleet.exec(command, epoch=1)).exit_code == 7


async def test_a_command_goes_on_when_nobody_waits_for_it(ground: Ground) -> None:
    """Cancelling a call ends the wait; asking again attaches, and only then it is killed."""
    spec = await ground.box()
    command = ground.command(spec, LONG)
    waiting = asyncio.create_task(ground.fleet.exec(command, epoch=1))
    await _until_running(ground, command)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await _until_running(ground, command)
    again = asyncio.create_task(ground.fleet.exec(command, epoch=1))
    await asyncio.sleep(0)
    await ground.fleet.kill_exec(spec.workspace, command.id, epoch=1)
    assert (await again).stop_reason is StopReason.KILLED
    (found,) = await ground.fleet.running()
    assert found.execs == ()


async def test_killing_is_fine_when_there_is_nothing_to_kill(ground: Ground) -> None:
    """Ended, never begun, of another epoch, or of no sandbox at all."""
    spec = await ground.box()
    command = ground.command(spec, SEVEN)
    result = await ground.fleet.exec(command, epoch=1)
    await ground.fleet.kill_exec(spec.workspace, command.id, epoch=1)
    await ground.fleet.kill_exec(spec.workspace, new_exec_id(), epoch=1)
    await ground.fleet.kill_exec(spec.workspace, command.id, epoch=5)
    await ground.fleet.kill_exec(new_workspace_id(), new_exec_id(), epoch=1)
    assert await ground.fleet.exec(command, epoch=1) == result


async def test_everything_in_it_ends_when_a_sandbox_stops(ground: Ground) -> None:
    """Whoever waits for a command is told; stopping again, or what never ran, is fine."""
    spec = await ground.box()
    command = ground.command(spec, LONG)
    waiting = asyncio.create_task(ground.fleet.exec(command, epoch=1))
    await _until_running(ground, command)
    await ground.fleet.stop(spec.workspace, epoch=1)
    assert (await waiting).stop_reason in {StopReason.KILLED, StopReason.INTERRUPTED}
    assert await ground.fleet.running() == ()
    await ground.fleet.stop(spec.workspace, epoch=1)
    await ground.fleet.stop(new_workspace_id(), epoch=1)


async def test_a_newer_sandbox_answers_for_itself_only(ground: Ground) -> None:
    """An epoch is one sandbox: a command for the old one is not run in the new one."""
    spec = await ground.box()
    await ground.fleet.stop(spec.workspace, epoch=1)
    await ground.fleet.start(dataclasses.replace(spec, epoch=2))
    (found,) = await ground.fleet.running()
    assert found.epoch == 2
    command = ground.command(spec, SEVEN)
    assert (await ground.fleet.exec(command, epoch=1)).stop_reason is StopReason.INTERRUPTED
    assert (await ground.fleet.exec(command, epoch=2)).exit_code == 7


async def test_two_sandboxes_are_there_when_two_are_asked_for(ground: Ground) -> None:
    """Each with its own commands."""
    first, second = await ground.box(0), await ground.box(1)
    command = ground.command(second, LONG)
    waiting = asyncio.create_task(ground.fleet.exec(command, epoch=1))
    await _until_running(ground, command)
    found = {one.workspace: one.execs for one in await ground.fleet.running()}
    assert found == {first.workspace: (), second.workspace: (command.id,)}
    await ground.fleet.stop(first.workspace, epoch=1)
    await _until_running(ground, command)
    await ground.fleet.stop(second.workspace, epoch=1)
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_newer_sandbox_goes_on_when_an_older_epoch_is_stopped(ground: Ground) -> None:
    """Each epoch is one sandbox, and who ends one names it."""
    spec = await ground.box()
    await ground.fleet.stop(spec.workspace, epoch=1)
    await ground.fleet.start(dataclasses.replace(spec, epoch=2))

    await ground.fleet.stop(spec.workspace, epoch=1)

    assert [one.epoch for one in await ground.fleet.running()] == [2]
    result = await ground.fleet.exec(ground.command(spec, SEVEN), epoch=2)
    assert result.exit_code == 7
    await ground.fleet.stop(spec.workspace, epoch=2)
    assert not await ground.fleet.running()


async def test_a_sandbox_made_ahead_is_nobodys_until_it_is_started(ground: Ground) -> None:
    """It is neither running nor in the way of `start`, and `stop` ends it."""
    spec = ground.describe(0)
    await ground.fleet.prepare(dataclasses.replace(spec, layers=()))
    assert not await ground.fleet.running()
    await ground.fleet.start(spec)
    assert (await ground.fleet.exec(ground.command(spec, SEVEN), epoch=1)).exit_code == 7
    other = ground.describe(1)
    await ground.fleet.prepare(dataclasses.replace(other, layers=()))
    await ground.fleet.stop(other.workspace, epoch=1)
    assert [one.workspace for one in await ground.fleet.running()] == [spec.workspace]


async def _until_running(ground: Ground, command: ExecSpec) -> None:
    async with asyncio.timeout(20):
        while not any(command.id in one.execs for one in await ground.fleet.running()):
            await asyncio.sleep(0.01)
