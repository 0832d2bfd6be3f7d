"""The demo: what it lays out, and what it ends in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forkyard.cli.demo import REPOSITORY, prepare
from forkyard.errors import WorkspaceError
from forkyard.wire.taskfile import parse_run


def git(folder: Path, *arguments: str) -> str:
    """Ask git about the demo's repository."""
    return subprocess.run(
        ["git", "-C", folder, *arguments], check=True, capture_output=True, text=True
    ).stdout


def run_tests(folder: Path) -> int:
    """Run the demo repository's own tests."""
    return subprocess.run(
        [sys.executable, "-B", "tests/run_tests.py"], cwd=folder, check=False, capture_output=True
    ).returncode


def test_the_example_is_one_commit_and_a_failing_test_that_is_not_committed(tmp_path: Path) -> None:
    """The committed tests pass; the developer's own, uncommitted one fails."""
    prepare(tmp_path)
    repository = tmp_path / REPOSITORY

    assert git(repository, "status", "--porcelain") == "?? tests/test_clock.py\n"
    assert git(repository, "rev-list", "--count", "HEAD") == "1\n"
    assert run_tests(repository) == 1
    (repository / "tests" / "test_clock.py").unlink()
    assert run_tests(repository) == 0


def test_the_bundled_task_file_is_valid_and_starts_from_the_files_as_they_lie(
    tmp_path: Path,
) -> None:
    """It goes through the reader that users' files go through."""
    file = prepare(tmp_path)
    request = parse_run(file.read_text(), str(file))
    (task,) = request.tasks

    assert [agent.name for agent in task.agents] == ["careful", "hasty", "cheater"]
    assert task.start.include_uncommitted
    assert task.start.repository_path is not None
    assert request.resolve(task.start.repository_path) == str(tmp_path / REPOSITORY)


def test_no_agent_knows_a_check(tmp_path: Path) -> None:
    """What an agent's script says names neither a check's command nor another agent."""
    file = prepare(tmp_path)
    (task,) = parse_run(file.read_text(), str(file)).tasks
    commands = [agent.command for agent in task.agents]

    assert [one for one in commands for check in task.checks if check.run in one] == []
    names = [agent.name for agent in task.agents]
    assert [one for one in commands for name in names if name in one] == []


def test_a_folder_that_cannot_hold_a_repository_is_one_clear_sentence(tmp_path: Path) -> None:
    """A `.git` that is no repository: git's reason, and what to do."""
    (tmp_path / REPOSITORY).mkdir()
    (tmp_path / REPOSITORY / ".git").write_text("gitdir: /nowhere/at/all\n")

    with pytest.raises(WorkspaceError, match="cannot prepare the demo") as caught:
        prepare(tmp_path)
    assert caught.value.hint


@pytest.mark.usefixtures("home")
def test_the_demo_ranks_the_right_agent_first_and_says_what_to_type_next(tmp_path: Path) -> None:
    """The right one is solved and wins; the others are regressed and failed."""
    ran = subprocess.run(
        [sys.executable, "-m", "forkyard", "demo", "--folder", tmp_path / "a b", "--json"],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    (task,) = result["tasks"]
    verdicts = {one["agent"]: one["evaluation"]["verdict"] for one in task["attempts"]}
    assert verdicts == {"careful": "solved", "hasty": "regressed", "cheater": "failed"}
    winner = next(one for one in task["attempts"] if one["agent"] == "careful")
    assert task["winner"] == winner["candidate"]["id"]
    assert task["ranking"][0]["candidate"] == winner["candidate"]["id"]
    assert {one["cleanup"] for one in task["attempts"]} == {"done"}
