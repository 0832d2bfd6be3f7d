"""The door where its streams or its folder are not what a shell usually gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HELP = (sys.executable, "-m", "forkyard", "--help")


def test_a_full_disk_is_one_sentence_when_the_output_cannot_be_written() -> None:
    """It is no bug of ours, and no result."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(HELP, check=False, stdout=full, stderr=subprocess.PIPE, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot write the output: No space left on device")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_trouble_when_nobody_listens(closed: str) -> None:
    """Our own files never land in their place."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {closed}', "sh", *HELP],
        check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_that_is_gone_is_one_sentence_when_a_command_needs_it(tmp_path: Path) -> None:
    """Paths are relative to nothing there."""
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [
            "/bin/sh", "-c", 'cd "$1" && rmdir "$1" && shift && exec "$@"', "sh", tmp_path / "gone",
            sys.executable, "-m", "forkyard", "run", "hi", "-a", "x=true",
        ],
        check=False, capture_output=True, text=True,
        env={**os.environ, "FORKYARD_HOME": str(tmp_path / "home")},
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "Error: cannot go on: the current folder is gone"
    )
    assert not (tmp_path / "home").exists()


def test_bad_usage_is_json_too_when_json_is_asked_for() -> None:
    """Programs read one object, whatever went wrong; a command's own words are not ours."""
    arguments = [sys.executable, "-m", "forkyard", "run"]
    asked = subprocess.run(
        [*arguments, "--json", "-n", "many"], check=False, capture_output=True, text=True
    )
    not_asked = subprocess.run(
        [*arguments, "-n", "many", "--", "--json"], check=False, capture_output=True, text=True
    )

    assert (asked.returncode, not_asked.returncode) == (2, 2)
    assert json.loads(asked.stdout)["error"]["code"] == "bad-request"
    assert not_asked.stdout == ""
