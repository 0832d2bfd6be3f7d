"""A command that is made ready while it is journalled: nothing of it runs before its word."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

from forkyard.model.execution import ExecSpec, StopReason
from forkyard.shim.id_maps import USER_ID
from forkyard.shim.ids import IDS
from forkyard.shim.main import PID_FILE
from sandboxes import Box, in_box, open_fleet

WRITE = "echo ran >> log; cat log"


def _held(box: Box) -> list[int]:
    """Find children of the shim that have become the command's user and execute nothing yet."""
    shim = (box.layout.sandbox(box.id) / PID_FILE).read_text().strip()
    user = IDS.sandbox_id(box.spec.slot, USER_ID)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(
                line.split(":\t", 1) for line in (entry / "status").read_text().splitlines()
            )
        except (OSError, ValueError):
            continue
        is_users = int(status["Uid"].split("\t")[0]) == user
        if status["PPid"] == shim and is_users and status["Name"] == "forkyard-spawn":
            found.append(int(entry.name))
    return found


async def _hold(box: Box, spec: ExecSpec) -> int:
    box.fleet.hold(spec, epoch=box.spec.epoch)
    return (await _until(box, 1))[0]


async def _until(box: Box, count: int) -> list[int]:
    async with asyncio.timeout(20):
        while len(found := _held(box)) != count:
            await asyncio.sleep(0.005)
    return found


def _log(box: Box) -> Path:
    return box.layout.upper(box.id) / "workspace/repo/log"


def test_a_held_command_runs_once_when_it_is_asked_for(home: Path) -> None:
    """The very process that was held becomes it."""

    async def body(box: Box) -> None:
        spec = box.command(f"echo $$ >&2; {WRITE}")
        await _hold(box, spec)
        assert not _log(box).exists()
        output = await box.run(spec)
        assert (output.result.exit_code, output.stdout) == (0, "ran\n")
        assert _held(box) == []
        assert (await box.run(spec)).stdout == "ran\n"
        assert _log(box).read_text() == "ran\n"

    in_box(home, body)


def test_it_keeps_its_own_arguments_folder_and_variables(home: Path) -> None:
    """What is held is what was sent, and another version of it is not mistaken for it."""

    async def body(box: Box) -> None:
        spec = box.command("pwd; echo $WORD", variables={"WORD": "first"})
        await _hold(box, replace(spec, working_directory="/tmp"))
        output = await box.run(spec)
        assert output.stdout == "/workspace/repo\nfirst\n"

    in_box(home, body)


def test_it_never_runs_when_another_comes_first(home: Path) -> None:
    """It is forgotten, and made anew when it is asked for after all."""

    async def body(box: Box) -> None:
        spec = box.command(WRITE)
        await _hold(box, spec)
        other = await box.sh("cat log")
        assert other.result.exit_code == 1
        assert _held(box) == []
        assert (await box.run(spec)).stdout == "ran\n"

    in_box(home, body)


def test_it_never_runs_when_it_is_dropped(home: Path) -> None:
    """As where it could not be journalled; the next command finds everything as it was."""

    async def body(box: Box) -> None:
        spec = box.command(WRITE)
        await _hold(box, spec)
        box.fleet.drop(spec, epoch=box.spec.epoch)
        await _until(box, 0)
        assert (await box.sh("cat log || echo none")).stdout == "none\n"
        assert not box.layout.exec(box.id, spec.id).exists()

    in_box(home, body)


def test_it_never_runs_when_its_server_goes(home: Path) -> None:
    """A server that dies before it has written it down leaves nothing that could begin."""

    async def body(box: Box) -> None:
        await _hold(box, box.command(WRITE))
        await box.fleet.close()
        await _until(box, 0)
        async with open_fleet(home) as (fleet, layout):
            next_one = Box(fleet, layout, box.spec)
            assert (await next_one.sh("cat log || echo none")).stdout == "none\n"

    in_box(home, body)


def test_it_runs_all_the_same_when_it_was_killed_while_held(home: Path) -> None:
    """The memory limit may strike it; it had not begun."""

    async def body(box: Box) -> None:
        spec = box.command(WRITE)
        os.kill(await _hold(box, spec), signal.SIGKILL)
        await _until(box, 0)
        output = await box.run(spec)
        assert (output.result.stop_reason, output.stdout) == (StopReason.EXITED, "ran\n")

    in_box(home, body)


def test_it_runs_after_the_thaw_when_its_sandbox_was_frozen(home: Path) -> None:
    """What is frozen could not end: so it is forgotten before, and not held meanwhile."""

    async def body(box: Box) -> None:
        spec = box.command(WRITE)
        await _hold(box, spec)
        await box.fleet.freeze(box.id, epoch=box.spec.epoch, seconds=60)
        assert _held(box) == []
        box.fleet.hold(spec, epoch=box.spec.epoch)
        running = asyncio.ensure_future(box.run(spec))
        assert await box.fleet.thaw(box.id, epoch=box.spec.epoch) is not None
        assert (await running).stdout == "ran\n"

    in_box(home, body)


def test_it_is_refused_in_words_when_its_folder_is_not_there(home: Path) -> None:
    """It finds out while it is held, and says so when it is asked for."""

    async def body(box: Box) -> None:
        spec = replace(box.command("true"), working_directory="/nowhere")
        box.fleet.hold(spec, epoch=box.spec.epoch)
        result = (await box.run(spec)).result
        assert result.stop_reason is StopReason.COULD_NOT_START
        assert result.detail == "working directory /nowhere: no such file or directory"
        assert (await box.sh("echo next")).stdout == "next\n"

    in_box(home, body)
