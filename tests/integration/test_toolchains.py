"""A user's virtual environment works inside, at its own path, with nothing else of a home."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.model.workspace import RepositorySource
from station import make_repository, station

pytestmark = pytest.mark.anyio


@pytest.fixture
def source() -> Iterator[Path]:
    """Make a repository below a home that looks like a person's."""
    folder = Path(tempfile.mkdtemp(prefix="fy-", dir="/srv"))
    folder.chmod(0o755)
    (folder / ".ssh").mkdir()
    (folder / ".ssh/id").write_text("key")
    yield make_repository(folder / "src")
    shutil.rmtree(folder)


async def test_the_interpreter_runs_inside_when_an_environment_names_it(
    home: Path, source: Path
) -> None:
    """Imports work in both paths of the repository, read-only; the home around it is not there."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(source / ".venv")],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    async with station(home) as here:
        snapshot = await here.snapshot_of(
            RepositorySource(path=str(source), include_uncommitted=True)
        )
        fork = (await here.workspaces.create(snapshot.id)).id
        ask = "import json, sys; print(sys.prefix, sys.version_info[:2])"
        expected = f"{source}/.venv {sys.version_info[:2]}\n"
        assert await here.run(fork, f"{source}/.venv/bin/python -c '{ask}'") == expected
        assert await here.run(fork, f"ls -A {source.parent}") == "src\n"
        for mount in snapshot.environment.mounts:
            _, text = await here.shell(fork, f"touch {mount.target}/x; ls -A {mount.target}/../..")
            assert "Read-only file system" in text
            assert ".ssh" not in text
            said = here.templates.log(here.templates.get("t")).read_text()
            assert f"shown read-only: {mount.target} (.venv/pyvenv.cfg)" in said
