"""What outlives a crash, and what is told when something did not."""

from __future__ import annotations

import os
import signal

import pytest

from behaviours.yard import Box, Yard

pytestmark = pytest.mark.deep


def server_of(yard: Yard) -> int:
    """Find the server's process: the one that holds the state's lock."""
    yard.forkyard("workspace", "list")
    lock = (yard.home / "state.lock").stat()
    inode = f":{lock.st_ino} "
    with open("/proc/locks", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's
        pids = {int(line.split()[4]) for line in file if inode in line}
    assert len(pids) == 1, pids
    return pids.pop()


def test_a_workspace_goes_on_when_the_server_is_killed(yard: Yard, fresh: Box) -> None:
    """Its processes live, its files are there, a new server takes it over."""
    fresh.read("(while :; do date +%s%N > /workspace/tick; sleep 0.05; done) >/dev/null 2>&1 &")
    os.kill(server_of(yard), signal.SIGKILL)
    assert fresh.state() == "running"
    first = fresh.read("until [ -s /workspace/tick ]; do sleep 0.02; done; cat /workspace/tick")
    assert fresh.read(
        f'until [ "$(cat /workspace/tick)" != {first} ]; do sleep 0.02; done; echo on'
    )


def test_a_command_runs_once_when_the_server_is_killed_meanwhile(yard: Yard, fresh: Box) -> None:
    """It ends by itself; nobody starts it again."""
    fresh.read(
        "(echo once >> /workspace/log; sleep 1; echo end >> /workspace/log) >/dev/null 2>&1 &"
    )
    os.kill(server_of(yard), signal.SIGKILL)
    wait = "until grep -q end /workspace/log; do sleep 0.05; done; cat /workspace/log"
    assert fresh.read(wait) == "once\nend"


def test_files_are_kept_when_the_server_is_killed_right_after_a_write(
    yard: Yard, fresh: Box
) -> None:
    """Stopping afterwards finds them."""
    fresh.read("echo kept > note")
    os.kill(server_of(yard), signal.SIGKILL)
    fresh.stop()
    assert fresh.read("cat note") == "kept"


def test_a_finished_run_is_told_again_when_the_server_was_killed(yard: Yard) -> None:
    """From the journal alone."""
    words = ("run", "x", "-a", "a=echo fixed > state", "--check", "sh tests/check.sh", "--quiet")
    before = yard.ask(*words, directory=yard.repository())
    os.kill(server_of(yard), signal.SIGKILL)
    assert yard.ask("compare", before["id"])["tasks"] == before["tasks"]


def test_an_unfinished_run_ends_when_the_server_was_killed(yard: Yard) -> None:
    """Its attempt's agent went on; the new server collects what it did."""
    agent = "a=until [ -e /workspace/go ]; do sleep 0.05; done; echo fixed > state"
    words = ("run", "x", "-a", agent, "--check", "sh tests/check.sh", "--detach")
    identity = yard.ask(*words, directory=yard.repository())["id"]
    yard.forkyard("status", identity)
    os.kill(server_of(yard), signal.SIGKILL)
    boxes = yard.ask("workspace", "list", "--all")
    working = [one["id"] for one in boxes if (one["owner"] or "").startswith("att")]
    for one in working:
        Box(yard=yard, id=one).sh("touch /workspace/go")
    over = yard.ask("watch", identity, "--quiet", code=None)
    assert over["tasks"][0]["attempts"][0]["evaluation"]["verdict"] == "solved"


def test_nothing_is_left_mounted_or_running_when_all_is_deleted(yard: Yard, template: str) -> None:
    """Counted on the machine."""
    made = [yard.workspace(template=template) for _ in range(3)]
    for one in made:
        one.read("sleep 8765 >/dev/null 2>&1 &")
    for one in made:
        one.delete()
    assert yard.program("sh", "-c", "ps -eo args | grep -c '[s]leep 8765' || true").stdout == "0\n"
    for one in made:
        assert not (yard.home / "workspaces" / one.id).exists()
