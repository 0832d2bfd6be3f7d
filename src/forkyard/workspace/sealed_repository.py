"""The repository that an attempt sees: built by us from a pack that a sandbox made."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from forkyard.errors import WorkspaceError
from forkyard.shim import kernel
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.workspace.layers import is_whiteout
from forkyard.workspace.trusted_git import git, git_or_error

INDEX_SECONDS = 1800.0
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")

_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
[diff]
\tignoreSubmodules = all
[user]
\tname = agent
\temail = agent@localhost
"""
"""Agents like to commit, and nothing of the user's own settings is there to name them."""


async def index_pack(pack: Path, quarantine: Path) -> None:
    """Index a pack that a sandbox made: every object is unpacked and named by its own hash."""
    folder = quarantine / "objects" / "pack"
    folder.mkdir(exist_ok=True)
    copied = folder / "pack-taken.pack"
    await asyncio.to_thread(shutil.copyfile, pack, copied)
    await git_or_error(
        "read the packed history",
        "index-pack",
        "--no-rev-index",
        str(copied),
        variables={"GIT_DIR": str(quarantine)},
        timeout_seconds=INDEX_SECONDS,
    )


async def verify(quarantine: Path, commit: str) -> None:
    """Prove that a repository holds what a commit reaches, all of it, and nothing else.

    Raises:
        WorkspaceError: An object is missing, or one too many is there.
    """
    variables = {"GIT_DIR": str(quarantine)}
    kind = await git("cat-file", "-t", commit, variables=variables)
    if kind.stdout.strip() != b"commit":
        raise WorkspaceError(f"cannot seal history: {commit} is no commit in what was packed")
    reached = await git_or_error(
        "seal history", "rev-list", "--objects", "--no-object-names", commit, variables=variables
    )
    held = await git_or_error(
        "seal history",
        "cat-file",
        "--batch-all-objects",
        "--batch-check=%(objectname)",
        variables=variables,
    )
    too_many = set(held.split()) - set(reached.split())
    if too_many:
        raise WorkspaceError(
            f"cannot seal history: {len(too_many)} objects are not part of {commit}'s history"
        )
    missing = set(reached.split()) - set(held.split())
    if missing:
        raise WorkspaceError(f"cannot seal history: {len(missing)} objects of {commit} are missing")


def nested_folders(layer: Path, repository: str) -> Iterator[str]:
    """Name the folders of one layer's repository that hold a `.git`, relative to it, but its own.

    Raises:
        WorkspaceError: A folder lies so deep that it cannot be looked into.
    """
    try:
        top = os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        pending = [""]
        while pending:
            folder = pending.pop()
            for name in _names(top, f"{repository}/{folder}" if folder else repository):
                path = f"{folder}/{name}" if folder else name
                if name != ".git":
                    pending.append(path)
                elif folder:
                    yield folder
    finally:
        os.close(top)


def _names(top: int, path: str) -> list[str]:
    """List the folders in a folder of a layer, and a `.git` of any kind."""
    try:
        opened = kernel.open_beneath(top, os.fsencode(path), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return []  # deleted, or no folder, in this layer
        msg = f"cannot seal history: {path[:200]} cannot be looked into: {error.strerror}"
        raise WorkspaceError(msg) from error
    try:
        with os.scandir(opened) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
                or (entry.name == ".git" and not is_whiteout(entry.stat(follow_symlinks=False)))
            ]
    finally:
        os.close(opened)


def write_repository(
    folder: Path, *, branch: str | None, commit: str | None, quarantine: Path | None = None
) -> None:
    """Write a `.git` of ours: one branch, the verified pack, no remote, log, hook or other ref."""
    name = branch if branch is not None and is_branch_name(branch) else "main"
    for path in ("objects/pack", "objects/info", "refs/heads", "refs/tags", "info"):
        (folder / path).mkdir(parents=True, exist_ok=True)
    (folder / "HEAD").write_text(f"ref: refs/heads/{name}\n", encoding="utf-8")
    (folder / "config").write_text(_CONFIG, encoding="utf-8")
    if commit is not None and quarantine is not None:
        reference = folder / "refs" / "heads" / name
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(f"{commit}\n", encoding="ascii")
        for pack in sorted((quarantine / "objects" / "pack").iterdir()):
            moved = pack.rename(folder / "objects" / "pack" / pack.name)
            moved.chmod(0o444)
        if (quarantine / "shallow").exists():
            shutil.copyfile(quarantine / "shallow", folder / "shallow")


def is_branch_name(name: str) -> bool:
    """Say whether a name is safe and valid as a branch's file name."""
    return (
        _BRANCH.fullmatch(name) is not None
        and ".." not in name
        and "//" not in name
        and not name.endswith(("/", "."))
        and not any(
            part.startswith(".") or part.endswith(".lock") or part == "HEAD"
            for part in name.split("/")
        )
    )


def give_to_user(folder: Path) -> None:
    """Give a tree that we wrote ourselves to the sandbox's user."""
    for parent, _, files in os.walk(folder):
        os.chown(parent, STORAGE_USER_ID, STORAGE_USER_ID)
        for name in files:
            path = Path(parent) / name
            os.chown(path, STORAGE_USER_ID, STORAGE_USER_ID, follow_symlinks=False)
