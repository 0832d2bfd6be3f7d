"""What a command in a sandbox finds when it tries to get out: a committed table, row by row."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes import Box, in_box

PROBE = Path(__file__).with_name("probe_inside.py")

EXPECTED = {
    "write core_pattern": "EACCES",
    "write hostname": "EACCES",
    "write sysrq": "ENOENT",
    "become a worse victim": "EACCES",
    "read shadow": "ENOENT",
    "list root home": "empty",
    "list run": "empty",
    "docker socket": "ENOENT",
    "read keys": "empty",
    "read kallsyms": "empty",
    "read timer_list": "empty",
    "read kcore": "ENOENT",
    "read kmsg": "empty",
    "environment of process 1": "EACCES",
    "memory of process 1": "EACCES",
    "root of process 1": "EACCES",
    "sys is absent": "empty",
    "mount tmpfs": "EPERM",
    "umount proc": "EPERM",
    "unshare user": "EPERM",
    "unshare mount": "EPERM",
    "setns": "EPERM",
    "clone new user": "EPERM",
    "clone3": "ENOSYS",
    "pivot_root": "EPERM",
    "chroot": "EPERM",
    "mknod block device": "EPERM",
    "mknod char device": "EPERM",
    "mkfifo": "ok",
    "open kvm": "ENOENT",
    "open disk": "ENOENT",
    "open mem": "ENOENT",
    "ptrace": "EPERM",
    "personality": "EPERM",
    "keyctl": "EPERM",
    "add_key": "EPERM",
    "bpf": "EPERM",
    "perf_event_open": "EPERM",
    "userfaultfd": "EPERM",
    "io_uring_setup": "EPERM",
    "open_by_handle_at": "EPERM",
    "process_vm_readv": "EPERM",
    "kexec_load": "EPERM",
    "init_module": "EPERM",
    "settimeofday": "EPERM",
    "reboot": "EPERM",
    "sethostname": "EPERM",
    "swapon": "EPERM",
    "TIOCSTI": "EPERM",
    "TIOCSTI with high bits": "EPERM",
    "TIOCLINUX": "EPERM",
    "socket unix": "ok",
    "socket inet": "ok",
    "socket inet6": "ok",
    "socket netlink": "EAFNOSUPPORT",
    "socket packet": "EAFNOSUPPORT",
    "socket vsock": "EAFNOSUPPORT",
    "socket alg": "EAFNOSUPPORT",
    "raw socket": "EPROTONOSUPPORT",
    "reach host loopback": "ECONNREFUSED",
    "reach metadata address": "ENETUNREACH",
    "reach a public address": "ENETUNREACH",
    "write usr": "EROFS",
    "write etc": "EROFS",
    "write root": "EROFS",
    "setuid root": "EPERM",
    "chown to root": "EPERM",
    "kill process 1": "EPERM",
    "signal process 1 as root's": "EPERM",
    "inherited descriptors": "none",
    "CapEff": "none",
    "CapPrm": "none",
    "CapBnd": "none",
    "CapInh": "none",
    "CapAmb": "none",
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "groups": "none",
    "interfaces": "lo",
    "process 1": "sh",
}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Run the probe once; every row of the table is a test of its own."""
    home = request.getfixturevalue("module_home")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        async def probe(box: Box) -> str:
            output = await box.sh(f"python3 probe.py {port}")
            assert output.result.exit_code == 0, output.stderr
            return output.stdout

        files = {"THIS_IS_A_SANDBOX": "", "probe.py": PROBE.read_text(encoding="utf-8")}
        yield json.loads(in_box(home, probe, files=files))


@pytest.mark.parametrize("attempt", EXPECTED)
def test_attempt_ends_as_the_table_says(attempt: str, outcomes: dict[str, str]) -> None:
    """Each way out is closed by the error that its defence gives."""
    assert outcomes[attempt] == EXPECTED[attempt]


def test_table_and_probe_name_the_same_attempts(outcomes: dict[str, str]) -> None:
    """No attempt is tried without an expectation, and none is expected without a try."""
    assert sorted(outcomes) == sorted(EXPECTED)


def test_probe_refuses_outside_a_sandbox() -> None:
    """An escape test never makes its attempts on the machine itself."""
    environment = {"PATH": os.environ["PATH"]}

    finished = subprocess.run(
        [sys.executable, str(PROBE), "1"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert finished.returncode != 0
    assert "refusing" in finished.stderr


def test_a_process_that_waits_for_the_next_command_is_out_of_reach(home: Path) -> None:
    """The process forked ahead of time shows no path, cannot be signalled, read or written."""

    async def body(box: Box) -> str:
        output = await box.sh(
            "sleep 0.5; for p in /proc/[0-9]*; do n=$(cat $p/comm);"
            " case $n in forkyard*) echo found;"
            " tr '\\0' ' ' < $p/cmdline; echo; cat $p/environ; kill -9 ${p#/proc/};"
            " (: > $p/mem); ls $p/fd $p/root $p/cwd; esac; done 2>&1"
        )
        return output.stdout

    seen = in_box(home, body)

    assert seen.split()[:2] == ["found", "forkyard"]
    assert seen.count("Permission denied") >= 4
    assert "not permitted" in seen
    assert str(home) not in seen
