"""Server, shim or fork-server die while a run goes on: each attempt ends exactly once."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from depth import deep, first
from forkyard import connect_blocking
from forkyard.config import Layout
from projects import FIX, alive, attempts, forkyard, make_repository, run_result, write_task

PATIENCE_SECONDS = 90.0
MARKER = "31416007"

TEMPLATE = "spec:\n  image: host\n  repository: {path: repo, include_uncommitted: true}\n"
TASK = """\
name: crash
prompt: Make the check pass.
start: {template: t}
agents:
  - {name: mine, driver: command, command: "echo started; %s; sleep %s"}
limits: {baseline_repeats: 1}
%s
"""
CHECKS = "checks:\n  - {name: check, run: python3 -B check.py}\n"


@dataclass(frozen=True, slots=True)
class Yard:
    """A state directory with a built template whose history is sealed already."""

    folder: Path
    layout: Layout

    def submit(self, *, seconds: float, failpoint: str = "", checks: str = "") -> str:
        """Start a server, armed if asked, and submit a run; give its id."""
        task = write_task(self.folder, TASK % (FIX, seconds, checks))
        self.stop_server()
        armed = {"FORKYARD_FAILPOINT": failpoint} if failpoint else {}
        started = forkyard("run", task, "--detach", directory=self.folder, variables=armed)
        assert started.returncode == 0, started.stderr
        return started.stdout.strip().splitlines()[-1]

    def stop_server(self) -> None:
        """Let the server leave in order."""
        with connect_blocking() as client:
            client.stop_server()

    def server(self) -> int:
        """Give the process id of the server that runs."""
        with connect_blocking() as client:
            return int(client.version().pid)

    def result(self, run: str) -> dict[str, Any]:
        """Wait for a run's end with a new server where none runs."""
        return run_result(forkyard("watch", run, "--json", directory=self.folder))

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Read the newest values of a kind from the file itself."""
        with closing(sqlite3.connect(f"file:{self.layout.database}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT body FROM entities WHERE kind = ?", (kind,))
            return [json.loads(body) for (body,) in found]

    def history(self) -> list[tuple[int, str]]:
        """Read the numbers and bodies of all events."""
        with closing(sqlite3.connect(f"file:{self.layout.database}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT sequence, body FROM events ORDER BY sequence")
            return [(int(sequence), str(body)) for sequence, body in found]

    def agent_execs(self, run: str) -> list[dict[str, Any]]:
        """List the execs of the agents of a run, of every epoch."""
        owners = {row["id"] for row in self.rows("attempt") if row["run"] == run}
        workspaces = {row["id"] for row in self.rows("workspace") if row["owner"] in owners}
        return [row for row in self.rows("exec") if row["workspace"] in workspaces]

    def log(self, attempt: str) -> str:
        """Read an attempt's whole output."""
        with connect_blocking() as client:
            return b"".join(client.runs.log(attempt)).decode()

    def assert_at_rest(self) -> None:
        """Check that nothing is left, and that another recovery changes nothing."""
        assert list(self.layout.workspaces.iterdir()) == []
        assert list(self.layout.trash.iterdir()) == []
        self.stop_server()
        before = self.history()
        assert forkyard("status", directory=self.folder).returncode == 0
        assert self.history() == before, "a second recovery changed something"


@pytest.fixture(scope="module")
def yard(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """Give a yard after a first run; the tests share it, since each leaves it at rest."""
    folder = tmp_path_factory.mktemp("yard")
    made = Yard(folder, Layout(module_home))
    make_repository(folder / "repo")
    (folder / "t.yaml").write_text(TEMPLATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKYARD_HOME", str(module_home))
        for words in (("template", "apply", "t.yaml", "--name", "t"), ("template", "build", "t")):
            done = forkyard(*words, directory=folder)
            assert done.returncode == 0, done.stderr
        made.result(made.submit(seconds=0))
        yield made


def _wait_for_death(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the process never died"
        time.sleep(0.02)


def _wait_for(marker: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not alive(marker):
        assert time.monotonic() < deadline, "the agent never ran"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "failpoint", first("C12", "C02", "W02", "C04", "W07", "C07", "W11", "C11", "C15")
)
def test_attempt_ends_once_when_the_server_dies(yard: Yard, failpoint: str) -> None:
    """Killed with the intent journalled, a sandbox live, an exit seen, or a patch just written."""
    run = yard.submit(seconds=0.5, failpoint=failpoint)
    # the server may be dead by now: its number is in the lock file
    holder = yard.layout.lock.read_text().split()[1]
    _wait_for_death(int(holder))

    (attempt,) = attempts(yard.result(run)).values()

    assert attempt["state"] == "finished"
    assert attempt["exit_code"] == 0
    assert attempt["cleanup"] == "done"
    assert [file["path"] for file in attempt["candidate"]["files"]] == ["adder.py"]
    assert yard.log(attempt["id"]) == "started\n"
    assert len(yard.agent_execs(run)) == 1
    candidates = [row for row in yard.rows("candidate") if row["attempt"] == attempt["id"]]
    assert len(candidates) == 1
    yard.assert_at_rest()


@pytest.mark.parametrize(
    "pause", [pytest.param(0.0, id="while-it-runs"), deep(2.5, id="after-it-ended")]
)
def test_agent_is_adopted_when_the_server_dies_under_it(yard: Yard, pause: float) -> None:
    """The agent goes on without a server, and its end is found whether seen or recorded."""
    run = yard.submit(seconds=float(f"2.{MARKER}"), checks=CHECKS)
    _wait_for(f"2.{MARKER}")
    server = yard.server()
    os.kill(server, signal.SIGKILL)
    _wait_for_death(server)
    assert alive(f"2.{MARKER}"), "the agent must not die with the server"
    time.sleep(pause)

    result = yard.result(run)

    (attempt,) = attempts(result).values()
    assert attempt["state"] == "finished"
    assert attempt["evaluation"]["verdict"] == "solved"
    assert result["tasks"][0]["winner"] == attempt["candidate"]["id"]
    assert yard.log(attempt["id"]) == "started\n"
    assert len(yard.agent_execs(run)) == 1
    yard.assert_at_rest()


def test_attempt_is_interrupted_when_its_shim_dies(yard: Yard) -> None:
    """Trouble of ours: said so, work kept, not run again by itself; `retry` runs it again."""
    run = yard.submit(seconds=float(f"3.{MARKER}"), checks=CHECKS)
    _wait_for(f"3.{MARKER}")
    (workspace,) = [row["workspace"] for row in yard.rows("attempt") if row["run"] == run]
    shim = yard.layout.sandbox(workspace) / "shim.pid"
    os.kill(int(shim.read_text()), signal.SIGKILL)

    (attempt,) = attempts(yard.result(run)).values()

    assert attempt["state"] == "interrupted"
    assert attempt["candidate"] is not None
    assert attempt["evaluation"] is None
    assert alive(f"3.{MARKER}") == []
    assert len(yard.agent_execs(run)) == 1
    assert forkyard("retry", run, directory=yard.folder).returncode == 0
    (again,) = attempts(yard.result(run)).values()
    assert again["state"] == "finished"
    assert again["evaluation"]["verdict"] == "solved"
    assert len(yard.agent_execs(run)) == 2
    yard.assert_at_rest()


@pytest.mark.deep
def test_agent_goes_on_when_the_fork_server_dies(yard: Yard) -> None:
    """Running sandboxes do not need it, and the next start gets a new one."""
    run = yard.submit(seconds=float(f"1.{MARKER}"), checks=CHECKS)
    _wait_for(f"1.{MARKER}")
    fork_server = _fork_server(yard.layout)
    os.kill(fork_server, signal.SIGKILL)

    (attempt,) = attempts(yard.result(run)).values()

    assert attempt["state"] == "finished"
    assert attempt["evaluation"]["verdict"] == "solved"
    assert yard.log(attempt["id"]) == "started\n"
    yard.assert_at_rest()


def _fork_server(layout: Layout) -> int:
    """Ask the fork-server for its process id."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(layout.fleet_socket))
        connection.sendall(b'{"op":"probe"}\n')
        answer = json.loads(connection.makefile("rb").readline())
    return int(answer["pid"])
