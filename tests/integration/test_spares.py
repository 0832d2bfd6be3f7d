"""Sandboxes made ahead of time, with the real kernel: furnished, misfit, dead, forsaken."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from forkyard.model.workspace import Limits
from forkyard.shim import ahead, cgroups, main
from forkyard.shim.hierarchies import detect
from forkyard.shim.main import PID_FILE
from forkyard.workspace.fleet import LocalFleet
from forkyard.workspace.runtime import RUNTIMES
from leftovers import processes
from sandboxes import Box, describe, make_layer, open_fleet


def _groups(name: str) -> list[str]:
    hierarchies = detect()
    assert hierarchies is not None
    return [one for one in cgroups.existing(hierarchies) if one.startswith(name)]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_spare_becomes_the_workspace_when_its_files_are_known(home: Path, runtime: str) -> None:
    """Its container is the one made ahead, and its files are the workspace's own."""

    async def body() -> None:
        async with open_fleet(home, (runtime,)) as (fleet, layout):
            spec = describe(layout, make_layer(layout, {"file": "content"}))
            await fleet.prepare(replace(spec, layers=()))
            assert not await fleet.running(), "nobody's sandbox is nobody's to end"
            pid = (layout.sandbox(spec.workspace) / PID_FILE).read_text()

            await fleet.start(spec)
            box = Box(fleet, layout, spec)
            output = await box.sh(
                "cat file && echo more > other && pwd && id -u; ls -d /workspace/*"
            )

            assert output.stdout == "content/workspace/repo\n1000\n/workspace/repo\n", output.stderr
            assert (layout.upper(spec.workspace) / "workspace/repo/other").read_text() == "more\n"
            assert (layout.sandbox(spec.workspace) / PID_FILE).read_text() == pid
            assert [one.workspace for one in await fleet.running()] == [spec.workspace]

    asyncio.run(body())


def test_another_sandbox_is_made_when_the_spare_does_not_fit(home: Path) -> None:
    """Limits are what was asked for, not what somebody expected."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            spec = describe(layout, make_layer(layout, {}), limits=Limits(processes=20))
            await fleet.prepare(replace(spec, layers=(), limits=Limits(processes=500)))

            await fleet.start(spec)
            output = await Box(fleet, layout, spec).sh(
                "i=0; while [ $i -lt 40 ]; do sleep 60 & i=$((i+1)); done; echo all"
            )

            assert "all" not in output.stdout

    asyncio.run(body())


def test_another_sandbox_is_made_when_the_spare_died(home: Path) -> None:
    """A spare is a help, never a condition."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            spec = describe(layout, make_layer(layout, {"file": "content"}))
            await fleet.prepare(replace(spec, layers=()))
            os.kill(int((layout.sandbox(spec.workspace) / PID_FILE).read_text()), signal.SIGKILL)

            await fleet.start(spec)

            assert (await Box(fleet, layout, spec).sh("cat file")).stdout == "content"

    asyncio.run(body())


def test_nothing_is_left_when_a_spare_is_stopped(home: Path) -> None:
    """Processes, groups and mounts go with it."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            spec = describe(layout, make_layer(layout, {}))
            await fleet.prepare(replace(spec, layers=()))
            assert _groups(spec.workspace)
            pid = int((layout.sandbox(spec.workspace) / PID_FILE).read_text())

            await fleet.stop(spec.workspace, epoch=1)

            assert not _groups(spec.workspace)
            assert not Path(f"/proc/{pid}").exists()

    asyncio.run(body())


@pytest.mark.deep
def test_a_spare_goes_by_itself_when_its_server_is_gone(home: Path) -> None:
    """Nobody knows any more what it was for; there is nothing in it to lose."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            spec = describe(layout, make_layer(layout, {}))
            await fleet.prepare(replace(spec, layers=()))
            await fleet.close()
            other = LocalFleet(layout)
            assert not await other.running()
            await other.close()

            deadline = asyncio.get_running_loop().time() + 6 * main.FORSAKEN_SECONDS
            while _groups(spec.workspace):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.2)

    asyncio.run(body())


@pytest.mark.deep
def test_what_waits_for_a_command_goes_when_none_comes_and_the_next_one_runs(home: Path) -> None:
    """A quiet sandbox is its shim, its spawner and its init; the group of the other goes too."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            spec = describe(layout, make_layer(layout, {}))
            await fleet.start(spec)
            box = Box(fleet, layout, spec)
            assert (await box.sh("echo one")).stdout == "one\n"
            shim = int((layout.sandbox(spec.workspace) / PID_FILE).read_text())

            def waiting() -> list[int]:
                children = [one.pid for one in processes().values() if one.parent == shim]
                names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in children}
                return [pid for pid, name in names.items() if name == "forkyard-spawn\n"]

            async with asyncio.timeout(ahead.QUIET_SECONDS):
                while len(waiting()) < 2:
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(ahead.QUIET_SECONDS + 30):
                while len(waiting()) > 1:
                    await asyncio.sleep(0.1)
            two = box.command("echo two; sleep 0.1 & wait; echo three")
            fleet.hold(two, epoch=spec.epoch)  # made and held at once
            assert (await box.run(two)).stdout == "two\nthree\n"
            async with asyncio.timeout(30):
                while len(waiting()) < 2:
                    await asyncio.sleep(0.01)

    asyncio.run(body())
