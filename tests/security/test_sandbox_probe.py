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

from forkyard.model.workspace import Limits
from forkyard.shim.ids import IDS
from sandboxes import Box, in_box

PROBE = Path(__file__).with_name("probe_inside.py")

TABLE = Path(__file__).with_name("sandbox_rows.tsv")
"""What becomes of each attempt, in both modes. Without a cgroup of one's own the last row's limit
is one process's, so that one is refused what the kernel would have killed it for."""


def rows(mode: str) -> dict[str, str]:
    """Read one column of the table."""
    header, *lines = (line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines())
    column = header.index(mode)
    return {line[0]: line[column] for line in lines}


EXPECTED = rows("rootless" if IDS.is_rootless else "as root")


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Run the probe once; every row of the table is a test of its own."""
    home = request.getfixturevalue("module_home")
    abstract = f"\0forkyard-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as other,
    ):
        other.bind(abstract)
        other.listen()
        port = listener.getsockname()[1]

        async def probe(box: Box) -> str:
            output = await box.sh(f"python3 probe.py {port} {abstract[1:]}")
            assert output.result.exit_code == 0, output.stderr
            return output.stdout

        files = {"THIS_IS_A_SANDBOX": "", "probe.py": PROBE.read_text(encoding="utf-8")}
        limits = Limits(processes=64, memory_bytes=256 << 20)
        yield json.loads(in_box(home, probe, files=files, limits=limits))


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
