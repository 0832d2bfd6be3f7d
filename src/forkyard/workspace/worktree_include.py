"""The ignored files that a repository's own `.worktreeinclude` asks to take along.

A commit holds no `.env` and no local certificate, and tests may need them. The file lists them
with the patterns of `.gitignore`; only what git ignores *and* a pattern names is meant, so that
nothing else of the working tree slips into a copy of the committed state.
"""

from __future__ import annotations

import stat
from pathlib import Path

from forkyard.errors import UserError
from forkyard.workspace.trusted_git import git, last_words

INCLUDE_FILE = ".worktreeinclude"
MOST_FILES = 10_000
_TRUSTING = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


async def included_files(repository: str) -> tuple[str, ...]:
    """List the ignored files that a user's own repository asks for.

    Args:
        repository: Its root on this machine; it is read, never written to.

    Returns:
        Paths below it, sorted; nothing without a list.

    Raises:
        UserError: The list is no ordinary file, names too many files, or git cannot read it.
    """
    file = Path(repository) / INCLUDE_FILE
    try:
        facts = file.lstat()
    except FileNotFoundError:
        return ()
    if not stat.S_ISREG(facts.st_mode):
        raise UserError(
            f"cannot take {repository}: its {INCLUDE_FILE} is no ordinary file",
            hint="Make it a file of patterns, or remove it.",
        )
    owner = facts.st_uid
    asked = await _ignored(repository, owner, f"--exclude-from={file}")
    ignored = await _ignored(repository, owner, "--exclude-standard")
    found = tuple(sorted(asked & ignored))
    if len(found) > MOST_FILES:
        raise UserError(
            f"cannot take {repository}: its {INCLUDE_FILE} asks for {len(found)} files, at most"
            f" {MOST_FILES} are taken",
            hint="Name fewer, or write `include_uncommitted: true` to take the whole folder.",
        )
    return found


async def _ignored(repository: str, owner: int, rules: str) -> set[str]:
    done = await git(
        "-C",
        repository,
        "ls-files",
        "-z",
        "--others",
        "--ignored",
        rules,
        variables=_TRUSTING,
        owner=owner,
    )
    if not done.succeeded:
        raise UserError(
            f"cannot take {repository}: its ignored files cannot be listed:"
            f" {last_words(done.stderr)}",
            hint=f"Correct its {INCLUDE_FILE} or .gitignore.",
        )
    return {name for name in done.stdout.decode(errors="surrogateescape").split("\0") if name}
