"""What every test may ask for, and the check that the session leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leftovers import Session, stop_all

SOURCE = Path(__file__).resolve().parents[1] / "src"

_SESSION = pytest.StashKey[Session]()
_FOLDER = pytest.StashKey[Path]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what is there before the first test, and make the folder of all state."""
    before = Session()
    # Not below pytest's own folder: that one is closed to the ids that work inside a workspace,
    # and its path is too long for a socket's name.
    folder = Path(tempfile.mkdtemp(prefix="fy-"))
    folder.chmod(0o755)
    before.own(folder)
    # Programs that tests start are those of this tree, however pytest itself was started.
    os.environ["PYTHONPATH"] = str(SOURCE)
    session.config.stash[_SESSION] = before
    session.config.stash[_FOLDER] = folder


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run where a process, mount or cgroup of it is left, and name it."""
    before = session.config.stash.get(_SESSION, None)
    if before is None:
        return
    left = before.leftovers()
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.section("left behind by this session", sep="=", red=True)
            for line in left:
                reporter.line(line)
    shutil.rmtree(session.config.stash[_FOLDER], ignore_errors=True)


@pytest.fixture
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty state directory, named in FORKYARD_HOME; its server is ended afterwards."""
    folder = Path(tempfile.mkdtemp(dir=request.config.stash[_FOLDER], prefix=""))
    folder.chmod(0o755)
    state = folder / "s"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("FORKYARD_HOME", str(state))
    yield state
    stop_all(state)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def module_home(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Give a state directory shared by a module's tests; nothing is exported to the environment."""
    folder = Path(tempfile.mkdtemp(dir=request.config.stash[_FOLDER], prefix=""))
    folder.chmod(0o755)
    state = folder / "s"
    state.mkdir(mode=0o700)
    yield state
    stop_all(state)
    shutil.rmtree(folder)
