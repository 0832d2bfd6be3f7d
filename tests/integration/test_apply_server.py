"""The whole way of `apply` through the program, the server killed in the middle of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = "echo two >two && echo changed >one && rm three"


def forkyard(
    *arguments: str, folder: Path, failpoint: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the program as a person does."""
    return subprocess.run(
        [sys.executable, "-m", "forkyard", *arguments],
        check=False,
        cwd=folder,
        env={**os.environ, "FORKYARD_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def files(folder: Path) -> dict[str, str]:
    """Read what lies in the tree, whatever its name."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def repository(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Make a user's repository; give it and its files."""
    tree = tmp_path / "a tree"
    tree.mkdir()
    before = {"one": "1\n", "three": "3\n"}
    for name, text in before.items():
        (tree / name).write_text(text)
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@localhost"]
    for arguments in (["init", "-q"], ["add", "--all"], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *arguments], cwd=tree, check=True)
    return tree, before


def a_candidate(tree: Path) -> str:
    """Run an agent in it; give the id of what it did."""
    ran = forkyard("run", "work", "-a", f"a={AGENT}", "--check", "true", "--json", folder=tree)
    (task,) = json.loads(ran.stdout.splitlines()[-1])["tasks"]
    candidate = task["attempts"][0]["candidate"]["id"]
    assert isinstance(candidate, str)
    return candidate


@pytest.mark.usefixtures("home")
def test_the_tree_is_whole_again_when_the_server_was_killed_while_applying(tmp_path: Path) -> None:
    """The next start takes the way back; applying once more then works; twice is refused."""
    tree, before = repository(tmp_path)
    candidate = a_candidate(tree)
    assert forkyard("serve", "--stop", folder=tree).returncode == 0

    killed = forkyard("apply", candidate, folder=tree, failpoint="A06")

    assert killed.returncode not in {0, 4}, killed.stdout
    assert forkyard("doctor", folder=tree).returncode == 0
    assert files(tree) == before
    assert not list(tree.glob(".forkyard*"))

    again = forkyard("apply", candidate, folder=tree)

    after = {"one": "changed\n", "two": "two\n"}
    assert (again.returncode, files(tree)) == (0, after), again.stderr
    twice = forkyard("apply", candidate, folder=tree)
    assert (twice.returncode, files(tree)) == (4, after)
    assert "'one' has other content" in twice.stderr


@pytest.mark.deep
@pytest.mark.usefixtures("home")
def test_the_last_application_is_taken_back_when_asked_for(tmp_path: Path) -> None:
    """Says what it will touch, refuses an edited tree, survives kill -9, and is done once."""
    tree, before = repository(tmp_path)
    candidate = a_candidate(tree)
    assert forkyard("undo", folder=tree).returncode == 3
    assert forkyard("apply", candidate, folder=tree).returncode == 0
    after = {"one": "changed\n", "two": "two\n"}

    asked = forkyard("undo", "--dry-run", folder=tree)

    assert (asked.returncode, files(tree)) == (0, after), asked.stderr
    assert [line.strip() for line in asked.stderr.splitlines()[1:]] == [
        "put back one",
        "bring back three",
        "remove two",
    ]
    (tree / "two").write_text("mine")
    refused = forkyard("undo", folder=tree)
    assert (refused.returncode, files(tree)) == (4, {**after, "two": "mine"})
    assert "'two' has other content" in refused.stderr
    assert "Taking" not in refused.stderr  # nothing is said of what is not going to be done
    (tree / "two").write_text("two\n")
    assert forkyard("serve", "--stop", folder=tree).returncode == 0

    killed = forkyard("undo", folder=tree, failpoint="A13")

    assert killed.returncode not in {0, 4}, killed.stdout
    assert forkyard("doctor", folder=tree).returncode == 0
    assert files(tree) == before
    (listed,) = json.loads(forkyard("undo", "--list", "--json", folder=tree).stdout)
    assert (listed["state"], listed["target"]) == ("undone", str(tree))
    assert forkyard("undo", folder=tree).returncode == 3
    assert forkyard("undo", listed["id"], folder=tree).returncode == 4
    assert forkyard("apply", candidate, folder=tree).returncode == 0
    subfolder = tree / "below"
    subfolder.mkdir()
    undone = forkyard("undo", "--json", folder=subfolder)
    assert json.loads(undone.stdout)["state"] == "undone"
    assert files(tree) == before
