"""The README's two commands, and the wheel, on a machine that has nothing but Debian."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.bare_machine import BareMachine

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "/root/a folder/forkyard"
HOUR = 3600.0

pytestmark = [pytest.mark.deep, pytest.mark.timeout(2 * HOUR)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareMachine]:
    """Give a machine with this project in a folder with a space in its name, and no set-up."""
    machine = BareMachine(tmp_path_factory.mktemp("bare") / "root")
    machine.build()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    machine.bring(ROOT, names, FOLDER)
    yield machine
    shutil.rmtree(machine.root)


def test_the_two_commands_of_the_readme_do_everything(machine: BareMachine) -> None:
    """Both say what they install and install it; the demo compares, the wheel works, all passes."""
    _the_demo_installs_what_is_missing_and_ends_in_the_comparison(machine)
    _the_demo_installs_nothing_twice(machine)
    _the_wheel_runs_the_demo_in_a_fresh_environment(machine)
    _the_tests_pass(machine)


def _the_demo_installs_what_is_missing_and_ends_in_the_comparison(machine: BareMachine) -> None:
    ran = machine.run(f"cd / && '{FOLDER}/dev' demo", timeout=1800)

    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.index("missing on this machine") < ran.stdout.index("Setting up crun")
    assert _ranks_the_right_agent_first(ran.stdout)
    assert "forkyard apply" in ran.stdout


def _ranks_the_right_agent_first(text: str) -> bool:
    return any(line.split()[:3] == ["1", "careful", "solved"] for line in text.splitlines())


def _the_demo_installs_nothing_twice(machine: BareMachine) -> None:
    ran = machine.run(f"'{FOLDER}/dev' demo", timeout=600)

    assert ran.returncode == 0, ran.stdout
    assert "installing" not in ran.stdout


def _the_wheel_runs_the_demo_in_a_fresh_environment(machine: BareMachine) -> None:
    ran = machine.run(
        f"""
        set -e
        cd '{FOLDER}'
        ./dev wheel /tmp/wheel
        python3 -m venv /tmp/fresh
        /tmp/fresh/bin/pip install -q --require-hashes -r requirements/runtime.txt
        /tmp/fresh/bin/pip install -q --no-deps /tmp/wheel/forkyard-*.whl
        cd /
        FORKYARD_HOME=/tmp/state /tmp/fresh/bin/forkyard demo
        """,
        timeout=1800,
    )

    assert ran.returncode == 0, ran.stdout
    assert _ranks_the_right_agent_first(ran.stdout)


def _the_tests_pass(machine: BareMachine) -> None:
    ran = machine.run(f"cd '{FOLDER}' && ./dev test", timeout=HOUR)

    assert ran.returncode == 0, ran.stdout[-20000:]
    assert " passed" in ran.stdout.splitlines()[-1]
