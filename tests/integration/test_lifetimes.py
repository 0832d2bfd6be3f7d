"""Workspaces that stop when nothing happens in them, or go at their time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkyard import BlockingClient, NotFoundError
from living import PATIENCE_SECONDS, forkyard, prepare
from terminals import seated


@pytest.fixture(scope="module")
def prepared(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a template."""
    prepare(module_home, tmp_path_factory.mktemp("lifetimes"))
    return module_home


@pytest.fixture
def client(prepared: Path) -> Iterator[BlockingClient]:
    """Connect; afterwards no workspace is left."""
    with BlockingClient(prepared) as connected:
        yield connected
        for one in connected.workspaces.list():
            connected.workspaces.get(one.id).delete()


def until(is_so: Callable[[], bool]) -> None:
    """Look until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def state(client: BlockingClient, workspace: str) -> str:
    """Look at a workspace's state."""
    return str(client.workspaces.get(workspace).info.state)


def test_a_workspace_in_which_nothing_happens_is_stopped(client: BlockingClient) -> None:
    """Its files stay, and the next command starts it again."""
    workspace = client.workspaces.create(template="t", idle_stop_seconds=1.0)
    assert workspace.exec("echo kept > kept; sleep 1000 & true").succeeded

    until(lambda: state(client, workspace.id) == "stopped")

    assert workspace.exec("cat kept").stdout == b"kept\n"


@pytest.mark.parametrize("busy", ["sleep 5", "timeout 5 sh -c 'while :; do :; done' & true"])
def test_what_runs_or_computes_keeps_a_workspace_up(client: BlockingClient, busy: str) -> None:
    """A command that only waits counts, and so does one left behind that computes."""
    workspace = client.workspaces.create(template="t", idle_stop_seconds=2.0)
    began = time.monotonic()
    assert workspace.exec(busy).succeeded

    until(lambda: state(client, workspace.id) == "stopped")

    assert time.monotonic() - began >= 5
    assert [one.stop_reason for one in workspace.execs()] == ["exited"]


def test_somebody_at_a_shell_keeps_a_workspace_up_and_one_who_left_does_not(
    client: BlockingClient, prepared: Path
) -> None:
    """Attached counts, even where nobody types; a shell that was left does not."""
    workspace = client.workspaces.create(template="t", idle_stop_seconds=1.0)
    with seated(
        "workspace", "shell", workspace.id, variables={"FORKYARD_HOME": str(prepared)}
    ) as person:
        person.reads(b"$ ")
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 4)
        assert state(client, workspace.id) == "running"
        person.type(b"\r~.")
        person.leaves()

    until(lambda: state(client, workspace.id) == "stopped")


def test_a_workspace_is_deleted_at_its_time_and_says_when(
    client: BlockingClient, prepared: Path
) -> None:
    """Only the one that was asked to be; it is said at once, and in list and show."""
    other = client.workspaces.create(template="t")
    done = forkyard(prepared, "create", "--template", "t", "--ttl", "20s", "--json")
    mine = json.loads(done.stdout)
    assert mine["expires_at"].encode() in done.stderr
    assert mine["expires_at"].encode() in forkyard(prepared, "show", mine["id"]).stdout
    assert mine["expires_at"].encode() in forkyard(prepared, "list").stdout

    def is_gone() -> bool:
        try:
            client.workspaces.get(mine["id"])
        except NotFoundError:
            return True
        return False

    until(is_gone)
    assert state(client, other.id) == "stopped"


def test_a_time_that_came_while_no_server_lived_is_kept_by_the_next(
    client: BlockingClient,
) -> None:
    """The time is in the journal, not in a process."""
    workspace = client.workspaces.create(template="t", ttl_seconds=1.0)
    os.kill(client.version().pid, signal.SIGKILL)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.0)

    until(lambda: workspace.id not in {one.id for one in client.workspaces.list()})


def test_one_that_is_kept_stays(client: BlockingClient, prepared: Path) -> None:
    """Its time can be changed, or taken away."""
    workspace = client.workspaces.create(template="t", ttl_seconds=600, idle_stop_seconds=60)

    forkyard(prepared, "keep", workspace.id)

    info = client.workspaces.get(workspace.id).look()
    assert (info.expires_at, info.idle_stop_seconds) == (None, None)


def test_list_tells_what_each_takes(client: BlockingClient, prepared: Path) -> None:
    """Disk beyond the snapshot, state, age, idle."""
    workspace = client.workspaces.create(template="t", display_name="large")
    workspace.exec("head -c 5000000 /dev/urandom > large")

    (row,) = json.loads(forkyard(prepared, "list", "--json").stdout)

    assert 5_000_000 <= row["disk_bytes"] < 6_000_000
    assert row["idle_seconds"] is None or row["idle_seconds"] >= 0
    assert b"large" in forkyard(prepared, "list").stdout
