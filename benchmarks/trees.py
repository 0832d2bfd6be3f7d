"""Repositories of a stated size, the same bytes at every run."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

FILES_PER_FOLDER = 100
_WORDS = ("account", "batch", "cache", "delta", "entry", "fetch", "guard", "handle", "index")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def path_of(number: int) -> str:
    """Give the path of one file."""
    folder, name = divmod(number, FILES_PER_FOLDER)
    return f"package_{folder // 10:03}/part_{folder % 10}/module_{name:02}.py"


def make_repository(folder: Path, files: int) -> None:
    """Make a git repository with one commit of so many small source files.

    The commit goes in as one pack by fast-import: so many loose objects would be a second tree.
    """
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    with subprocess.Popen(
        ["git", "fast-import", "--quiet", "--force"],
        cwd=folder,
        env=_ENVIRONMENT,
        stdin=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        chance = random.Random(files)  # noqa: S311 - the same bytes at every run
        message = b"a tree to measure with"
        child.stdin.write(b"commit refs/heads/main\ncommitter Bench <bench@localhost> 0 +0000\n")
        child.stdin.write(b"data %d\n%s\n" % (len(message), message))
        for number in range(files):
            content = _source(chance, number)
            child.stdin.write(b"M 100644 inline %s\n" % path_of(number).encode())
            child.stdin.write(b"data %d\n%s\n" % (len(content), content))
    if child.returncode != 0:
        raise SystemExit(f"cannot make a repository in {folder}: git fast-import failed")
    _git(folder, "reset", "--quiet", "--hard")


def _source(chance: random.Random, number: int) -> bytes:
    lines = [f'"""Module {number}."""', ""]
    for _ in range(chance.randint(10, 40)):
        name, left, right = (chance.choice(_WORDS) for _ in range(3))
        lines.append(f"{name}_{chance.randint(0, 999)} = {left!r} + {right!r}")
    return ("\n".join(lines) + "\n").encode()


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, env=_ENVIRONMENT, check=True)
