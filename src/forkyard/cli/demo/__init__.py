"""The bundled example: a small repository with a real bug, and a task file for three agents.

Owns what the example is made of; knows nothing of how a run goes. Nothing in it needs more than
the `python3` and `sed` of the host.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree

from forkyard.base.process import run
from forkyard.errors import WorkspaceError

REPOSITORY = "repository"
_GIT = (
    "git",
    "-c",
    "user.name=Forkyard demo",
    "-c",
    "user.email=demo@forkyard.invalid",
    "-c",
    "init.defaultBranch=main",
    "-c",
    "commit.gpgSign=false",
)


def prepare(folder: Path) -> Path:
    """Lay out the example in a folder: a repository with uncommitted work, and the task beside it.

    The repository is one commit, plus the failing test that its developer has not committed yet.

    Args:
        folder: An existing, empty folder.

    Returns:
        The task file to run.

    Raises:
        WorkspaceError: Git is missing or cannot make the repository.
    """
    repository = folder / REPOSITORY
    with as_file(files(__name__) / "bundle") as bundle:
        _copy(bundle / "repository", repository)
        # A wheel's builder may drop a file of this name, so it travels under another.
        (repository / "gitignore").rename(repository / ".gitignore")
        _git(repository, "init", "--quiet")
        _git(repository, "add", "--all")
        _git(repository, "commit", "--quiet", "--message", "Retry deliveries later and later")
        _copy(bundle / "uncommitted", repository)
        task = folder / "task.yaml"
        task.write_bytes((bundle / "task.yaml").read_bytes())
    return task


def _copy(source: Path, target: Path) -> None:
    copytree(
        source,
        target,
        dirs_exist_ok=True,
        ignore=lambda _folder, names: [name for name in names if name == "__pycache__"],
    )


def _git(repository: Path, *arguments: str) -> None:
    finished = run(
        [*_GIT, *arguments],
        variables={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/nonexistent",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C.UTF-8",
        },
        directory=str(repository),
    )
    if not finished.succeeded:
        reason = finished.stderr.decode("utf-8", "replace").strip().splitlines()
        raise WorkspaceError(
            f"cannot prepare the demo in {repository}: git {arguments[0]} says"
            f" {reason[-1] if reason else f'nothing and exits {finished.exit_code}'}",
            hint="Install git, or name an empty folder that you may write to.",
        )
