"""Rows about files: snapshots, what an idle fork takes, and work on a workspace's files.

The other side of the last two is the plain file system: the same tree beside the state directory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import forkyard
from benchmarks.measure import Figure, tell
from benchmarks.ours import must
from benchmarks.trees import path_of
from forkyard.config import Layout
from forkyard.model.ids import WorkspaceId
from forkyard.shim.ahead import QUIET_SECONDS

if TYPE_CHECKING:
    from benchmarks.__main__ import Bench

STOPPED, RUNNING = "snapshot-stopped-100k-by-2k-files", "snapshot-running-by-copy"
DISK, MEMORY = "idle-fork-disk", "shim-and-init-memory"
STATUS, BUILD = "second-git-status-by-plain", "build-by-plain"
ROWS = (STOPPED, RUNNING, DISK, MEMORY, STATUS, BUILD)

CHANGED = 10
LARGE_FILES, LARGE_BYTES, SMALL_FILES, SMALL_BYTES = 160, 1024**2, 1000, 4096
"""What a running workspace wrote, when its snapshot is measured."""
MOST_DISK_KIB = 128
MOST_MEMORY_KIB = 8 * 1024
_WRITE = (
    "mkdir -p delta/large delta/small &&"
    " head -c {total} /dev/urandom | split -b {large} -a 3 -d - delta/large/f &&"
    " head -c {rest} /dev/urandom | split -b {small} -a 4 -d - delta/small/f && sync"
)
_BUILD = ("/usr/bin/python3", "-I", "-m", "compileall", "-q", "-f")
_STATUS = ("/usr/bin/git", "-c", "safe.directory=*", "status", "--porcelain")
_VARIABLES = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null"}
_numbers = itertools.count()


async def measure(bench: Bench, client: forkyard.Client, home: Path) -> None:
    """Measure the rows that were asked for."""
    if bench.wants(STOPPED):
        small, large = await bench.snapshot(client, 2_000), await bench.snapshot(client, 100_000)
        await bench.row(
            STOPPED,
            lambda: _stopped(client, small[0]),
            lambda: _stopped(client, large[0]),
            at_most=1.2,
            is_rested=True,
        )
    if bench.wants(*ROWS[1:]):
        template, tree = await bench.snapshot(client, 20_000)
        await _running(bench, client, template, home)
        await _idle(bench, client, template, home)
        await _work(bench, client, template, tree)


async def _stopped(client: forkyard.Client, template: str) -> float:
    """Time a snapshot of a stopped workspace with a few changes; the rest is off the clock."""
    workspace = await client.workspaces.create(template=template, ephemeral=True)
    name = f"stopped-{next(_numbers)}"
    try:
        changed = [path_of(number * 190) for number in range(CHANGED)]
        script = 'for path; do echo "changed = True" >>"$path" || exit; done'
        outcome = await workspace.exec(["sh", "-c", script, "sh", *changed])
        must(outcome.exit_code == 0, f"the changes failed: {outcome.stderr!r}")
        await workspace.stop()
        begin = time.perf_counter()
        taken = await workspace.snapshot(name)
        seconds = time.perf_counter() - begin
        must(taken.base is not None and taken.base.uncommitted, "the base is not what it must be")
    finally:
        await workspace.delete()
    await client.snapshots.delete(name)
    return seconds


async def _running(bench: Bench, client: forkyard.Client, template: str, home: Path) -> None:
    if not bench.wants(RUNNING):
        return
    async with client.workspaces.run(template=template) as workspace:
        script = _WRITE.format(
            total=LARGE_FILES * LARGE_BYTES,
            large=LARGE_BYTES,
            rest=SMALL_FILES * SMALL_BYTES,
            small=SMALL_BYTES,
        )
        outcome = await workspace.exec(script)
        must(outcome.exit_code == 0, f"the delta failed: {outcome.stderr!r}")
        upper = Layout(home).upper(WorkspaceId(workspace.id))

        async def copied() -> float:
            target = home.parent / f"copy-{next(_numbers)}"
            begin = time.perf_counter()
            await _command("cp", "-a", "--reflink=auto", str(upper), str(target))
            await _command("sync", "--file-system", str(target))
            seconds = time.perf_counter() - begin
            await _command("rm", "-rf", str(target))
            return seconds

        async def taken() -> float:
            name = f"running-{next(_numbers)}"
            begin = time.perf_counter()
            snapshot = await workspace.snapshot(name)
            seconds = time.perf_counter() - begin
            must(snapshot.frozen_seconds is not None, "the workspace did not run")
            await client.snapshots.delete(name)
            return seconds

        await bench.row(RUNNING, copied, taken, at_most=1.5, is_rested=True)


async def _idle(bench: Bench, client: forkyard.Client, template: str, home: Path) -> None:
    """Measure what a fork takes that runs and has done nothing but one command."""
    if not bench.wants(DISK, MEMORY):
        return
    async with client.workspaces.run(template=template) as workspace:
        outcome = await workspace.exec(["true"])
        must(outcome.exit_code == 0, f"true exited {outcome.exit_code}: {outcome.detail}")
        await asyncio.sleep(QUIET_SECONDS + 2)  # what is kept for a next command is gone by then
        layout = Layout(home)
        folder = layout.workspace(WorkspaceId(workspace.id))
        used = await _command("du", "--summarize", "--block-size=1024", str(folder))
        _fixed(bench, DISK, float(used.split()[0]), MOST_DISK_KIB)
        shim = int((layout.sandbox(WorkspaceId(workspace.id)) / "shim.pid").read_text())
        _fixed(bench, MEMORY, await asyncio.to_thread(_memory_kib, shim), MOST_MEMORY_KIB)


def _fixed(bench: Bench, name: str, value: float, most: float) -> None:
    if name not in bench.rows:
        return
    figure = Figure(
        name=name,
        ours=value,
        theirs=most,
        ratio=round(value / most, 2),
        runs=1,
        unit="KiB",
        target=f"<= {most:g} KiB",
        met=value <= most,
    )
    bench.missed += not figure.met
    tell(figure, as_json=bench.as_json)


def _memory_kib(shim: int) -> float:
    """Add up the proportional memory of a shim and all that stems from it, the init included."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    family = {shim}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    total = 0
    for pid in family:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return float(total)


async def _work(bench: Bench, client: forkyard.Client, template: str, tree: Path) -> None:
    if not bench.wants(STATUS, BUILD):
        return
    async with client.workspaces.run(template=template) as workspace:

        def inside(*argv: str) -> Callable[[], Awaitable[float]]:
            async def timed() -> float:
                begin = time.perf_counter()
                outcome = await workspace.exec(list(argv))
                seconds = time.perf_counter() - begin
                must(outcome.exit_code == 0, f"{argv[0]} failed: {outcome.stderr[-300:]!r}")
                return seconds

            return timed

        def plain(*argv: str) -> Callable[[], Awaitable[float]]:
            async def timed() -> float:
                begin = time.perf_counter()
                await _command(*argv, directory=tree)
                return time.perf_counter() - begin

            return timed

        # Both sides were warmed by a timing for nothing: what is measured is the second one.
        await bench.row(STATUS, plain(*_STATUS), inside(*_STATUS), at_most=1.5)
        build = (*_BUILD, "package_000")
        await bench.row(BUILD, plain(*build), inside(*build), at_most=1.1)


async def _command(*argv: str, directory: Path | None = None) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        argv,
        cwd=directory,
        env={**_VARIABLES, "LC_ALL": os.environ.get("LC_ALL", "C.UTF-8")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    must(done.returncode == 0, f"{argv[0]} failed: {done.stderr[-300:]!r}")
    return done.stdout.decode(errors="replace")
