"""The door, as far as it goes without installing anything."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOOR = ROOT / "dev"


def knock(*arguments: str, directory: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Call the door with an environment of its own."""
    return subprocess.run(
        [DOOR, *arguments],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )


def test_help_names_every_verb(tmp_path: Path) -> None:
    """Whatever the script understands is in its help, also from another folder."""
    answer = knock("help", directory=tmp_path)
    cases = DOOR.read_text().rpartition("\ncase $verb in\n")[2]
    verbs = re.findall(r"(?m)^([a-z]+)\)$", cases)

    assert answer.returncode == 0
    assert {"demo", "test", "check", "bench"} <= set(verbs)
    assert [verb for verb in verbs if f"\n  {verb} " not in answer.stdout] == []


def test_an_unknown_verb_is_bad_usage() -> None:
    """It is named, help is shown, and nothing is installed or run."""
    answer = knock("tset")

    assert answer.returncode == 2
    assert "unknown verb 'tset'" in answer.stderr
    assert "Usage:" in answer.stderr
    assert answer.stdout == ""


def test_the_robot_runs_what_the_readme_says_and_nothing_cleverer() -> None:
    """People and machines run the same command."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]

    assert commands == ['cd "$(dirname "${BASH_SOURCE[0]}")/.." && exec ./dev test']
    assert "./dev test " in (ROOT / "README.md").read_text()
