"""Poisoned git settings whose canary shows when a host ran what an agent wrote.

The canary only appends one line to a file below the test's own directory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

Poisoner = Callable[[Path, str], None]


class Canary:
    """A program of ours that leaves a trace when somebody runs it."""

    def __init__(self, folder: Path) -> None:
        """Write the program."""
        self._trace = folder / "fired"
        self.program = folder / "canary.sh"
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >> {self._trace}\n', encoding="ascii")
        self.program.chmod(0o755)
        self.filter = folder / "filter.sh"
        self.filter.write_text(f"#!/bin/sh\necho filter >> {self._trace}\ncat\n", encoding="ascii")
        self.filter.chmod(0o755)
        folder.chmod(0o755)

    @property
    def has_fired(self) -> bool:
        """Whether it was run since the last `reset`."""
        return self._trace.exists()

    def reset(self) -> None:
        """Forget what was run."""
        self._trace.unlink(missing_ok=True)


def _config(repository: Path, text: str, file: str = "config") -> None:
    with (repository / ".git" / file).open("a", encoding="ascii") as config:
        config.write(text)


def fsmonitor(repository: Path, program: str) -> None:
    """Run at each look at the work tree."""
    _config(repository, f"[core]\n\tfsmonitor = {program}\n")


def include(repository: Path, program: str) -> None:
    """Hide the setting in another file."""
    (repository / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    _config(repository, "[include]\n\tpath = more\n")


def include_if(repository: Path, program: str) -> None:
    """Hide it behind a condition."""
    (repository / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    _config(repository, '[includeIf "gitdir:/**"]\n\tpath = more\n')


def worktree_config(repository: Path, program: str) -> None:
    """Hide it in the work tree's configuration."""
    _config(repository, "[extensions]\n\tworktreeConfig = true\n")
    _config(repository, f"[core]\n\tfsmonitor = {program}\n", "config.worktree")


def index_hook(repository: Path, program: str) -> None:
    """Run when the index is written."""
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "post-index-change").symlink_to(program)


def hooks_path(repository: Path, program: str) -> None:
    """Keep the hooks among the files of the work tree."""
    (repository / "tools").mkdir()
    (repository / "tools" / "post-index-change").symlink_to(program)
    _config(repository, "[core]\n\thooksPath = tools\n")


def clean_filter(repository: Path, program: str) -> None:
    """Run when a file's content is taken."""
    (repository / ".gitattributes").write_text("* filter=x\n", encoding="ascii")
    _config(repository, f'[filter "x"]\n\tclean = {program}\n')


def clean_filter_by_info(repository: Path, program: str) -> None:
    """Name the filter where no one looks."""
    info = repository / ".git" / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text("* filter=x\n", encoding="ascii")
    _config(repository, f'[filter "x"]\n\tclean = {program}\n')


def filter_process(repository: Path, program: str) -> None:
    """Run one long-lived filter."""
    (repository / ".gitattributes").write_text("* filter=x\n", encoding="ascii")
    _config(repository, f'[filter "x"]\n\tprocess = {program}\n')


def nested_repository(repository: Path, program: str) -> None:
    """Poison a repository within, registered as a submodule would be."""
    inner = repository / "inner"
    inner.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    user = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*")
    for arguments in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "x")):
        subprocess.run(["git", *user, *arguments], cwd=inner, env=environment, check=True)
    (inner / "file").write_text("x")
    subprocess.run(
        ["git", *user, "-c", "advice.addEmbeddedRepo=false", "add", "inner"],
        cwd=repository,
        env=environment,
        check=True,
    )
    _config(inner, f"[core]\n\tfsmonitor = {program}\n")


POISONS: dict[str, tuple[Poisoner, bool]] = {
    "core.fsmonitor": (fsmonitor, False),
    "include.path": (include, False),
    "includeIf": (include_if, False),
    "config.worktree": (worktree_config, False),
    "hooks/post-index-change": (index_hook, False),
    "core.hooksPath": (hooks_path, False),
    "filter.clean by .gitattributes": (clean_filter, True),
    "filter.clean by info/attributes": (clean_filter_by_info, True),
    "filter.process": (filter_process, True),
    "nested repository as gitlink": (nested_repository, False),
}
"""By name: who poisons, and whether the program must pass bytes through."""
