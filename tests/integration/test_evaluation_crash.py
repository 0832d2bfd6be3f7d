"""The server dies while it judges: the next one judges again, once, and nothing is left."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from depth import first
from forkyard import connect_blocking
from forkyard.config import Layout
from projects import FIX, attempts, forkyard, make_repository, run_result, write_task

PATIENCE_SECONDS = 90.0
TASK = """\
name: crash
prompt: Make the check pass.
start: {repository: {path: repo}}
agents:
  - {name: mine, driver: command, command: "%s"}
limits: {baseline_repeats: 1}
checks:
  - {name: check, run: sleep 1; python3 -B check.py}
"""


def _wait_for_death(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the server never came to the failpoint"
        time.sleep(0.05)


def _events(layout: Layout) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(f"file:{layout.database}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT sequence, kind FROM events ORDER BY sequence")
        return [(int(sequence), str(kind)) for sequence, kind in rows]


@pytest.mark.parametrize("failpoint", first("C17", "C17@2", "C18"))
def test_candidate_is_judged_once_when_the_server_dies_while_judging(
    home: Path, tmp_path: Path, failpoint: str
) -> None:
    """Killed in the base's check, in the candidate's, and with the result in hand."""
    make_repository(tmp_path / "repo")
    task = write_task(tmp_path, TASK % FIX)
    armed = {"FORKYARD_FAILPOINT": failpoint}
    assert forkyard("status", directory=tmp_path, variables=armed).returncode == 0
    with connect_blocking() as client:
        pid = client.version().pid
    started = forkyard("run", task, "--detach", directory=tmp_path, variables=armed)
    run = started.stdout.strip().splitlines()[-1]
    _wait_for_death(pid)

    finished = forkyard("watch", run, "--json", directory=tmp_path)
    result = run_result(finished)
    (attempt,) = attempts(result).values()
    assert attempt["state"] == "finished"
    assert attempt["cleanup"] == "done"
    assert attempt["evaluation"]["verdict"] == "solved"
    assert result["tasks"][0]["winner"] == attempt["candidate"]["id"]

    layout = Layout(home)
    events = _events(layout)
    assert Counter(kind for _, kind in events)["evaluation"] == 1
    assert list(layout.workspaces.glob("ws_*")) == []
    with connect_blocking() as client:
        client.stop_server()
    assert forkyard("status", directory=tmp_path).returncode == 0
    assert _events(layout) == events, "a second recovery changed something"
