"""The command line as a child process: exit codes, streams, JSON, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkyard.bootstrap.state_directory import LOCK_PATIENCE_SECONDS

PATIENCE_SECONDS = 120.0
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
FIX = "good=echo fixed > state"
IDLE = "idle=true"
SLOW = "slow=echo begun; echo half > state; trap '' TERM; setsid sleep 1000 & sleep 1000"
CHECK = "grep -q fixed state"


def forkyard(
    home: Path, *arguments: str | Path, directory: Path | None = None, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end and look at its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "forkyard", *arguments],
        cwd=directory,
        env={**os.environ, "FORKYARD_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert code is None or done.returncode == code, done.stderr
    return done


def answer(done: subprocess.CompletedProcess[str]) -> Any:  # noqa: ANN401 - any JSON
    """Read the last line of stdout."""
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with one commit and an uncommitted change."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "state").write_text("broken\n")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run([*GIT, *arguments], cwd=folder, check=True)
    (folder / "notes").write_text("uncommitted\n")
    return folder


@pytest.fixture
def waiting(module_home: Path, repository: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run whose agent never ends by itself, and wait until it is running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "run", "wait", "--json", "-a", SLOW],
        cwd=repository,
        env={**os.environ, "FORKYARD_HOME": str(module_home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "slow: running" in line:
            break
    yield process
    process.kill()
    process.communicate()


def test_a_run_ends_in_a_comparison_and_exit_code_0(module_home: Path, repository: Path) -> None:
    """Progress goes to stderr, one line per change; the result to stdout, with the next step."""
    done = forkyard(
        module_home, "run", "Fix it", "-a", FIX, "-a", IDLE, "--check", CHECK, directory=repository
    )

    assert "uncommitted work included" in done.stderr
    assert "good: finished" in done.stderr
    assert "solved" in done.stdout
    assert "Next: forkyard diff cand_" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_a_log_is_found_by_the_names_that_the_comparison_shows(
    module_home: Path, repository: Path
) -> None:
    """Agent, agent with number, of another run, candidate; several that fit are a conflict."""
    loud = "loud=echo here I am"
    run = answer(
        forkyard(module_home, "run", "Say", "-a", loud, "-n", "2", "--json", directory=repository,
                 code=14)
    )  # fmt: skip
    candidate = run["tasks"][0]["attempts"][0]["candidate"]["id"]

    for name in ("loud#1", f"{run['id']}:loud#2", candidate):
        assert forkyard(module_home, "logs", name).stdout == "here I am\n"
    assert "fits 2 of them (att_" in forkyard(module_home, "logs", "loud", code=4).stderr
    assert "RUN:AGENT" in forkyard(module_home, "logs", "silent", code=3).stderr


def test_json_ends_with_the_documented_object(module_home: Path, repository: Path) -> None:
    """Every key that scripts rely on."""
    done = forkyard(
        module_home, "run", "Fix it", "-a", FIX, "--check", CHECK, "--json", directory=repository
    )
    told = answer(done)

    assert {"id", "state", "tasks", "usage"} <= set(told)
    (task,) = told["tasks"]
    assert {"name", "base", "attempts", "ranking", "winner"} <= set(task)
    assert set(task["base"]) >= {"commit", "tree", "snapshot"}
    (attempt,) = task["attempts"]
    assert set(attempt) >= {
        "id", "agent", "state", "exit_code", "elapsed_seconds", "cleanup", "candidate",
        "evaluation", "usage",
    }  # fmt: skip
    assert (attempt["state"], attempt["exit_code"], attempt["cleanup"]) == ("finished", 0, "done")
    candidate = attempt["candidate"]
    assert set(candidate) >= {"id", "base_tree", "result_tree", "patch_sha256", "files"}
    assert [one["path"] for one in candidate["files"]] == ["state"]
    assert set(attempt["evaluation"]) >= {"verdict", "assurance", "checks"}
    assert attempt["evaluation"]["checks"][0]["tests"]
    assert (task["winner"], task["ranking"][0]["rank"]) == (candidate["id"], 1)
    assert set(told["usage"]) >= {
        "input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "cost_usd",
    }  # fmt: skip


def test_the_patch_and_the_application_are_what_the_agent_did(
    module_home: Path, repository: Path
) -> None:
    """`diff` gives the patch byte for byte, `apply` writes it, a second time is a conflict."""
    done = forkyard(
        module_home, "run", "Fix", "-a", FIX, "--check", CHECK, "--json", directory=repository
    )
    winner = answer(done)["tasks"][0]["winner"]
    patch = forkyard(module_home, "diff", winner).stdout
    assert "-broken\n+fixed\n" in patch

    applied = answer(forkyard(module_home, "apply", winner, "--json", directory=repository))
    assert (applied["state"], applied["paths"]) == ("applied", ["state"])
    assert (repository / "state").read_text() == "fixed\n"
    assert (repository / "notes").read_text() == "uncommitted\n"
    refused = forkyard(module_home, "apply", winner, directory=repository, code=4)
    assert "state" in refused.stderr


def test_none_good_enough_is_exit_code_1(module_home: Path, repository: Path) -> None:
    """A result, and said as one."""
    done = forkyard(
        module_home, "run", "Fix", "-a", IDLE, "--check", CHECK, directory=repository, code=1
    )

    assert "failed" in done.stdout
    assert "Error" not in done.stderr


def test_every_mistake_of_a_task_file_is_told_at_once(module_home: Path, tmp_path: Path) -> None:
    """File, line and key of each; exit code 2; nothing is made."""
    before = answer(forkyard(module_home, "status", "--json"))
    file = tmp_path / "task.yaml"
    file.write_text(
        "name: t\n"
        "prompt: do it\n"
        "start: {snapshot: none}\n"
        "agents:\n"
        "  - {name: a, driver: command, command: 'true', model: b i g}\n"
        "limits: {parallel: many, budget: {usd: none}}\n"
        "nonsense: 1\n"
    )
    done = forkyard(module_home, "run", file, "--json", code=2)

    for line, key in ((5, "agents.0.model"), (6, "limits.parallel"), (6, "limits.budget.usd")):
        assert f"{file}:{line}: {key}" in done.stderr
    assert f"{file}:7: nonsense" in done.stderr
    assert len(answer(done)["error"]["problems"]) >= 4
    assert answer(forkyard(module_home, "status", "--json")) == before


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status", "run_0000"], 3),
        (["compare", "none"], 3),
        (["diff", "cand_0000"], 3),
        (["logs", "att_0000"], 3),
        (["workspace", "exec", "ws_0000", "--", "true"], 3),
        (["snapshot", "show", "none"], 3),
        (["workspace", "create", "--snapshot", "none"], 3),
        (["workspace", "create"], 2),
        (["template", "apply", "/nowhere.yaml"], 3),
        (["template", "build", "none"], 3),
        (["run", "nothing.yaml"], 3),
        (["run", "a prompt without an agent"], 2),
        (["run", "a prompt", "-a", "claude-code"], 2),
        (["run", "a prompt", "-a", "x=true", "--timeout", "soon"], 2),
        (["run", "a prompt", "-a", "x=true", "--snapshot", "none"], 3),
        (["nonsense"], 2),
        (["status", "--nonsense"], 2),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_the_documented_code(
    module_home: Path, arguments: list[str], code: int
) -> None:
    """No traceback, no output on stdout."""
    done = forkyard(module_home, *arguments, code=code)

    assert "Traceback" not in done.stderr
    assert "rror: " in done.stderr
    assert done.stdout == ""


def test_the_first_interrupt_cancels_the_run_and_keeps_its_results(
    module_home: Path, waiting: subprocess.Popen[str]
) -> None:
    """It says so, ends with 130, and what the agent had done is a candidate."""
    waiting.send_signal(signal.SIGINT)
    stdout, stderr = waiting.communicate(timeout=PATIENCE_SECONDS)
    told = json.loads(stdout.strip().splitlines()[-1])
    (attempt,) = told["tasks"][0]["attempts"]

    assert waiting.returncode == 130
    assert "Cancelling the run" in stderr
    assert (told["state"], attempt["state"]) == ("cancelled", "cancelled")
    assert [one["path"] for one in attempt["candidate"]["files"]] == ["state"]
    assert attempt["cleanup"] == "done"
    assert forkyard(module_home, "logs", attempt["id"]).stdout == "begun\n"
    assert forkyard(module_home, "workspace", "list", "--all", "--json").stdout == "[]\n"


def test_the_second_interrupt_leaves_at_once(
    module_home: Path, waiting: subprocess.Popen[str]
) -> None:
    """The run is still cancelled by the server."""
    waiting.send_signal(signal.SIGINT)
    assert waiting.stderr is not None
    for line in waiting.stderr:
        if "Cancelling" in line:
            break
    waiting.send_signal(signal.SIGINT)
    waiting.wait(timeout=20)

    assert waiting.returncode == 130
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (
        answer(forkyard(module_home, "status", "last", "--json", code=None))["state"] == "running"
    ):
        assert time.monotonic() < deadline


def test_a_detached_run_is_watched_to_its_end(module_home: Path, repository: Path) -> None:
    """Its id is the result; watching gives the run's own exit code."""
    run = forkyard(
        module_home, "run", "Fix", "-a", IDLE, "--check", CHECK, "--detach", directory=repository
    ).stdout.strip()

    assert run.startswith("run_")
    done = forkyard(module_home, "watch", run, "--json", code=1)
    assert answer(done)["state"] == "finished"


def test_the_life_of_a_workspace(module_home: Path, repository: Path, tmp_path: Path) -> None:
    """Template, build, fork, exec, snapshot, delete: each as its own command."""
    file = tmp_path / "tools.yaml"
    file.write_text("spec:\n  repository: {path: repo, include_uncommitted: true}\n")
    forkyard(module_home, "template", "apply", file, "--name", "life")
    built = forkyard(module_home, "template", "build", "life")
    assert "is built: snapshot snap_" in built.stdout
    workspace = forkyard(module_home, "workspace", "create", "--template", "life").stdout.strip()
    shown = forkyard(module_home, "workspace", "exec", workspace, "--", "cat", "notes", "state")
    assert shown.stdout == "uncommitted\nbroken\n"
    failed = forkyard(
        module_home, "workspace", "exec", workspace, "-c", "echo no >&2; exit 7", code=7
    )
    assert failed.stderr == "no\n"
    late = forkyard(
        module_home, "workspace", "exec", workspace, "--timeout", "1s", "-c", "sleep 60", code=124
    )
    assert "timed-out" in late.stderr
    forkyard(module_home, "workspace", "exec", workspace, "--", "no-such-program", code=127)
    typed = forkyard(
        module_home,
        "workspace",
        "exec",
        workspace,
        "-e",
        "A=b c",
        "-w",
        "/",
        "-c",
        'pwd; echo "$A"',
    )
    assert typed.stdout == "/\nb c\n"
    forkyard(module_home, "workspace", "exec", workspace, "-c", "echo done > more")
    forkyard(module_home, "workspace", "stop", workspace)
    forkyard(module_home, "snapshot", "create", "life-1", "--workspace", workspace)
    forkyard(module_home, "snapshot", "create", "life-1", "--workspace", workspace, code=4)
    forkyard(module_home, "workspace", "exec", workspace, "--", "sh", "-c", "echo more > more.txt")
    told = forkyard(module_home, "snapshot", "create", "life-2", "--workspace", workspace)
    assert "consistent at file-system level" in told.stderr
    live = json.loads(forkyard(module_home, "snapshot", "show", "life-2", "--json").stdout)
    stopped = json.loads(forkyard(module_home, "snapshot", "show", "life-1", "--json").stdout)
    assert (live["parent"], live["depth"]) == (stopped["id"], stopped["depth"] + 1)
    assert live["frozen_seconds"] > 0
    assert 0 < live["bytes_unique"] < live["bytes_total"]
    assert "life-1" in forkyard(module_home, "snapshot", "list").stdout
    refused = forkyard(module_home, "snapshot", "delete", "life-1", code=4)
    assert "life-2" in refused.stderr or workspace in refused.stderr
    forkyard(module_home, "snapshot", "delete", "life-2")
    other = forkyard(module_home, "workspace", "create", "--snapshot", "life-1").stdout.strip()
    again = forkyard(module_home, "workspace", "exec", "--json", other, "cat", "more")
    assert answer(again)["stdout"] == "done\n"
    for one in (workspace, other):
        forkyard(module_home, "workspace", "delete", one)
    forkyard(module_home, "snapshot", "delete", "life-1")
    forkyard(module_home, "template", "delete", "life")
    assert repository.exists()


@pytest.mark.usefixtures("repository")
def test_an_interrupted_build_goes_on_and_says_so(module_home: Path, tmp_path: Path) -> None:
    """The build is the server's; who watched it is told where to look."""
    file = tmp_path / "slow.yaml"
    file.write_text(
        "spec:\n  repository: {path: repo}\n  runtime:\n    tasks:\n"
        "      - {name: wait, type: ON_CREATE, run: 'echo begun; sleep 3'}\n"
    )
    forkyard(module_home, "template", "apply", file)
    process = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "template", "build", "slow"],
        env={**os.environ, "FORKYARD_HOME": str(module_home)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line == "begun\n":
            break
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 130
    assert "goes on: `forkyard template show slow --log`" in told
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "building" in (shown := forkyard(module_home, "template", "show", "slow").stdout):
        assert time.monotonic() < deadline
    assert "ready" in shown


@pytest.mark.usefixtures("repository")
def test_a_workspace_is_never_guessed_when_two_have_its_name(
    module_home: Path, tmp_path: Path
) -> None:
    """Deleting the wrong one could not be undone."""
    file = tmp_path / "twins.yaml"
    file.write_text("spec:\n  repository: {path: repo}\n")
    forkyard(module_home, "template", "apply", file)
    forkyard(module_home, "template", "build", "twins")
    first, second = (
        forkyard(
            module_home, "workspace", "create", "--template", "twins", "--name", "twin"
        ).stdout.strip()
        for _ in range(2)
    )

    refused = forkyard(module_home, "workspace", "delete", "twin", code=4)
    assert first in refused.stderr
    assert second in refused.stderr
    forkyard(module_home, "workspace", "delete", first)
    forkyard(module_home, "workspace", "delete", "twin")
    forkyard(module_home, "workspace", "delete", "twin", code=3)


def test_a_second_server_is_refused_at_once_when_one_runs(module_home: Path) -> None:
    """Not after the patience that one gets that is just exiting."""
    forkyard(module_home, "status")
    begun = time.monotonic()

    refused = forkyard(module_home, "serve", code=4)

    assert "does so already" in refused.stderr
    assert "serve --stop" in refused.stderr
    assert time.monotonic() - begun < LOCK_PATIENCE_SECONDS


def test_doctor_says_what_is_in_force(module_home: Path) -> None:
    """As text and as JSON, with the digest of the sandbox's configuration."""
    report = answer(forkyard(module_home, "doctor", "--json"))

    assert report["problems"] == []
    assert report["runtime"]
    assert len(report["digest"]) == 64
    assert report["digest"] in forkyard(module_home, "doctor").stdout


def test_a_reader_that_goes_away_is_no_error(module_home: Path) -> None:
    """`forkyard ... | head` ends quietly."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "forkyard", "doctor"],
        env={**os.environ, "FORKYARD_HOME": str(module_home)},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    os.close(writing)

    assert "Traceback" not in done.stderr


def test_a_task_file_with_several_tasks_and_held_out_tests(
    module_home: Path, repository: Path, tmp_path: Path
) -> None:
    """Held-out files are laid for the evaluation only; exit 0 needs a solution in every task."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "judge.sh").write_text("grep -q fixed state\n")
    file = tmp_path / "two.yaml"
    file.write_text(
        "name: two\n"
        "start: {repository: {path: repo}}\n"
        "agents:\n"
        "  - name: a\n"
        "    driver: command\n"
        "    command: 'test ! -e judge.sh && eval \"$PROMPT\"'\n"
        "held_out: [hidden/]\n"
        "checks:\n"
        "  - {name: judge, run: sh judge.sh}\n"
        "tasks:\n"
        "  - {name: right, prompt: echo fixed > state}\n"
        "  - {name: wrong, prompt: 'true'}\n"
    )
    done = forkyard(module_home, "run", file, "--json", code=1)
    told = answer(done)
    by_name = {task["name"]: task for task in told["tasks"]}

    assert by_name["right"]["winner"] is not None
    assert by_name["wrong"]["winner"] is None
    assert by_name["right"]["base"]["snapshot"] == by_name["wrong"]["base"]["snapshot"]
    files = by_name["right"]["attempts"][0]["candidate"]["files"]
    assert [one["path"] for one in files] == ["state"]

    file.write_text(file.read_text().replace("hidden/", "nowhere/"))
    refused = forkyard(module_home, "run", file, code=2)
    assert "held_out.0" in refused.stderr
    assert repository.exists()


def test_an_agent_that_cannot_start_has_its_own_exit_code(
    module_home: Path, repository: Path
) -> None:
    """And its reason in words."""
    done = forkyard(
        module_home, "run", "p", "-a", "x=no-such-agent", "--check", CHECK,
        directory=repository, code=11,
    )  # fmt: skip

    assert "could not start" in done.stdout


@pytest.mark.deep
def test_a_followed_run_ends_well_though_its_server_is_killed_twice(
    module_home: Path, repository: Path
) -> None:
    """The command line finds the next server by itself; nothing of the run is lost or repeated."""
    agent = "good=echo once >> log; sleep 4; echo fixed > state"
    process = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "run", "p", "--json", "-a", agent, "--check", CHECK],
        cwd=repository,
        env={**os.environ, "FORKYARD_HOME": str(module_home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    kills = 0
    for line in process.stderr:
        if kills < 2 and ("good: running" in line or "good: evaluating" in line):
            holder = (module_home / "state.lock").read_text().split()
            os.kill(int(holder[1]), signal.SIGKILL)
            kills += 1
    stdout, _ = process.communicate(timeout=PATIENCE_SECONDS)
    told = json.loads(stdout.strip().splitlines()[-1])
    winner = told["tasks"][0]["winner"]

    assert (process.returncode, told["state"]) == (0, "finished")
    assert kills >= 1
    assert "+once\n" in forkyard(module_home, "diff", winner).stdout
    assert "+once\n+once\n" not in forkyard(module_home, "diff", winner).stdout
    assert forkyard(module_home, "workspace", "list", "--all", "--json").stdout == "[]\n"
