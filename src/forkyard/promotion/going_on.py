"""What a person is in the middle of in their own working tree, told by git's own marks as files.

In the middle of a rebase or a merge a tree is not what it seems: ending it may put other contents
over what was written meanwhile. No git runs here; names in the repository's folder say enough.
"""

from __future__ import annotations

import os
from pathlib import Path

_MARKS = (
    ("index.lock", "git is writing its index"),
    ("rebase-merge", "a rebase is going on"),
    ("rebase-apply", "a rebase or `git am` is going on"),
    ("MERGE_HEAD", "a merge is going on"),
    ("CHERRY_PICK_HEAD", "a cherry-pick is going on"),
    ("REVERT_HEAD", "a revert is going on"),
    ("BISECT_LOG", "a bisect is going on"),
)
_MOST_BYTES = 8192
_POINTER = b"gitdir: "


def going_on(tree: Path) -> str | None:
    """Say what goes on in a tree, as a clause; None where nothing does, or it is no repository."""
    folder = _git_folder(tree)
    if folder is None:
        return None
    return next((words for name, words in _MARKS if os.path.lexists(folder / name)), None)


def _git_folder(tree: Path) -> Path | None:
    """Find the repository's folder: `.git`, or where the file of a linked worktree points to."""
    dot_git = tree / ".git"
    if dot_git.is_dir():
        return dot_git
    try:
        with dot_git.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return None
    if not content.startswith(_POINTER):
        return None
    return tree / os.fsdecode(content.removeprefix(_POINTER).strip())
