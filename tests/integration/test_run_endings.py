"""Attempts that do not end by themselves: timed out, past the deadline, cancelled, absent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from depth import first
from forkyard import connect_blocking
from projects import FIX, alive, attempts, forkyard, make_repository, run_result, write_task

STUBBORN = (
    'echo started; {fix}; trap "" TERM; '
    '(setsid sh -c "trap \\"\\" TERM; sleep {marker}") & sleep {marker}'
)


def _stubborn(marker: str) -> str:
    return STUBBORN.format(fix=FIX.replace("'", '"'), marker=marker)


def _task(folder: Path, *, agents: str, limits: str) -> Path:
    return write_task(
        folder,
        f"""\
        name: endings
        prompt: Make the check pass.
        start: {{repository: {{path: repo}}}}
        agents:
        {agents}
        limits: {limits}
        checks:
          - {{name: check, run: python3 -B check.py}}
        """,
    )


def _agent(name: str, command: str) -> str:
    return f"  - {{name: {name}, driver: command, command: '{command}'}}\n        "


def _log(attempt: str) -> str:
    with connect_blocking() as client:
        return b"".join(client.runs.log(attempt)).decode()


@pytest.mark.usefixtures("home")
def test_attempt_leaves_nothing_but_its_work_when_it_times_out(tmp_path: Path) -> None:
    """Time is up: no process is left, log and candidate are kept, and the candidate is judged."""
    make_repository(tmp_path / "repo")
    marker = "31415001"
    task = _task(
        tmp_path,
        agents=_agent("slow", _stubborn(marker)) + _agent("quick", FIX.replace("'", '"')),
        limits="{attempt_timeout: 3s}",
    )

    result = run_result(forkyard("run", task, "--json", directory=tmp_path))

    slow, quick = attempts(result)["slow"], attempts(result)["quick"]
    assert slow["state"] == "timed-out"
    assert [file["path"] for file in slow["candidate"]["files"]] == ["adder.py"]
    assert slow["evaluation"]["verdict"] == "solved"
    assert slow["cleanup"] == "done"
    assert quick["state"] == "finished"
    assert _log(slow["id"]) == "started\n"
    assert alive(marker) == []


@pytest.mark.deep
@pytest.mark.usefixtures("home")
def test_run_ends_at_its_deadline_when_attempts_would_go_on(tmp_path: Path) -> None:
    """The run's deadline cuts attempts short, those in the queue too, and keeps what there is."""
    make_repository(tmp_path / "repo")
    marker = "31415002"
    task = _task(
        tmp_path,
        agents=_agent("first", _stubborn(marker)) + _agent("second", _stubborn(marker)),
        limits="{attempt_timeout: 10m, deadline: 6s, parallel: 1}",
    )

    began = time.monotonic()
    finished = forkyard("run", task, "--json", directory=tmp_path)
    result = run_result(finished)

    first, second = attempts(result)["first"], attempts(result)["second"]
    assert time.monotonic() - began < 60
    assert first["state"] == "timed-out"
    assert [file["path"] for file in first["candidate"]["files"]] == ["adder.py"]
    assert first["evaluation"]["verdict"] == "not-evaluated"
    assert "the run's deadline passed" in first["evaluation"]["trouble"]
    assert second["state"] in {"timed-out", "could-not-run", "cancelled"}
    assert second["candidate"] is None
    assert result["state"] == "finished"
    assert alive(marker) == []


@pytest.mark.parametrize("where", first("candidate", "base"))
@pytest.mark.usefixtures("home")
def test_checks_end_at_the_deadline_and_regrading_judges_later(tmp_path: Path, where: str) -> None:
    """A check that would go on is ended with the run, on the base too; no process is left."""
    make_repository(tmp_path / "repo")
    marker = "31415005" if where == "candidate" else "31415006"
    condition = "test -e made" if where == "candidate" else "true"
    task = write_task(
        tmp_path,
        f"""\
        name: endings
        prompt: Make the check pass.
        start: {{repository: {{path: repo}}}}
        agents:
          - {{name: quick, driver: command, command: 'touch made'}}
        limits: {{deadline: 8s}}
        checks:
          - {{name: check, run: '{condition} && (setsid sleep {marker} & sleep {marker}); exit 1'}}
        """,
    )

    finished = forkyard("run", task, "--json", directory=tmp_path)
    quick = attempts(run_result(finished))["quick"]

    assert finished.returncode == 14, finished.stderr
    assert (quick["state"], quick["cleanup"]) == ("finished", "done")
    assert [file["path"] for file in quick["candidate"]["files"]] == ["made"]
    assert quick["evaluation"]["verdict"] == "not-evaluated"
    assert "the run's deadline passed" in quick["evaluation"]["trouble"]
    assert alive(marker) == []
    with connect_blocking() as client:
        assert client.workspaces.list(everything=True) == []


@pytest.mark.usefixtures("home")
def test_cancelled_run_keeps_log_and_candidate(tmp_path: Path) -> None:
    """Cancel ends children that ignore TERM, and what the agent did so far is not thrown away."""
    make_repository(tmp_path / "repo")
    marker = "31415003"
    task = _task(
        tmp_path, agents=_agent("slow", _stubborn(marker)), limits="{attempt_timeout: 10m}"
    )
    run = run_result(forkyard("run", task, "--detach", "--json", directory=tmp_path))["id"]
    deadline = time.monotonic() + 30
    while not alive(marker):
        assert time.monotonic() < deadline
        time.sleep(0.05)

    cancelled = forkyard("cancel", run, directory=tmp_path)
    with connect_blocking() as client:
        info = client.runs.wait(run)

    (attempt,) = info.tasks[0].attempts
    assert cancelled.returncode == 0, cancelled.stderr
    assert info.state == "cancelled"
    assert attempt.state == "cancelled"
    assert attempt.candidate is not None
    assert _log(attempt.id) == "started\n"
    assert alive(marker) == []


@pytest.mark.deep
@pytest.mark.usefixtures("home")
def test_interrupt_cancels_the_run_and_keeps_its_results(tmp_path: Path) -> None:
    """Ctrl-C at a watched run: the attempts end, the result is printed, the status is 130."""
    make_repository(tmp_path / "repo")
    marker = "31415004"
    task = _task(
        tmp_path, agents=_agent("slow", _stubborn(marker)), limits="{attempt_timeout: 10m}"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "run", str(task), "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not alive(marker) or child.poll() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    child.send_signal(2)
    out, err = child.communicate(timeout=60)

    assert child.returncode == 130, err
    assert '"cancelled"' in out.splitlines()[-1]
    assert alive(marker) == []


@pytest.mark.usefixtures("home")
def test_agent_that_cannot_start_is_told_apart_from_trouble_of_ours(tmp_path: Path) -> None:
    """A command that does not exist is the agent's failure, in words, and others go on."""
    make_repository(tmp_path / "repo")
    task = _task(
        tmp_path,
        agents=_agent("absent", "no-such-agent --go") + _agent("quick", FIX.replace("'", '"')),
        limits="{attempt_timeout: 1m}",
    )

    finished = forkyard("run", task, "--json", directory=tmp_path)
    result = run_result(finished)

    absent, quick = attempts(result)["absent"], attempts(result)["quick"]
    assert finished.returncode == 0
    assert absent["state"] == "finished"
    assert absent["exit_code"] == 127
    assert quick["evaluation"]["verdict"] == "solved"
    assert result["tasks"][0]["winner"] == quick["candidate"]["id"]


@pytest.mark.deep
@pytest.mark.usefixtures("home")
def test_sixty_four_attempts_queue_and_all_end(tmp_path: Path) -> None:
    """More attempts than slots wait their turn; every one ends, and nothing is left."""
    make_repository(tmp_path / "repo")
    task = write_task(
        tmp_path,
        """\
        name: many
        prompt: Make the check pass.
        start: {repository: {path: repo}}
        agents:
          - {name: crowd, driver: command, command: 'true', attempts: 64}
        checks:
          - {name: check, run: python3 -B check.py}
        """,
    )

    finished = forkyard("run", task, "--json", directory=tmp_path)
    result = run_result(finished)

    states = [attempt["state"] for attempt in result["tasks"][0]["attempts"]]
    assert states == ["finished"] * 64
    assert finished.returncode == 1
    assert {attempt["cleanup"] for attempt in result["tasks"][0]["attempts"]} == {"done"}
    with connect_blocking() as client:
        assert client.workspaces.list(everything=True) == []
