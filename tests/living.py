"""A workspace of a person's own, over a real server: made once a module, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forkyard import BlockingClient

PATIENCE_SECONDS = 120.0


def prepare(home: Path, folder: Path) -> None:
    """Build a template named `t` of a small repository."""
    repository = folder / "repo"
    repository.mkdir()
    (repository / "file").write_text("old\n")
    git = ("git", "-C", repository, "-c", "user.name=t", "-c", "user.email=t@t")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *arguments], check=True)
    template = folder / "t.yaml"
    template.write_text("spec:\n  repository: {path: repo}\n")
    with BlockingClient(home) as client:
        client.templates.apply(template)
        client.templates.build("t", timeout_seconds=PATIENCE_SECONDS)


def forkyard(
    home: Path, *arguments: str | Path, stdin: bytes = b"", code: int | None = 0
) -> subprocess.CompletedProcess[bytes]:
    """Run `forkyard workspace` to its end and look at its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "forkyard", "workspace", *arguments],
        env={**os.environ, "FORKYARD_HOME": str(home)},
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert code is None or done.returncode == code, done.stderr
    return done
