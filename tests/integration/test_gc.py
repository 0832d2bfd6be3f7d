"""`forkyard gc` with real stores: the disk is given back, and nobody's work is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from depth import first
from projects import FIX, attempts, forkyard, git, make_repository, run_result

AGENT = f"a={FIX}; head -c 300000 /dev/urandom > big"


def gc(directory: Path, *options: str) -> dict[str, Any]:
    """Collect garbage; give the report."""
    done = forkyard("gc", "--json", *options, directory=directory)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


def used(home: Path) -> int:
    """Measure the state directory."""
    done = subprocess.run(["du", "-sk", home], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[0]) * 1024


def kinds(report: dict[str, Any]) -> dict[str, list[str]]:
    """Name what a report lists, by kind."""
    found: dict[str, list[str]] = {}
    for one in report["removed"]:
        found.setdefault(one["kind"], []).append(one["name"])
    return found


def quick(repository: Path) -> dict[str, Any]:
    """Run the quick form; give the attempt."""
    ran = forkyard(
        "run", "fix it", "-a", AGENT, "--check", "python3 -B check.py", "--json",
        directory=repository,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    result = run_result(ran)
    return {"run": result["id"], **attempts(result)["a"]}


def test_what_runs_made_by_themselves_goes_and_their_work_stays(tmp_path: Path, home: Path) -> None:
    """Candidates, patches and logs are whole afterwards, and can be applied and undone."""
    repository = make_repository(tmp_path / "repo")
    (repository / "data").write_bytes(os.urandom(3_000_000))
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "data")
    first, second = quick(repository), quick(repository)
    candidate = first["candidate"]["id"]
    patch = forkyard("diff", candidate, directory=repository).stdout
    assert gc(repository)["removed"] == []
    before = used(home)

    asked = gc(repository, "--dry-run", "--older-than", "0.001s")

    assert used(home) >= before - 100_000
    assert [name.split("@")[1][0] for name in kinds(asked)["snapshot"]] == ["1", "2"]
    assert len(kinds(asked)["template"]) == 1
    assert asked["size_bytes"] > 6_000_000

    done = gc(repository, "--older-than", "0.001s")

    assert kinds(done) == kinds(asked)
    assert done["size_bytes"] == asked["size_bytes"]
    assert used(home) < before - 5_000_000
    assert gc(repository, "--older-than", "0.001s")["removed"] == []
    assert json.loads(forkyard("snapshot", "list", "--json", directory=repository).stdout) == []
    # their work is whole
    assert forkyard("diff", candidate, directory=repository).stdout == patch
    assert forkyard("logs", second["id"], directory=repository).returncode == 0
    assert forkyard("compare", first["run"], directory=repository).returncode == 0
    applied = forkyard("apply", candidate, directory=repository)
    assert applied.returncode == 0, applied.stderr
    assert (repository / "adder.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert forkyard("undo", directory=repository).returncode == 0
    assert git(repository, "status", "--porcelain") == ""
    # and what cannot be done any more says so
    refused = forkyard("regrade", first["run"], directory=repository)
    assert refused.returncode == 4
    assert "the snapshot that task fix-it started from is gone" in refused.stderr
    # a new run makes everything anew
    assert quick(repository)["evaluation"]["verdict"] == "solved"


@pytest.mark.deep
def test_what_a_person_named_or_stands_on_stays(tmp_path: Path, home: Path) -> None:
    """A workspace that somebody forked from a run's snapshot keeps that snapshot."""
    repository = make_repository(tmp_path / "repo")
    quick(repository)
    (automatic,) = json.loads(forkyard("snapshot", "list", "--json", directory=home).stdout)
    made = forkyard(
        "workspace", "create", "--snapshot", automatic["name"], "--json", directory=home
    )
    workspace = json.loads(made.stdout)["id"]
    assert gc(home, "--older-than", "0.001s")["removed"] == []
    assert forkyard("workspace", "stop", workspace, directory=home).returncode == 0
    own = forkyard("snapshot", "create", "mine", "--workspace", workspace, directory=home)
    assert own.returncode == 0, own.stderr
    assert forkyard("workspace", "delete", workspace, directory=home).returncode == 0

    gc(home, "--older-than", "0.001s")

    names = [
        s["name"] for s in json.loads(forkyard("snapshot", "list", "--json", directory=home).stdout)
    ]
    assert "mine" in names
    again = forkyard("workspace", "create", "--snapshot", "mine", "--json", directory=home)
    workspace = json.loads(again.stdout)["id"]
    seen = forkyard(
        "workspace", "exec", workspace, "--", "cat", "/workspace/repo/adder.py", directory=home
    )
    assert seen.stdout == "def add(a, b):\n    return a - b\n", seen.stderr


@pytest.mark.parametrize("point", first("G01", "G02"))
def test_a_collection_that_was_killed_is_ended_by_the_next(
    tmp_path: Path, home: Path, point: str
) -> None:
    """Rows go before their files: nothing that is listed is half there."""
    repository = make_repository(tmp_path / "repo")
    candidate = quick(repository)["candidate"]["id"]
    assert forkyard("serve", "--stop", directory=repository).returncode == 0
    killed = forkyard(
        "gc", "--older-than", "0.001s", directory=repository,
        variables={"FORKYARD_FAILPOINT": point},
    )  # fmt: skip
    assert killed.returncode != 0
    gc(repository, "--older-than", "0.001s")
    assert json.loads(forkyard("snapshot", "list", "--json", directory=repository).stdout) == []
    assert list((home / "layers").iterdir()) == []
    assert list((home / "trash").iterdir()) == []
    assert forkyard("apply", candidate, directory=repository).returncode == 0
