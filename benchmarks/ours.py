"""Our side: a server on a state directory of its own, driven through the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import forkyard
from benchmarks.trees import path_of
from forkyard.wire.schema import DoctorReport

LIMITS = "{cpu: {millicores: 2000}, memory: {megabytes: 1024}}"
COLLECTED = 10
PROTECTIONS = frozenset(
    {
        "user namespace",
        "capabilities",
        "new privileges",
        "system calls",
        "root file system",
        "network",
        "cgroups",
        "memory limit",
        "cpu limit",
        "process limit",
        "disk limit",
        "device access",
    }
)
_WATCHED_IS_FINE = "disk limit"
"""Few file systems enforce one; doctor says so and SECURITY.md too."""
_NOT_ROOTLESS = ("cgroups", "memory limit", "cpu limit", "process limit", "hard disk limit")
_VOLATILE = {"tmpfs", "ramfs"}
_STOP_SECONDS = 60.0


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[forkyard.Client]:
    """Run a server on a fresh state directory; nothing of it is left afterwards."""
    _refuse_memory(home.parent)
    async with forkyard.connect(home) as client:
        try:
            yield client
        finally:
            for workspace in await client.workspaces.list(everything=True):
                with contextlib.suppress(forkyard.ForkyardError):
                    await (await client.workspaces.get(workspace.id)).delete()
            await client.stop_server()
            async with asyncio.timeout(_STOP_SECONDS):
                while await client.find_server() is not None:
                    await asyncio.sleep(0.05)


def _refuse_memory(folder: Path) -> None:
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if kind in _VOLATILE:
        raise SystemExit(f"cannot measure in {folder}: it is {kind}; name a folder on a disk")


def refuse_unprotected(report: DoctorReport, *, is_rootless: bool = False) -> None:
    """End the benchmark where anything that protects is missing: such figures say nothing.

    An ordinary user has no cgroups here, and so no limits that the kernel holds; it is told.
    """
    missing = [*report.problems]
    missing += [
        f"{name} is not told of" for name in sorted(PROTECTIONS - report.protections.keys())
    ]
    missing += [
        f"{name}: {value}"
        for name, value in report.protections.items()
        if name not in (_WATCHED_IS_FINE, *(_NOT_ROOTLESS if is_rootless else ()))
        and (value == "none" or value.startswith("not "))
    ]
    if not report.digest:
        missing.append("the sandbox configuration has no digest")
    if missing:
        raise SystemExit(f"cannot measure without every protection: {'; '.join(missing)}")


async def prepare(client: forkyard.Client, name: str, repository: Path) -> None:
    """Make a snapshot of a repository under a name."""
    text = (
        f"spec:\n  image: host\n  repository: {{path: '{repository}', include_uncommitted: true}}\n"
        f"  limit: {LIMITS}\n"
    )
    await client.templates.apply_text(text, name=name, file=str(repository.parent / "bench.yaml"))
    await client.templates.build(name)


async def fork_and_run(client: forkyard.Client, template: str, command: Sequence[str]) -> float:
    """Time a fresh fork with its first command, to the exit status; delete it off the clock."""
    begin = time.perf_counter()
    async with client.workspaces.run(template=template) as workspace:
        outcome = await workspace.exec(list(command))
        seconds = time.perf_counter() - begin
    must(outcome.exit_code == 0, f"{command} exited {outcome.exit_code}: {outcome.detail}")
    return seconds


async def forks_at_once(client: forkyard.Client, template: str, count: int) -> float:
    """Time so many forks with their first command, all at once; delete them off the clock."""

    async def one() -> forkyard.Workspace:
        workspace = await client.workspaces.create(template=template, ephemeral=True)
        outcome = await workspace.exec(["true"])
        must(outcome.exit_code == 0, f"true exited {outcome.exit_code}: {outcome.detail}")
        return workspace

    begin = time.perf_counter()
    workspaces = await asyncio.gather(*(one() for _ in range(count)))
    seconds = time.perf_counter() - begin
    await asyncio.gather(*(workspace.delete() for workspace in workspaces))
    return seconds


async def exec_in(workspace: forkyard.Workspace) -> float:
    """Time one command in a running workspace."""
    begin = time.perf_counter()
    outcome = await workspace.exec(["true"])
    seconds = time.perf_counter() - begin
    must(outcome.exit_code == 0, f"true exited {outcome.exit_code}: {outcome.detail}")
    return seconds


async def collect(client: forkyard.Client, template: str) -> float:
    """Time the collection of changed files from a stopped workspace; the rest is off the clock."""
    workspace = await client.workspaces.create(template=template, ephemeral=True)
    try:
        changed = [path_of(number * 200) for number in range(COLLECTED)]
        script = 'for path; do echo "changed = True" >>"$path" || exit; done'
        outcome = await workspace.exec(["sh", "-c", script, "sh", *changed])
        must(outcome.exit_code == 0, f"the changes failed: {outcome.stderr!r}")
        await workspace.stop()
        begin = time.perf_counter()
        patch = await workspace.patch()
        seconds = time.perf_counter() - begin
        must(sorted(patch.files) == sorted(changed), f"collected {patch.files}")
    finally:
        await workspace.delete()
    return seconds


def must(holds: bool, otherwise: str) -> None:
    """End the benchmark where something is not as it must be."""
    if not holds:
        raise SystemExit(f"cannot measure: {otherwise}")
