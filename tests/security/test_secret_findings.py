"""Secrets in what an attempt leaves: flagged by name in the manifest, the patch as it was."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.base.masking import Masker
from forkyard.candidate.collector import Collector
from forkyard.evaluation.tamper import remarks
from forkyard.model.candidate import CandidateStatus
from stopped import Yard, git

SECRET = "sk-canary-0123456789-Zq"  # noqa: S105 - a test's own
NAME = "ANTHROPIC_API_KEY"


def _build(repository: Path) -> None:
    (repository / "old.txt").write_text(f"in the base already: {SECRET}\n")
    (repository / "app.py").write_text("x = 1\n")
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "base")


@pytest.fixture
def yard(home: Path) -> Iterator[Yard]:
    """Give a yard whose collector knows a secret; overlay directories need a real removal."""
    made = Yard(home)
    made.collector = Collector(made.layout, SystemClock(), masker=Masker({NAME: SECRET}))
    yield made
    subprocess.run(["rm", "-rf", *home.iterdir()], check=True)


def test_secrets_are_told_by_name_when_a_candidate_carries_them(yard: Yard) -> None:
    """New contents of every kind are looked at, in codings too; nothing told holds the value."""
    layer = yard.layer(_build)
    base = yard.record(layer)
    workspace = yard.fork(layer)
    encoded = base64.b64encode(f"key: {SECRET}".encode())

    def act(repository: Path) -> None:
        (repository / "app.py").write_text(f"KEY = {SECRET!r}\n")
        (repository / "blob.bin").write_bytes(b"\0" * 300_000 + encoded + b"\xff")
        (repository / "link").symlink_to(f"/tmp/{SECRET}")
        (repository / f"{SECRET}.txt").write_text("named\n")
        (repository / "clean.txt").write_text("sk-canary-01234\n")
        (repository / "old.txt").chmod(0o755)

    yard.inside(workspace, act)
    candidate = yard.collect(workspace, base)

    assert candidate.status is CandidateStatus.COMPLETE
    assert [(one.path, one.secret) for one in candidate.secrets] == [
        ("app.py", NAME),
        ("blob.bin", NAME),
        ("link", NAME),
        (f"[secret {NAME}].txt", NAME),
    ]
    manifest = json.loads((yard.out(workspace) / "manifest.json").read_text())
    assert manifest["secret_findings"] == [
        {"path": one.path, "secret": one.secret} for one in candidate.secrets
    ]
    assert SECRET.encode() in (yard.out(workspace) / "patch").read_bytes()
    told = next(one for one in remarks(candidate) if "secret" in one)
    assert told.startswith(f"carries the value of secret {NAME} in ")
    assert SECRET not in told


def test_nothing_is_looked_for_when_there_is_no_secret(yard: Yard) -> None:
    """Without secrets a candidate is what it was before there were any."""
    yard.collector = Collector(yard.layout, SystemClock())
    layer = yard.layer(_build)
    base = yard.record(layer)
    workspace = yard.fork(layer)
    yard.inside(workspace, lambda repository: (repository / "app.py").write_text(SECRET) and None)

    assert yard.collect(workspace, base).secrets == ()
