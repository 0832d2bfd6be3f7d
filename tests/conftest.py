"""What every test may ask for, and the check that the session leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from leftovers import Session, stop_all
from ordinary import OrdinaryUser, ordinary_user

# How long one example takes says how busy the machine is.
settings.register_profile("forkyard", deadline=None)
settings.load_profile("forkyard")

SOURCE = Path(__file__).resolve().parents[1] / "src"

_SHARED = "FORKYARD_TEST_FOLDER"
_SESSION = pytest.StashKey[Session]()
_FOLDER = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what is there before the first test, and make the folder of all state.

    Tests that run beside each other are one session: the process that hands them out looks
    after all of them, before the first starts and when the last has ended.
    """
    # Started in the background, with Ctrl-C ignored, tests would hand that on to what they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Programs that tests start are those of this tree, however pytest itself was started.
    os.environ["PYTHONPATH"] = str(SOURCE)
    shared = os.environ.get(_SHARED) if "PYTEST_XDIST_WORKER" in os.environ else None
    # Not below pytest's own folder: that one is closed to the ids that work inside a workspace,
    # and its path is too long for a socket's name.
    folder = Path(tempfile.mkdtemp(prefix="fy-", dir=shared))
    folder.chmod(0o755)
    session.config.stash[_FOLDER] = folder
    if shared is None:
        os.environ[_SHARED] = str(folder)
        before = Session()
        before.own(folder)
        session.config.stash[_SESSION] = before


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
def anyio_backend() -> str:
    """Run async tests on asyncio, as the server does."""
    return "asyncio"


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


@pytest.fixture
def ordinary(request: pytest.FixtureRequest) -> Iterator[OrdinaryUser]:
    """Give an ordinary user with sub-ids, home and state directory of his own."""
    with ordinary_user(request.config.stash[_FOLDER]) as user:
        yield user


@pytest.fixture(scope="module")
def module_ordinary(request: pytest.FixtureRequest) -> Iterator[OrdinaryUser]:
    """Give an ordinary user shared by a module's tests."""
    with ordinary_user(request.config.stash[_FOLDER]) as user:
        yield user
