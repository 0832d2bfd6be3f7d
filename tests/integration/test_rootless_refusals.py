"""What a host lacks or forbids an ordinary user: each is named with the switch that changes it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ordinary import NAME, ROOT, OrdinaryUser

MOUNT_CALL = {"x86_64": 165, "aarch64": 40}[os.uname().machine]
"""Not permitted where AppArmor takes the rights in a user namespace away."""


def no_newuidmap(user: OrdinaryUser) -> None:
    """Hide the program."""
    user.put_over("/usr/bin/newuidmap", "")


def powerless_newgidmap(user: OrdinaryUser) -> None:
    """Take its rights away, as a copy of it would have none."""
    ours = user.folder / "newgidmap"
    ours.write_bytes(Path("/usr/bin/newgidmap").read_bytes())
    ours.chmod(0o755)
    assert user.as_root("mount", "--bind", ours, "/usr/bin/newgidmap").returncode == 0


def no_sub_ids(user: OrdinaryUser) -> None:
    """Give ranges to somebody else alone, and a small one to the user."""
    user.put_over("/etc/subuid", f"somebody:100000:65536\n{NAME}:200000:1000\n")


def no_sub_groups(user: OrdinaryUser) -> None:
    """Give no range."""
    user.put_over("/etc/subgid", "")


def no_namespaces(user: OrdinaryUser) -> None:
    """Forbid them as an administrator does."""
    user.put_over("/proc/sys/user/max_user_namespaces", "0\n")


def no_unprivileged_namespaces(user: OrdinaryUser) -> None:
    """Forbid them as Debian's own switch does."""
    _settings_with(user, "unprivileged_userns_clone", "0")


def _settings_with(user: OrdinaryUser, name: str, value: str) -> None:
    """Show a folder of kernel settings that has one which this kernel may lack."""
    ours = user.folder / "kernel"
    ours.mkdir()
    (ours / name).write_text(f"{value}\n")
    done = user.as_root("mount", "--bind", ours, "/proc/sys/kernel")
    assert done.returncode == 0, done.stderr


CASES: dict[str, tuple[Callable[[OrdinaryUser], None], str, str]] = {
    "no newuidmap": (no_newuidmap, "newuidmap is not installed", "package uidmap"),
    "newgidmap without rights": (
        powerless_newgidmap, "neither set-user-id root nor has the capability", "package uidmap",
    ),
    "no sub-ids": (no_sub_ids, "/etc/subuid gives user ordinary no range of 65536 sub-ids",
        "usermod --add-subuids 100000-165535 ordinary"),
    "no sub-gids": (no_sub_groups, "/etc/subgid gives user ordinary no range of 65536 sub-ids",
        "usermod --add-subgids 100000-165535 ordinary"),
    "no user namespaces": (no_namespaces, "user.max_user_namespaces is 0",
        "sysctl -w user.max_user_namespaces=15000"),
    "none without root": (no_unprivileged_namespaces, "kernel.unprivileged_userns_clone is 0",
        "sysctl -w kernel.unprivileged_userns_clone=1"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_doctor_names_the_switch_when_the_host_lacks_or_forbids_something(
    case: str, ordinary: OrdinaryUser
) -> None:
    """Both doctor and whatever needs a server say it, and nothing is started."""
    fake, reason, remedy = CASES[case]
    fake(ordinary)

    done = ordinary.forkyard("doctor", "--json", code=10)
    refused = ordinary.forkyard("status", code=10)

    (problem,) = json.loads(done.stdout)["problems"]
    assert reason in problem
    assert remedy in problem
    assert reason in refused.stderr
    assert remedy in refused.stderr
    assert not (ordinary.state / "server.log").exists()


def test_doctor_names_every_thing_when_several_are_missing(ordinary: OrdinaryUser) -> None:
    """One look at the machine is enough to mend all of it."""
    for fake in (no_newuidmap, no_sub_ids, no_namespaces):
        fake(ordinary)

    done = ordinary.forkyard("doctor", "--json", code=10)

    assert len(json.loads(done.stdout)["problems"]) == 3


@pytest.mark.parametrize("value", ["1", "0"])
def test_doctor_names_apparmor_when_its_switch_is_on_and_a_mount_is_refused(
    value: str, ordinary: OrdinaryUser
) -> None:
    """Only a real try tells: with a profile for this Python the switch does no harm."""
    _settings_with(ordinary, "apparmor_restrict_unprivileged_userns", value)

    done = ordinary.run(
        sys.executable, "-m", "forkyard", "doctor", "--json", refused_call=MOUNT_CALL
    )

    (problem,) = json.loads(done.stdout)["problems"]
    assert "a mount in a user namespace: permission denied" in problem
    switch = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    assert (switch in problem) == (value == "1")


def test_a_state_directory_of_the_other_mode_is_refused(ordinary: OrdinaryUser) -> None:
    """Its files belong to ids that mean something else there."""
    ordinary.forkyard("doctor")
    ordinary.forkyard("serve", "--stop")

    other = ordinary.as_root(
        "env", f"FORKYARD_HOME={ordinary.state}", f"PYTHONPATH={ROOT / 'src'}",
        sys.executable, "-B", "-m", "forkyard", "serve",
    )  # fmt: skip

    assert other.returncode == 15
    assert "mode rootless" in other.stderr
    assert "FORKYARD_HOME" in other.stderr
