"""Which cgroups an ordinary user may make groups in."""

from __future__ import annotations

import os
from pathlib import Path

from forkyard.shim import delegation

OWN = "9:name=systemd:/\n8:pids:/mine\n4:cpu,cpuacct:/mine\n3:memory:/\n0::/user/scope\n"


def test_each_controllers_group_is_read_when_several_share_a_line() -> None:
    """A line names all controllers of its hierarchy; v2 has no name."""
    own = delegation.own_groups(OWN)

    assert (own["cpu"], own["pids"], own["memory"], own[""]) == (
        "/mine", "/mine", "/", "/user/scope",
    )  # fmt: skip


def test_a_v1_group_is_taken_when_it_is_ours_to_write(tmp_path: Path) -> None:
    """A controller whose group is not there, or not ours, is left out."""
    (tmp_path / "pids/mine").mkdir(parents=True)
    (tmp_path / "pids/mine/cgroup.procs").touch()
    (tmp_path / "cpu/mine").mkdir(parents=True)
    points = {name: str(tmp_path / name) for name in ("pids", "cpu", "memory")}

    found = delegation.delegated_v1(points, delegation.own_groups(OWN))

    assert found == {"pids": f"{tmp_path}/pids/mine"}


def test_a_v2_group_is_taken_when_the_server_alone_stands_aside_in_it(tmp_path: Path) -> None:
    """A group with other processes can hand on no controller, so nothing is moved or taken."""
    scope = tmp_path / "user/scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    own = delegation.own_groups(OWN)

    delegation.stand_aside(str(tmp_path), own)
    assert not (scope / delegation.LEAF).exists()
    assert delegation.delegated_v2(str(tmp_path), own) is None

    (scope / "cgroup.procs").write_text(f"{os.getpid()}\n")
    delegation.stand_aside(str(tmp_path), own)
    assert (scope / delegation.LEAF / "cgroup.procs").read_text() == str(os.getpid())
    moved = {"": f"/user/scope/{delegation.LEAF}"}
    (scope / "cgroup.procs").write_text("")
    assert delegation.delegated_v2(str(tmp_path), moved) == str(scope)
