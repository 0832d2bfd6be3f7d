"""The example program, run for real: a prepared workspace, a snapshot, agents in its forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forkyard import connect_blocking
from forkyard.cli.demo import REPOSITORY, prepare

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "parallel_agents.py"
TEMPLATE = """\
spec:
  image: host
  repository: {path: repository, include_uncommitted: true}
"""
RIGHT = "sed -i 's/return time\\.time() + /return self._clock() + /' webhooks/retry.py"
IDLE = 'echo "asked: $PROMPT"; exit 3'


def prepare_snapshot(folder: Path, name: str) -> None:
    """Do what the developer does: template, workspace, reproduce the bug, snapshot."""
    prepare(folder)
    template = folder / "webhooks.yaml"
    template.write_text(TEMPLATE)
    with connect_blocking() as client:
        client.templates.apply(template)
        client.templates.build("webhooks", timeout_seconds=60)
        workspace = client.workspaces.create(template="webhooks", display_name="mine")
        failing = workspace.exec("python3 -B tests/run_tests.py", timeout_seconds=60)
        assert failing.exit_code == 1, failing.stderr
        workspace.stop()
        workspace.snapshot(name)
        client.snapshots.wait_until_ready(name, timeout_seconds=60)
        workspace.delete()


@pytest.mark.usefixtures("home")
def test_the_example_tells_the_right_agent_from_the_idle_one(tmp_path: Path) -> None:
    """Both run in forks of one snapshot; tests tell them apart; patches stay, workspaces do not."""
    folder = tmp_path / "work"
    folder.mkdir()
    prepare_snapshot(folder, "issue-1842")
    ran = subprocess.run(
        [
            *(sys.executable, EXAMPLE, "issue-1842", "--prompt", "Fix it, not the test."),
            *("--agent", f"right={RIGHT}", "--agent", f"idle={IDLE}"),
            *("--tests", "python3 tests/run_tests.py", "--patches", tmp_path),
        ],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stderr
    right, idle = ran.stdout.splitlines()
    assert right.startswith("right ")
    assert "agent exit 0" in right
    assert "tests passed: yes" in right
    assert idle.startswith("idle ")
    assert "agent exit 3" in idle
    assert "tests passed: no" in idle
    assert "patch: 0 bytes" in idle
    subprocess.run(
        ["git", "apply", "--check", tmp_path / "right.patch"],
        cwd=folder / REPOSITORY,
        check=True,
    )
    with connect_blocking() as client:
        assert client.workspaces.list(everything=True) == []
        assert "issue-1842" in [one.name for one in client.snapshots.list()]


@pytest.mark.usefixtures("home")
def test_the_example_says_what_is_missing_when_the_snapshot_is_not_there(tmp_path: Path) -> None:
    """One sentence on standard error, and the documented status."""
    ran = subprocess.run(
        [
            *(sys.executable, EXAMPLE, "absent", "--prompt", "x", "--agent", "a=true"),
            *("--tests", "true", "--patches", tmp_path),
        ],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )

    assert ran.returncode == 3
    assert "absent" in ran.stderr
    assert "Traceback" not in ran.stderr
