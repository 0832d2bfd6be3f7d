"""Limits where a machine has cgroups of one version only, on Debian's own kernel in QEMU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guest.boot import run_in_guest
from guest.prepare import prepare

MINUTE = 60.0
CHOSEN = "limit or group or stops or killed or gone"
"""What it says of limits, of ending everything, and of what is left."""
PYTEST = (
    "PYTHONPATH=src python3 -m pytest -p no:cacheprovider -p no:randomly -p no:xdist"
    " -p no:hypothesispytest --color=no -o timeout=900 -v"
)
ORDER = f"""
export PYTHONPATH=src
# Emulated, a first start may take longer than its client waits; the server goes on meanwhile.
for attempt in 1 2 3; do python3 -m forkyard doctor && break; done
python3 -m forkyard serve --stop || exit
{PYTEST} tests/integration/test_fleet.py -k '{CHOSEN}' || exit
left=$(find /sys/fs/cgroup -name 'forkyard*')
[ -z "$left" ] || {{ echo "left: $left"; exit 1; }}
"""

pytestmark = [pytest.mark.deep, pytest.mark.timeout(60 * MINUTE)]


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_limits_hold_when_the_machine_has_cgroups_of_one_version(
    version: str, tmp_path: Path
) -> None:
    """Doctor says by what, tests of ours pass there, and no group and no process is left."""
    ended = run_in_guest(prepare(), ORDER, cgroups=version, folder=tmp_path, timeout=40 * MINUTE)

    assert ended.exit_code == 0, ended.console[-8000:]
    for limit in ("memory limit", "cpu limit", "process limit"):
        assert re.search(rf"{limit}: +enforced by cgroup {version}", ended.console)
    assert int(re.findall(r"(\d+) passed", ended.console)[-1]) >= 10


def test_limits_hold_for_an_ordinary_user_when_v2_is_delegated(tmp_path: Path) -> None:
    """By the controllers that he was given, also where the server is started by another command."""
    suite = "tests/integration/test_rootless_suite.py"
    ended = run_in_guest(
        prepare(),
        f"{PYTEST} {suite} -k delegated",
        cgroups="v2",
        folder=tmp_path,
        timeout=40 * MINUTE,
    )

    assert ended.exit_code == 0, ended.console[-8000:]
    assert "1 passed" in ended.console
