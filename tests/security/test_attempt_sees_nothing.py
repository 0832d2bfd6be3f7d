"""What an attempt looks for and does not find: host, siblings, later history, held-out files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forkyard import connect_blocking
from projects import attempts, forkyard, git, make_repository, run_result, write_task

CANARY = "CANARY-5f3a9d1c"
HELD_OUT = "HELDOUT-77aa01"
FUTURE = "FUTUREFIX-9b1e"

LOOK = Path(__file__).with_name("look_around.sh").read_text()

EXPECTED = """\
== environment
0
== homes
/home: workspace  /root: 
== sockets
0
0
== state
0
== words
0
== history
1
0
1
0
0
0
0
0
0
0
== siblings
repo 0
== mounts
0
"""  # noqa: W291 - as ls prints it


def _history(repository: Path) -> None:
    """Give the repository everything that tells the answer: after, beside and under the base."""
    base = git(repository, "rev-parse", "HEAD").strip()
    for name in ("later", "beside"):
        git(repository, "checkout", "-q", "-b", name, base)
        (repository / "adder.py").write_text(
            f"# {FUTURE} {name}\ndef add(a, b):\n    return a + b\n"
        )
        git(repository, "commit", "-qam", f"{FUTURE} {name}")
    git(repository, "tag", "-a", "v2", "-m", FUTURE)
    git(repository, "notes", "add", "-m", FUTURE)
    git(repository, "checkout", "-q", "main")
    (repository / "adder.py").write_text(f"# {FUTURE} stashed\n")
    git(repository, "stash", "-q")
    (repository / "adder.py").write_text(f"# {FUTURE} reset away\n")
    git(repository, "commit", "-qam", FUTURE)
    git(repository, "reset", "-q", "--hard", base)
    git(repository, "remote", "add", "origin", f"https://user:{CANARY}@example.org/x.git")


def test_attempt_finds_nothing_that_it_must_not_see(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look around from inside, with a canary in everything that could leak."""
    monkeypatch.setenv("CANARY_VARIABLE", CANARY)
    repository = make_repository(tmp_path / "repo")
    _history(repository)
    held = tmp_path / "hidden"
    held.mkdir()
    (held / "test_hidden.py").write_text(f"# {HELD_OUT}\n")
    look = {"name": "looker", "driver": "command", "command": LOOK.replace("$STATE", str(home))}
    other = {"name": "other", "driver": "command", "command": "OTHER_ATTEMPT=1 sleep 3"}
    # JSON is YAML, and needs no care for the script's own lines.
    task = write_task(
        tmp_path,
        json.dumps(
            {
                "name": "look",
                "prompt": "Look around.",
                "start": {"repository": {"path": "repo"}},
                "agents": [look, other],
                "checks": [{"name": "hidden", "run": f"grep -q {HELD_OUT} test_hidden.py"}],
                "held_out": ["hidden/"],
            }
        ),
    )

    finished = forkyard("run", task, "--json", directory=tmp_path)
    looker = attempts(run_result(finished))["looker"]
    with connect_blocking() as client:
        log = b"".join(client.runs.log(looker["id"])).decode()

    assert log == EXPECTED
    assert looker["evaluation"]["checks"][0]["state"] == "passed"
    assert os.environ["CANARY_VARIABLE"] == CANARY
