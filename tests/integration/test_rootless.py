"""The main job as an ordinary user: the demo, his own repository, crashes, nothing left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leftovers import processes
from ordinary import ROOT, USER_ID, OrdinaryUser

PATIENCE_SECONDS = 60.0
LENT_VARIABLES = re.compile(r"(?i)((https?|no)_proxy|PIP_.*|.*_CA_BUNDLE|SSL_CERT_FILE)")
"""Where this machine's pip finds packages and whom it trusts."""
CHECK = "grep -q fixed state"


def until(is_so: Callable[[], bool]) -> None:
    """Look until something outside this process has happened."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def repository(user: OrdinaryUser) -> Path:
    """Make a repository of the user's, with work that is not committed."""
    folder = user.home / "project"
    done = user.run(
        "sh", "-ec",
        "mkdir project && cd project && git init -q -b main && echo broken > state"
        " && printf '#!/bin/sh\\necho yes\\n' > tool && chmod 750 tool && git add -A"
        " && git -c user.name=a -c user.email=a@b commit -qm first && echo mine > notes",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def told(text: str) -> dict[str, Any]:
    """Read the result of `--json`."""
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def ours(user: OrdinaryUser, word: bytes) -> list[int]:
    """List the user's processes whose command line or environment holds a word."""
    mark = os.fsencode(user.state)
    return [one.pid for one in processes().values() if mark in one.words and word in one.words]


@pytest.mark.deep
def test_the_door_leads_to_the_demo_when_an_ordinary_user_opens_it(ordinary: OrdinaryUser) -> None:
    """`./dev demo` in a checkout of his own, in a folder with a space, with nothing prepared."""
    checkout = ordinary.home / "my forkyard"
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True
    ).stdout
    for name in map(os.fsdecode, filter(None, tracked.split(b"\0"))):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    subprocess.run(["chown", "-R", f"{USER_ID}:{USER_ID}", checkout], check=True)
    lent = {name: value for name, value in os.environ.items() if LENT_VARIABLES.fullmatch(name)}

    done = ordinary.run("./dev", "demo", "--json", directory=checkout, variables=lent)

    assert done.returncode == 0, done.stderr
    attempts = told(done.stdout)["tasks"][0]["attempts"]
    assert {one["agent"]: one["evaluation"]["verdict"] for one in attempts} == {
        "careful": "solved",
        "hasty": "regressed",
        "cheater": "failed",
    }


@pytest.mark.deep
def test_the_demo_ends_in_the_comparison_when_run_by_an_ordinary_user(
    ordinary: OrdinaryUser,
) -> None:
    """Template, forks, agents, collection, evaluation and ranking work without root."""
    done = ordinary.forkyard("demo", "--json")

    (task,) = told(done.stdout)["tasks"]
    verdicts = {one["agent"]: one["evaluation"]["verdict"] for one in task["attempts"]}
    assert verdicts == {"careful": "solved", "hasty": "regressed", "cheater": "failed"}


def test_a_candidate_is_applied_and_undone_in_the_users_own_repository(
    ordinary: OrdinaryUser,
) -> None:
    """What is put into his tree is his, with its modes, and goes back as it was."""
    folder = repository(ordinary)

    done = ordinary.forkyard(
        "run", "Fix it", "-a", "good=echo fixed > state; echo echo more >> tool; mkdir -p new/deep;"
        " echo x > new/deep/file", "--check", CHECK, "--quiet", "--json", directory=folder,
    )  # fmt: skip
    winner = told(done.stdout)["tasks"][0]["winner"]
    ordinary.forkyard("apply", winner, directory=folder)

    assert (folder / "state").read_text() == "fixed\n"
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in folder.rglob("*")}
    assert owners == {(USER_ID, USER_ID)}
    assert (folder / "tool").stat().st_mode & 0o777 == 0o750
    ordinary.forkyard("undo", directory=folder)
    assert (folder / "state").read_text() == "broken\n"
    assert not (folder / "new").exists()
    assert (folder / "notes").read_text() == "mine\n"


@pytest.mark.deep
def test_a_run_goes_on_when_the_server_is_killed_in_it(ordinary: OrdinaryUser) -> None:
    """The next server stands in the same user namespace, finds the sandbox and waits for it."""
    folder = repository(ordinary)
    run = told(
        ordinary.forkyard(
            "run", "Fix it", "-a", "slow=touch begun; sleep 6; echo fixed > state",
            "--check", CHECK, "--detach", "--json", directory=folder,
        ).stdout
    )["id"]  # fmt: skip
    uppers = ordinary.state / "workspaces"
    until(lambda: bool(list(uppers.glob("*/disk/upper/workspace/repo/begun"))))
    (server,) = ours(ordinary, b"--on-demand")
    before = Path(f"/proc/{server}/ns/user").readlink()
    os.kill(server, signal.SIGKILL)

    done = ordinary.forkyard("watch", run, "--json", directory=folder)

    (attempt,) = told(done.stdout)["tasks"][0]["attempts"]
    assert (attempt["state"], attempt["evaluation"]["verdict"]) == ("finished", "solved")
    (after,) = ours(ordinary, b"--on-demand")
    assert after != server
    assert Path(f"/proc/{after}/ns/user").readlink() == before


def test_an_attempt_is_interrupted_and_nothing_is_left_when_its_shim_is_killed(
    ordinary: OrdinaryUser,
) -> None:
    """Its processes go with it, without a cgroup; the run ends and says what it was."""
    folder = repository(ordinary)
    run = told(
        ordinary.forkyard(
            "run", "Fix it", "-a", "slow=touch begun; setsid sleep 876543 & sleep 876543",
            "--check", CHECK, "--detach", "--json", directory=folder,
        ).stdout
    )["id"]  # fmt: skip
    uppers = ordinary.state / "workspaces"
    until(lambda: bool(list(uppers.glob("*/disk/upper/workspace/repo/begun"))))
    (begun,) = uppers.glob("*/disk/upper/workspace/repo/begun")
    pid = int((uppers / begun.relative_to(uppers).parts[0] / "sandbox/shim.pid").read_text())
    until(lambda: bool(sleepers()))

    os.kill(pid, signal.SIGKILL)

    until(lambda: not sleepers())
    done = ordinary.forkyard("watch", run, "--json", directory=folder, code=None)
    (attempt,) = told(done.stdout)["tasks"][0]["attempts"]
    assert attempt["state"] == "interrupted"


def sleepers() -> list[int]:
    """List what the killed shim's attempt runs."""
    return [one.pid for one in processes().values() if b"\0876543\0" in one.words]


def test_nothing_is_left_when_the_server_ends(ordinary: OrdinaryUser) -> None:
    """No process, mount or sandbox folder outlives the last of what was asked for."""
    folder = repository(ordinary)
    ordinary.forkyard(
        "run", "Fix it", "-a", "good=setsid sleep 876541 & echo fixed > state", "--check", CHECK,
        "--quiet", directory=folder,
    )  # fmt: skip
    ordinary.forkyard("serve", "--stop")

    mark = os.fsencode(ordinary.state)
    until(lambda: not [one for one in processes().values() if mark in one.words])
    assert list((ordinary.state / "workspaces").iterdir()) == []
    mounts = ordinary.as_root("cat", "/proc/self/mountinfo").stdout
    assert str(ordinary.state) not in mounts


def test_a_limit_that_cannot_be_enforced_is_told_and_the_deadline_ends_the_attempt(
    ordinary: OrdinaryUser,
) -> None:
    """Doctor and manifest say `not enforced`; time limits hold, also for what forks."""
    folder = repository(ordinary)
    report = told(ordinary.forkyard("doctor", "--json").stdout)
    task = ordinary.home / "task.yaml"
    forks = "while :; do (setsid sh -c 'while :; do :; done' &); sleep 0.05; done"
    text = (
        "name: hog\nprompt: x\nstart:\n  repository: {path: project}\n"
        f'agents:\n  - {{name: hog, driver: command, command: "{forks}"}}\n'
        "limits: {attempt_timeout: 3s}\n"
        f"checks:\n  - {{name: c, run: {CHECK}}}\n"
    )
    ordinary.run(sys.executable, "-c", f"open({str(task)!r}, 'w').write({text!r})")

    done = ordinary.forkyard("run", task, "--quiet", "--json", directory=folder, code=None)

    for name in ("memory limit", "cpu limit", "process limit"):
        assert report["protections"][name] == "not enforced"
    assert done.stdout, done.stderr
    (attempt,) = told(done.stdout)["tasks"][0]["attempts"]
    assert attempt["state"] == "timed-out"
    (manifest,) = (ordinary.state / "runs").glob("*/*/manifest.json")
    assert json.loads(manifest.read_text())["isolation"]["memory limit"] == "not enforced"


def test_ssh_finds_the_users_keys_when_an_address_is_cloned(ordinary: OrdinaryUser) -> None:
    """It asks the system, which knows id 0 as root: the user's home lies there meanwhile."""
    keys = ordinary.home / ".ssh"
    done = ordinary.run("sh", "-ec", "mkdir .ssh; echo the key of mine > .ssh/mine")
    assert done.returncode == 0, done.stderr
    fake = (
        '#!/bin/sh\nhome=$(getent passwd "$(id -u)" | cut -d: -f6)\n'
        'echo fatal: $(cat "$home/.ssh/mine") >&2\n'
    )
    ordinary.put_over("/usr/bin/ssh", f"{fake}exit 1\n", mode=0o755)
    file = keys.parent / "t.yaml"
    text = "spec:\n  image: host\n  repository:\n    url: ssh://example.invalid/x\n"
    ordinary.run(sys.executable, "-c", f"open({str(file)!r}, 'w').write({text!r})")
    ordinary.forkyard("template", "apply", file, "--name", "t")

    failed = ordinary.forkyard("template", "build", "t", code=10)

    logs = "".join(path.read_text() for path in (ordinary.state / "builds").rglob("*log*"))
    assert "the key of mine" in failed.stderr + failed.stdout + logs
