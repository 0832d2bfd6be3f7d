"""What a command in a workspace sees, may do, and how its end is told."""

from __future__ import annotations

import pytest

from behaviours.yard import Box, Yard


def test_output_and_status_come_back_apart_when_a_command_ends(box: Box) -> None:
    """Both streams, the status as it is."""
    done = box.sh("echo out; echo err >&2; exit 3")
    assert (done.status, done.out, done.err, done.reason) == (3, "out\n", "err\n", "exited")


@pytest.mark.parametrize(
    ("command", "status"), [(["nowhere-to-be-found"], 127), (["/workspace/repo/state"], 126)]
)
def test_it_is_told_when_a_command_cannot_start(box: Box, command: list[str], status: int) -> None:
    """With a shell's own numbers."""
    answer = box.yard.ask("workspace", "exec", "--json", box.id, *command, code=None)
    assert (answer["stop_reason"], answer["exit_code"]) == ("could-not-start", status)


def test_it_is_told_when_the_working_directory_is_missing(box: Box) -> None:
    """The command does not run somewhere else instead."""
    done = box.sh("pwd", "-w", "/workspace/absent")
    assert done.reason == "could-not-start"
    assert "/workspace/absent" in (done.detail or "")


def test_commands_start_in_the_repository_when_nothing_is_said(box: Box) -> None:
    """At the same path in every fork."""
    assert box.read("pwd") == "/workspace/repo"


def test_everything_is_killed_when_time_is_up(box: Box) -> None:
    """Also what ignores TERM and left the session."""
    script = "trap '' TERM; setsid sleep 5678 & sleep 5678"
    done = box.sh(script, "--timeout", "1s")
    assert done.reason == "timed-out"
    assert (
        box.read("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 567[8]' || true") == "0"
    )


def test_standard_input_is_at_its_end_when_nobody_gives_any(box: Box) -> None:
    """A command that asks a question does not hang."""
    assert box.read("cat; echo over") == "over"


def test_variables_are_the_templates_and_the_commands_own_when_both_are_given(box: Box) -> None:
    """The command's own win."""
    assert box.read("echo $LEVEL") == "high"
    assert box.read("echo $LEVEL", "-e", "LEVEL=low") == "low"


def test_nothing_of_our_environment_goes_in(box: Box) -> None:
    """Neither FORKYARD_HOME nor the owner's HOME."""
    assert box.read("env | grep -c -e FORKYARD_HOME -e PYTEST || true") == "0"
    assert box.read("echo $HOME") == "/home/workspace"


def test_commands_run_as_an_ordinary_user_of_their_own(box: Box) -> None:
    """With a name, and without groups."""
    assert box.read("id -u; id -un; id -G") == "1000\nworkspace\n1000"


def test_no_capability_and_no_new_privilege_is_left(box: Box) -> None:
    """All five sets are empty; seccomp filters."""
    status = box.read("cat /proc/self/status")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /workspace", "unshare -U true", "unshare -m true",
        "chroot / true", "mknod /workspace/disk b 8 0", "hostname other",
        "echo x > /proc/sys/kernel/core_pattern", "echo x > /usr/here", "echo x > /etc/here",
        "kill -9 1", "ls /root/x", "cat /etc/shadow",
    ],
)  # fmt: skip
def test_it_is_refused_when_a_command_reaches_further(box: Box, command: str) -> None:
    """Each for itself; the workspace goes on."""
    done = box.sh(f"export PATH=$PATH:/usr/sbin:/sbin; {command}")
    assert done.status not in (0, 127), done
    assert box.read("echo alive") == "alive"


def test_nothing_but_loopback_is_there_when_a_workspace_has_no_network(box: Box) -> None:
    """No interface, no route."""
    assert box.read("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo"
    assert box.read("tail -n +2 /proc/net/route | wc -l") == "0"


def test_processes_of_others_are_out_of_sight(box: Box, fresh: Box) -> None:
    """Neither ours nor another workspace's."""
    fresh.read("sleep 4321 >/dev/null 2>&1 & echo begun")
    seen = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    assert "sleep 4321" in fresh.read(seen)
    assert "sleep 4321" not in box.read(seen)
    assert "forkyard" not in box.read(seen)


def test_what_a_command_left_running_goes_on_until_the_workspace_stops(fresh: Box) -> None:
    """And is gone then, with its sandbox."""
    fresh.read("(while :; do date +%s%N > /workspace/tick; sleep 0.05; done) >/dev/null 2>&1 &")
    look = "until [ -s /workspace/tick ]; do sleep 0.02; done; cat /workspace/tick"
    first = fresh.read(look)
    assert fresh.read(
        f'until [ "$(cat /workspace/tick)" != {first} ]; do sleep 0.02; done; echo on'
    )
    fresh.stop()
    fresh.read(": > /workspace/tick")
    assert fresh.read("sleep 0.3; wc -c < /workspace/tick") == "0"


def test_temporary_files_are_a_workspaces_own(box: Box, fresh: Box) -> None:
    """In memory, gone with its sandbox."""
    fresh.read("echo mine > /tmp/note")
    assert box.read("ls /tmp | grep -c note || true") == "0"
    fresh.stop()
    assert fresh.read("ls /tmp | grep -c note || true") == "0"


def test_binary_output_comes_back_whole_when_it_is_large(box: Box) -> None:
    """Every byte, counted."""
    done = box.sh("head -c 3000000 /dev/zero | tr '\\0' 'x'")
    assert len(done.out) == 3_000_000
    assert not done.truncated


def test_the_mode_is_told_when_the_doctor_is_asked(yard: Yard) -> None:
    """With what is in force, and nothing that is not."""
    said = yard.ask("doctor")
    assert said["problems"] == []
    assert yard.mode in said["storage_mode"]
    for limit in ("memory limit", "cpu limit", "process limit", "disk limit"):
        word = said["protections"][limit]
        assert word.startswith(("enforced", "watched, not enforced", "not enforced")), word
