"""A folder on this machine that a template takes: looked at by git, and never changed."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.errors import UserError
from forkyard.workspace.trusted_git import git, last_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A folder on this machine, looked at."""

    path: str
    """With links resolved; the folder also appears there in the workspace."""
    is_repository: bool
    commit: str | None = None
    """What HEAD means; None in a repository without commits."""
    branch: str | None = None
    is_linked: bool = False
    """Its `.git` is a file that says where the repository is: a linked worktree, a submodule."""


async def look(path: str) -> Source:
    """Look at a folder on this machine without changing it.

    Raises:
        UserError: It is missing, or laid out in a way that cannot be taken.
    """
    real = os.path.realpath(path)  # noqa: ASYNC240 - few system calls
    if not Path(real).is_dir():  # noqa: ASYNC240 - one system call
        raise UserError(
            f"cannot take repository {path}: there is no such folder",
            hint="Give the path of the repository's top folder.",
        )
    dot_git = Path(real) / ".git"
    try:
        facts = dot_git.lstat()
    except FileNotFoundError:
        return Source(path=real, is_repository=False)
    is_linked = stat.S_ISREG(facts.st_mode)
    if not is_linked and not stat.S_ISDIR(facts.st_mode):
        raise UserError(
            f"cannot take repository {path}: its .git is a link or no file at all",
            hint="Give the main working tree, or a clone of its own (`git clone PATH COPY`).",
        )
    if is_linked and await _read(real, "rev-parse", "--git-dir") is None:
        raise UserError(
            f"cannot take repository {path}: its .git is a file, and the repository that it names"
            " is not there",
            hint="Run `git worktree repair` in the main working tree, or give that one's path.",
        )
    commit = await _read(real, "rev-parse", "--verify", "-q", "HEAD^{commit}")
    branch = await _read(real, "symbolic-ref", "-q", "--short", "HEAD")
    return Source(path=real, is_repository=True, commit=commit, branch=branch, is_linked=is_linked)


async def _read(path: str, *arguments: str) -> str | None:
    done = await git("-C", path, *arguments, variables=trusting())
    return done.stdout.decode(errors="surrogateescape").strip() or None if done.succeeded else None


async def revision(source: Source, branch: str | None, checkout: str | None) -> Source:
    """Give the source with another branch, or with what a name means, in place of HEAD.

    Raises:
        UserError: It has nothing of that name.
    """
    name = checkout or branch
    if name is None:
        return source
    places = ("refs/heads/", "refs/remotes/origin/")
    for place in places if checkout is None else (*places, "refs/tags/", ""):
        commit = await _read(
            source.path, "rev-parse", "--verify", "-q", "--end-of-options",
            f"{place}{name}^{{commit}}",
        )  # fmt: skip
        if commit is not None:
            is_branch = place in places
            return replace(source, commit=commit, branch=name if is_branch else None)
    what = "branch" if checkout is None else "branch, tag or commit"
    raise UserError(
        f"cannot take repository {source.path}: it has no {what} {name}",
        hint="See `git branch --all` and `git tag` there.",
    )


async def summary(source: Source) -> str:
    """Say what of a working tree is not committed, in counts."""
    done = await git(
        "-C",
        source.path,
        "status",
        "--porcelain=v2",
        "-z",
        "--untracked-files=normal",
        "--ignore-submodules=dirty",
        variables=trusting(),
        owner=Path(source.path).stat().st_uid,  # noqa: ASYNC240 - one system call
    )
    where = (
        f"{source.path} at {source.commit[:12]}" if source.commit else f"{source.path} (no commit)"
    )
    if not done.succeeded:
        return f"{where}: its uncommitted work could not be counted ({last_words(done.stderr)})"
    modified = untracked = staged = 0
    records = iter(done.stdout.split(b"\0"))
    for record in records:
        if record.startswith(b"? "):
            untracked += 1
        elif record[:2] in (b"1 ", b"2 ", b"u "):
            staged += record[2:3] != b"."
            modified += record[3:4] != b"."
            if record.startswith(b"2 "):
                next(records, None)
    if not (modified or untracked or staged):
        return f"{where}: nothing uncommitted"
    return (
        f"{where}: uncommitted work is taken: {staged} staged, {modified} modified,"
        f" {untracked} untracked; ignored files as well"
    )


def refuse_borrowed_objects(path: str) -> None:
    """Refuse a repository whose objects are in another one.

    Raises:
        UserError: It is such a one.
    """
    alternates = Path(path) / ".git" / "objects" / "info" / "alternates"
    if alternates.exists() and alternates.read_bytes().strip():
        raise UserError(
            f"cannot take repository {path}: it borrows objects from another repository"
            " (objects/info/alternates), which no fork could see",
            hint="Run `git repack -a -d` there and remove that file.",
        )


def trusting() -> dict[str, str]:
    """Let git read a repository whoever owns it."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
