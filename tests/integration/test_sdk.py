"""The SDK over a real server and real sandboxes: nothing runs twice, nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard import BlockingClient, NotFoundError
from forkyard.client.client import Client
from forkyard.wire.spaces import LimitsRequest

PATIENCE_SECONDS = 60.0
pytestmark = pytest.mark.anyio

ABANDON = """\
import asyncio, sys
from forkyard.client.client import Client
async def main():
    async with Client(sys.argv[1]) as client:
        workspace = await client.workspaces.create(snapshot="base", ephemeral=True)
        await workspace.start()
        print(workspace.id, flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def prepared(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a snapshot named `base` of a small repository, as a developer would."""
    folder = tmp_path_factory.mktemp("sdk")
    repository = folder / "repo"
    repository.mkdir()
    (repository / "file").write_text("old\n")
    git = ("git", "-C", repository, "-c", "user.name=t", "-c", "user.email=t@t")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *arguments], check=True)
    template = folder / "t.yaml"
    template.write_text("spec:\n  repository: {path: repo}\n")
    with BlockingClient(module_home) as client:
        client.templates.apply(template)
        client.templates.build("t", timeout_seconds=PATIENCE_SECONDS)
        workspace = client.workspaces.create(template="t", display_name="developer")
        assert workspace.exec("echo failing > test").succeeded
        workspace.stop()
        workspace.snapshot("base")
        workspace.delete()
    return module_home


@pytest.fixture
async def client(prepared: Path) -> AsyncIterator[Client]:
    """Connect; afterwards no workspace is left."""
    async with Client(prepared) as connected:
        await connected.snapshots.wait_until_ready("base", timeout_seconds=PATIENCE_SECONDS)
        yield connected
        assert await connected.workspaces.list(everything=True) == []


async def test_the_first_seed_s_program(client: Client, tmp_path: Path) -> None:
    """An ephemeral workspace per agent, exec with directory, environment and timeout, a patch."""

    async def attempt(name: str) -> str:
        async with client.workspaces.run(
            snapshot="base", ephemeral=True, display_name=f"issue: {name}"
        ) as workspace:
            run = await workspace.exec(
                'echo "$PROMPT by $WHO" > file; echo noise >&2; exit 3',
                working_directory="/workspace/repo",
                variables={"PROMPT": "fix it", "WHO": name},
                timeout_seconds=30,
            )
            assert (run.exit_code, run.stderr, run.succeeded) == (3, b"noise\n", False)
            tests = await workspace.exec(["cat", "file", "test"], timeout_seconds=30)
            assert tests.stdout == f"fix it by {name}\nfailing\n".encode()
            patch = await workspace.save_patch(tmp_path / f"{name}.patch")
            assert patch.files == ("file",)
            return patch.sha256

    async with asyncio.TaskGroup() as group:
        attempts = [group.create_task(attempt(name)) for name in ("one", "two", "three")]
    assert len({one.result() for one in attempts}) == 3
    assert b"-old\n+fix it by two\n" in (tmp_path / "two.patch").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_command_survives_its_server_and_never_runs_twice(
    client: Client, number: int
) -> None:
    """The call attaches to the same command through the next server."""
    async with client.workspaces.run(snapshot="base") as workspace:
        await workspace.start()
        running = asyncio.create_task(
            workspace.exec("echo once >> /workspace/log; sleep 5; cat /workspace/log; exit 5")
        )
        waiting = asyncio.create_task(first_output(client, workspace.id))
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        os.kill((await client.version()).pid, number)
        outcome = await asyncio.wait_for(running, PATIENCE_SECONDS)

    assert (outcome.exit_code, outcome.stdout) == (5, b"once\n")


async def first_output(client: Client, workspace: str) -> None:
    """Wait until a command of a workspace is journalled as running."""
    async for event in client.events.follow(after=0):
        if event.kind == "exec" and event.state == "running":
            execs = await (await client.workspaces.get(workspace)).execs()
            if execs:
                return


async def test_a_cancelled_call_ends_the_command(client: Client) -> None:
    """Nothing of it goes on in the workspace."""
    async with client.workspaces.run(snapshot="base") as workspace:
        await workspace.start()
        stubborn = workspace.exec("trap '' TERM; sleep 500 & wait; sleep 500")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stubborn, 1.0)
        left = await workspace.exec("ps -eo args | grep -c '[s]leep 500'")
        assert left.stdout == b"0\n"


async def test_a_workspace_is_deleted_whatever_ends_its_block(client: Client) -> None:
    """An exception, and a cancellation, even while it is being made."""
    with pytest.raises(ZeroDivisionError):
        await fail_inside(client)
    for delay in (0.0, 0.01, 0.05, 0.5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sleep_inside(client), delay)
        assert await client.workspaces.list() == []


async def fail_inside(client: Client) -> None:
    """Raise inside a workspace's block."""
    async with client.workspaces.run(snapshot="base"):
        raise ZeroDivisionError


async def sleep_inside(client: Client) -> None:
    """Wait inside a workspace's block."""
    async with client.workspaces.run(snapshot="base") as workspace:
        await workspace.exec("sleep 500")


@pytest.mark.deep
async def test_the_workspace_of_a_killed_client_is_deleted(client: Client, prepared: Path) -> None:
    """Ephemeral means: it goes with whoever made it."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ABANDON, str(prepared), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        made = (await asyncio.wait_for(program.stdout.readline(), PATIENCE_SECONDS)).decode()
        assert (await client.workspaces.get(made.strip())).info.state == "running"
    finally:
        program.kill()
        await program.wait()
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for _ in client.events.changes():
            if await client.workspaces.list() == []:
                break


async def test_output_of_any_size_and_any_bytes_comes_whole(client: Client) -> None:
    """Past what travels inside the answer, too."""
    async with client.workspaces.run(snapshot="base") as workspace:
        large = await workspace.exec(
            "head -c 3000000 /dev/zero | tr '\\0' '\\377'; printf '\\0' >&2"
        )
        assert (large.stdout, large.stderr) == (b"\xff" * 3_000_000, b"\0")
        assert not large.truncated
        followed = asyncio.create_task(
            workspace.exec("for i in 1 2 3; do echo $i; sleep 0.2; done")
        )
        outcome = await followed
        chunks = [chunk async for chunk in workspace.output(outcome.id, follow=True)]
        assert b"".join(chunks) == b"1\n2\n3\n"


async def test_limits_are_laid_over_the_snapshot_s(client: Client) -> None:
    """What is given counts, the rest is the snapshot's."""
    made = await client.workspaces.create(
        snapshot="base", limits=LimitsRequest(processes=32, memory_bytes=64 * 1024**2)
    )
    try:
        limits = made.info.limits
        assert limits is not None
        assert (limits.processes, limits.memory_bytes) == (32, 64 * 1024**2)
        assert limits.output_bytes == 256 * 1024**2
    finally:
        await made.delete()
    with pytest.raises(NotFoundError):
        await client.workspaces.get(made.id)
    await made.delete()


def test_the_blocking_client_tells_the_same_story(prepared: Path) -> None:
    """The same names, without async; errors and blocks behave alike."""
    with BlockingClient(prepared) as client:
        assert client.version().home == str(prepared)
        with client.workspaces.run(snapshot="base", display_name="blocking") as workspace:
            assert workspace.exec("cat file").stdout == b"old\n"
            assert [one.display_name for one in client.workspaces.list()] == ["blocking"]
            found = client.workspaces.get(workspace.id)
            assert found.exec(["true"]).succeeded
            done = found.exec("echo a; echo b")
            assert b"".join(found.output(done.id)) == b"a\nb\n"
        with pytest.raises(NotFoundError):
            client.workspaces.get(workspace.id)
        with pytest.raises(ZeroDivisionError), client.workspaces.run(snapshot="base"):
            raise ZeroDivisionError
        assert client.workspaces.list() == []
