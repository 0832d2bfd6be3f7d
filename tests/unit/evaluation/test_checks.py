"""Reading what a check left, past every trap an agent can lay."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from forkyard.evaluation import checks
from forkyard.evaluation.reports import junit
from forkyard.model.verdict import CheckRun, CheckState

REPORT = "/workspace/.report-1.xml"


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """Give an upper directory with a workspace root in it."""
    folder = tmp_path / "upper"
    (folder / "workspace").mkdir(parents=True)
    return folder


def test_report_is_read_when_it_is_a_plain_file(upper: Path) -> None:
    """The bytes come back as they are."""
    (upper / "workspace" / ".report-1.xml").write_bytes(b"<testsuites/>")

    assert checks.read_report(upper, REPORT) == b"<testsuites/>"


@pytest.mark.parametrize(
    "trap", ["missing", "link", "dangling", "parent", "fifo", "folder", "socket", "whiteout"]
)
def test_report_is_refused_when_it_is_no_plain_file(upper: Path, tmp_path: Path, trap: str) -> None:
    """No link is followed, nothing blocks, and a clause says why."""
    secret = tmp_path / "secret"
    secret.write_text("<testsuites/>")
    target = upper / "workspace" / ".report-1.xml"
    match trap:
        case "link":
            target.symlink_to(secret)
        case "dangling":
            target.symlink_to(tmp_path / "nowhere")
        case "parent":
            (upper / "workspace").rmdir()
            (tmp_path / "away").mkdir()
            (tmp_path / "away" / ".report-1.xml").write_text("<testsuites/>")
            (upper / "workspace").symlink_to(tmp_path / "away")
        case "fifo":
            os.mkfifo(target)
        case "folder":
            target.mkdir()
        case "socket":
            here = socket.socket(socket.AF_UNIX)
            descriptor = os.open(target.parent, os.O_PATH)
            here.bind(f"/proc/self/fd/{descriptor}/{target.name}")
            os.close(descriptor)
            here.close()
        case "whiteout":
            os.mknod(target, 0o020000, os.makedev(0, 0))
        case _:
            pass

    answer = checks.read_report(upper, REPORT)
    assert isinstance(answer, str)
    assert "$REPORT" in answer


def test_report_is_refused_when_it_is_a_sparse_giant(upper: Path) -> None:
    """A file of a terabyte costs no memory."""
    with (upper / "workspace" / ".report-1.xml").open("wb") as file:
        file.truncate(2**40)

    answer = checks.read_report(upper, REPORT)
    assert answer == f"the report is larger than {junit.MAX_BYTES} bytes"


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (
            b"collecting\npython3: No module named pytest\n\n",
            "; it last printed: python3: No module named pytest",
        ),
        (b"a" * 9000, f"; it last printed: {'a' * 200}"),
        (b"\x1b[31mred", "; it last printed: ?[31mred"),
        (b"\n \n", ""),
    ],
)
def test_last_words_are_told_when_a_check_left_no_report(
    tmp_path: Path, printed: bytes, told: str
) -> None:
    """Why there is none mostly stands there; nothing of it reaches a terminal as it is."""
    (tmp_path / "unit.log").write_bytes(printed)
    run = CheckRun(
        name="unit",
        state=CheckState.NO_REPORT,
        exit_code=1,
        elapsed_seconds=0.1,
        detail="nothing was written",
    )

    assert checks.with_last_words(run, tmp_path).detail == f"nothing was written{told}"
    passed = replace(run, state=CheckState.PASSED)
    assert checks.with_last_words(passed, tmp_path) is passed


def test_a_run_stays_as_it_is_when_it_printed_nothing(tmp_path: Path) -> None:
    """Without a log there are no words."""
    run = CheckRun(
        name="unit",
        state=CheckState.NO_REPORT,
        exit_code=1,
        elapsed_seconds=0.1,
        detail="nothing was written",
    )

    assert checks.with_last_words(run, tmp_path) is run
