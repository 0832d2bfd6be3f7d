"""A small user's world for tests: a repository with history, a bug, and the `forkyard` command."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIX = "sed -i 's/a - b/a + b/' adder.py"


def git(folder: Path, *arguments: str) -> str:
    """Run the user's own git in the user's own repository."""
    identity = {"GIT_AUTHOR_NAME": "u", "GIT_AUTHOR_EMAIL": "u@example.org"}
    identity |= {"GIT_COMMITTER_NAME": "u", "GIT_COMMITTER_EMAIL": "u@example.org"}
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **identity},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def make_repository(folder: Path) -> Path:
    """Make a repository whose function subtracts instead of adding, with a check that fails."""
    folder.mkdir(parents=True)
    (folder / "adder.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "check.py").write_text("from adder import add\nassert add(2, 3) == 5\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "start")
    return folder


def write_task(folder: Path, text: str) -> Path:
    """Write a task file beside the repository `repo`."""
    file = folder / "task.yaml"
    file.write_text(textwrap.dedent(text))
    return file


def forkyard(
    *arguments: str | Path, directory: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "forkyard", *map(str, arguments)],
        cwd=directory,
        env={**os.environ, **(variables or {})},
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )


def run_result(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Read the object that `run --json` ends with."""
    lines = finished.stdout.splitlines()
    assert lines, finished.stderr
    result = json.loads(lines[-1])
    assert isinstance(result, dict)
    return result


def attempts(result: Mapping[str, Any], task: int = 0) -> dict[str, dict[str, Any]]:
    """Name the attempts of a task by agent (one attempt each)."""
    return {attempt["agent"]: attempt for attempt in result["tasks"][task]["attempts"]}


def alive(marker: str) -> list[str]:
    """List the command lines of processes that hold a marker."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if entry.name.isdigit() and marker in words and int(entry.name) != os.getpid():
                found.append(words)
    return found
