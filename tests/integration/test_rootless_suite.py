"""Suites of root mode, run once more as root over an ordinary user's sub-ids."""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkyard.shim.hierarchies import detect
from leftovers import _until
from ordinary import USER_ID, OrdinaryUser

SUITES = {
    "tests/security/test_sandbox_probe.py": 85,
    "tests/contract/test_fleet.py": 5,
    "tests/integration/test_fleet.py": 20,
    "tests/integration/test_runtimes.py": 4,
    "tests/integration/test_images.py": 20,
    "tests/integration/test_live.py": 5,
    "tests/integration/test_allowlist.py": 4,
    "tests/integration/test_template_tasks.py": 9,
    "tests/security/test_private_repositories.py": 12,
}
"""And how many tests each has at least: one that lost its tests would pass."""


ALWAYS = ("tests/security/test_sandbox_probe.py", "tests/contract/test_fleet.py")
"""The rest takes its time, and belongs to the long run."""


@pytest.mark.parametrize(
    "suite",
    [one if one in ALWAYS else pytest.param(one, marks=pytest.mark.deep) for one in SUITES],
)
def test_a_suite_of_root_mode_passes_without_root(suite: str, ordinary: OrdinaryUser) -> None:
    """What a sandbox does and what is denied to it are the same, test by test."""
    outcomes = ordinary.tests(suite)

    assert {name: words for name, words in outcomes.items() if words != "passed"} == {}
    assert len(outcomes) >= SUITES[suite]


@contextmanager
def delegated(user: OrdinaryUser) -> Iterator[None]:
    """Put all that the user starts into groups of each limiting controller that are his own."""
    found = detect()
    assert found is not None
    name = f"forkyard-test-{uuid.uuid4().hex[:8]}"
    tops = {found.limits[one] for one in ("memory", "cpu", "pids") if one in found.limits}
    folders = [Path(top, name) for top in sorted(tops)]
    try:
        for folder in folders:
            if found.layout == "v2":
                (folder.parent / "cgroup.subtree_control").write_text("+memory +cpu +pids")
            folder.mkdir()
            handed = (folder, *(folder / one for one in HANDED_OVER if (folder / one).exists()))
            for path in handed:
                os.chown(path, USER_ID, USER_ID)
        user.groups = tuple(folder / "cgroup.procs" for folder in folders)
        yield
    finally:
        user.forkyard("serve", "--stop", code=None)
        for folder in folders:
            remove_groups(folder)


HANDED_OVER = ("cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads")
"""What delegation means, in the kernel's own words."""


def is_empty(group: Path) -> bool:
    """Say whether no process is left in a group."""
    return not (group / "cgroup.procs").read_text()


def remove_groups(folder: Path) -> None:
    """Remove a group and those below it, ending what is left in them."""
    for one, _, _ in os.walk(folder, topdown=False):
        for pid in Path(one, "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        _until(functools.partial(is_empty, Path(one)))
        Path(one).rmdir()


@pytest.mark.deep
def test_limits_are_enforced_when_the_host_delegated_cgroups(ordinary: OrdinaryUser) -> None:
    """Memory, CPU and processes are held as for root, and doctor says by what."""
    with delegated(ordinary):
        report = json.loads(ordinary.forkyard("doctor", "--json").stdout)
        outcomes = ordinary.tests(
            "tests/integration/test_fleet.py", "-k", "limit or group or stops"
        )

    for limit in ("memory limit", "cpu limit", "process limit"):
        assert report["protections"][limit].startswith("enforced by cgroup")
    assert {name: words for name, words in outcomes.items() if words != "passed"} == {}
    assert len(outcomes) >= 4
