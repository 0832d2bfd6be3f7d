"""What happens at each limit: a bounded end, the right words, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import forkyard
from forkyard.client.results import ExecOutcome
from forkyard.wire.spaces import LimitsRequest

MIB = 1024**2
MEMORY = 96 * MIB
GROWTH_BYTES = 48 * MIB
"""Most that the server may have grown by, whatever went through it: caches and allocator slack."""
BOUND_SECONDS = 120.0

HOG = "python3 -c 'x = bytearray(1 << 30); print(len(x))'"
FORKS = (
    "import os, time\n"
    "made = 0\n"
    "try:\n"
    "    while True:\n"
    "        if os.fork() == 0:\n"
    "            time.sleep(600)\n"
    "        made += 1\n"
    "except OSError as error:\n"
    "    print(made, error.strerror)\n"
)
FILES = "mkdir many; i=0; while :; do i=$((i+1)); : > many/$i || exit 9; done"


def _server_bytes(home: Path) -> int:
    pid = int((home / "state.lock").read_text().split()[1])
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


async def _template(client: forkyard.Client) -> None:
    if not any(one.name == "limits" for one in await client.templates.list()):
        await client.templates.apply_text("spec:\n  image: host\n", name="limits", file="/t.yaml")
        await client.templates.build("limits")


@asynccontextmanager
async def _limited(
    home: Path, limits: LimitsRequest
) -> AsyncIterator[tuple[forkyard.Workspace, forkyard.Workspace]]:
    """Give a workspace with limits, and a sibling in which a command runs all the time."""
    async with forkyard.connect(home) as client:
        await _template(client)
        async with (
            client.workspaces.run(template="limits", limits=limits) as workspace,
            client.workspaces.run(template="limits") as sibling,
        ):
            yield workspace, sibling


def _run(
    home: Path,
    limits: LimitsRequest,
    test: Callable[[forkyard.Workspace], Awaitable[ExecOutcome]],
) -> ExecOutcome:
    """Run a scenario beside a sibling that must be served all along; the server stays as it was."""

    async def body() -> ExecOutcome:
        async with _limited(home, limits) as (workspace, sibling):
            counting = asyncio.create_task(
                sibling.exec("i=0; until [ -e stop ]; do i=$((i+1)); sleep 0.02; done; echo $i")
            )
            assert (await workspace.exec("true")).succeeded
            before = _server_bytes(home)
            async with asyncio.timeout(BOUND_SECONDS):
                outcome = await test(workspace)
            assert _server_bytes(home) - before < GROWTH_BYTES
            assert (await sibling.exec("echo served; touch stop")).stdout == b"served\n"
            counted = await counting
            assert counted.succeeded
            assert int(counted.stdout) > 0
            again = await workspace.exec("echo on")
            assert again.stdout == b"on\n", again
            return outcome

    return asyncio.run(body())


def test_a_memory_hog_is_ended_with_the_reason_when_it_passes_the_limit(module_home: Path) -> None:
    """It died of the limit, which is told as such and not as a signal."""
    ended = _run(
        module_home, LimitsRequest(memory_bytes=MEMORY), lambda one: one.exec(f"exec {HOG}")
    )
    assert (ended.stop_reason, ended.exit_code) == ("memory-limit", 137)
    assert "memory limit" in (ended.detail or "")


@pytest.mark.parametrize(
    ("after", "code"), [("; exit 3", 3), ("; exit $?", 137), ("& wait; true", 0)]
)
def test_the_reason_is_told_when_only_a_child_died_of_the_memory_limit(
    module_home: Path, after: str, code: int
) -> None:
    """The command itself ended in a way of its own; what struck is in the detail."""
    ended = _run(
        module_home,
        LimitsRequest(memory_bytes=MEMORY),
        lambda one: one.exec(f"true; ({HOG}) {after}"),
    )
    assert (ended.stop_reason, ended.exit_code) == ("exited", code)
    assert "memory limit was reached while it ran" in (ended.detail or "")


def test_a_time_limit_says_that_memory_struck_too_when_both_did(module_home: Path) -> None:
    """One reason does not hide the other."""
    ended = _run(
        module_home,
        LimitsRequest(memory_bytes=MEMORY),
        lambda one: one.exec(f"({HOG}); sleep 600", timeout_seconds=6),
    )
    assert ended.stop_reason == "timed-out"
    assert "still running after 6 s" in (ended.detail or "")
    assert "memory limit was reached while it ran: a process killed" in (ended.detail or "")


def test_a_fork_loop_ends_at_the_process_limit(module_home: Path) -> None:
    """So many processes and no more; all of them are gone with the command."""
    ended = _run(
        module_home,
        LimitsRequest(processes=64),
        lambda one: one.exec(["python3", "-c", FORKS], keep_background=False),
    )
    made, _, words = ended.stdout.decode().partition(" ")
    assert words == "Resource temporarily unavailable\n"
    assert 32 < int(made) < 64
    assert ended.stop_reason == "exited"


@pytest.mark.parametrize(
    "filler",
    [
        "i=0; while :; do i=$((i+1)); head -c 4M /dev/zero > fill-$i || exit 9; done",
        "exec head -c 10G /dev/zero > one",
    ],
)
def test_a_disk_filler_ends_at_the_disk_limit(module_home: Path, filler: str) -> None:
    """Many files are watched; one file cannot grow past the limit at all."""
    ended = _run(
        module_home, LimitsRequest(disk_bytes=64 * MIB), lambda one: _and_empty(one, filler)
    )
    assert ended.stop_reason == "disk-limit"
    told = f"{64 * MIB} are allowed" if "fill-" in filler else f"disk limit of {64 * MIB} bytes"
    assert told in (ended.detail or "")


async def _and_empty(workspace: forkyard.Workspace, filler: str) -> ExecOutcome:
    """Fill it, then make room, so that the next command can run."""
    outcome = await workspace.exec(filler)
    await workspace.exec("rm -rf fill-* many one")
    return outcome


def test_an_inode_filler_ends_at_the_inode_limit(module_home: Path) -> None:
    """Empty files take no bytes and are counted all the same."""
    ended = _run(module_home, LimitsRequest(disk_inodes=2000), lambda one: _and_empty(one, FILES))
    assert ended.stop_reason == "disk-limit"
    assert "files, 2000 are allowed" in (ended.detail or "")


@pytest.mark.parametrize("mebibytes", [400, pytest.param(5 * 1024, marks=pytest.mark.deep)])
def test_a_flood_of_output_is_kept_to_the_limit_and_counted(
    module_home: Path, mebibytes: int
) -> None:
    """The command ends by itself; what it printed past the limit is dropped, and said."""
    ended = _run(
        module_home,
        LimitsRequest(output_bytes=4 * MIB),
        lambda one: one.exec(f"yes flooding | head -c {mebibytes}M; echo end >&2"),
    )
    assert (ended.stop_reason, ended.exit_code) == ("exited", 0)
    assert ended.truncated
    assert len(ended.stdout) == 4 * MIB
    assert ended.stderr == b"end\n"


def test_a_flood_without_end_ends_at_the_time_limit(module_home: Path) -> None:
    """A log that never stops costs its limit on disk, and no more."""
    ended = _run(
        module_home,
        LimitsRequest(output_bytes=MIB),
        lambda one: one.exec("exec yes", timeout_seconds=3),
    )
    assert ended.stop_reason == "timed-out"
    assert ended.truncated
    assert len(ended.stdout) == MIB


def test_one_line_of_200_megabytes_passes_through(module_home: Path) -> None:
    """Nobody on the way waits for the end of a line."""

    async def line(workspace: forkyard.Workspace) -> ExecOutcome:
        return await workspace.exec("head -c 200M /dev/zero | tr '\\0' x; echo")

    ended = _run(module_home, LimitsRequest(output_bytes=256 * MIB), line)
    assert ended.succeeded
    assert not ended.truncated
    assert len(ended.stdout) == 200 * MIB + 1


@pytest.mark.parametrize(("millicores", "seen"), [(1000, 1), (300, 1), (64_000, None)])
def test_as_many_processors_are_seen_as_the_cpu_limit_amounts_to(
    module_home: Path, millicores: int, seen: int | None
) -> None:
    """By every way that programs count them; a limit above the machine's is taken and said."""
    look = (
        "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)),"
        " os.sysconf('SC_NPROCESSORS_ONLN'), os.sysconf('SC_NPROCESSORS_CONF'))"
    )
    ended = _run(
        module_home,
        LimitsRequest(cpu_millicores=millicores),
        lambda one: one.exec(f'python3 -c "{look}"; nproc'),
    )
    expected = str(seen or len(os.sched_getaffinity(0)))
    assert set(ended.stdout.decode().split()) == {expected}


def test_what_holds_each_limit_is_told_when_a_workspace_is_shown(module_home: Path) -> None:
    """In three words: enforced, watched, or neither."""

    async def body() -> dict[str, str]:
        limits = LimitsRequest(
            memory_bytes=MEMORY, cpu_millicores=64_000, processes=64, disk_bytes=MIB, disk_inodes=99
        )
        async with (
            _limited(module_home, limits) as (workspace, _),
            forkyard.connect(module_home) as again,
        ):
            return (await again.workspaces.get(workspace.id)).info.held

    held = asyncio.run(body())
    assert held["memory"].startswith("96 MiB, enforced by cgroup v")
    assert held["processes"].startswith("64, enforced by cgroup v")
    assert "64 cores (this machine has" in held["cpu"]
    assert held["disk"] == "1 MiB, watched, not enforced"
    assert held["inodes"] == "99, watched, not enforced"
    assert held["output"] == "256 MiB, enforced by the shim"


def test_a_hard_disk_limit_is_exact_and_survives_stops(module_home: Path) -> None:
    """Bytes and files end at the limit, by the kernel; what was written is there after a stop."""

    async def body() -> None:
        limits = LimitsRequest(disk_bytes=32 * MIB, disk_inodes=500, disk_is_hard=True)
        async with _limited(module_home, limits) as (workspace, _):
            filled = await workspace.exec("head -c 100M /dev/zero > a; ls -l a | cut -d' ' -f5")
            assert b"No space left on device" in filled.stderr
            assert 31 * MIB < int(filled.stdout) <= 32 * MIB
            await workspace.exec(
                "truncate -s 1M a; cat a > b; rm a; mkdir -m 750 d; ln b d/c; ln -s b e"
            )
            await workspace.stop()
            kept = await workspace.exec("ls; stat -c '%h %s' b; stat -c %a d; readlink e")
            assert kept.stdout.split() == [b"b", b"d", b"e", b"2", b"%d" % MIB, b"750", b"b"]
            many = await workspace.exec("i=0; while touch d/$i; do i=$((i+1)); done; echo $i")
            assert b"No space left on device" in many.stderr
            # The folders of the workspace and its home count, too.
            assert 480 < int(many.stdout) < 500
            live = await workspace.snapshot("hard-live")
            assert live.frozen_seconds is not None
            await workspace.stop()
            async with forkyard.connect(module_home) as client:
                async with client.workspaces.run(snapshot="hard-live", limits=limits) as fork:
                    assert (await fork.exec("ls d | wc -l; stat -c %h b")).stdout.split() == [
                        b"%d" % (int(many.stdout) + 1),
                        b"2",
                    ]
                await client.snapshots.delete("hard-live")
                held = (await client.workspaces.get(workspace.id)).info.held
            assert held["disk"] == "32 MiB, enforced by a file system of its own"

    asyncio.run(body())
