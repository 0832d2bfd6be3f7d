"""The host's git as a tool: an environment built from empty, no hook, filter or prompt of anyone's.

Only for repositories that are ours, or the user's own as a source that is read. Never for a
repository or a work tree that a sandbox wrote.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from forkyard.base.process import Finished, run_async
from forkyard.errors import WorkspaceError
from forkyard.shim.ids import IDS

GIT_VARIABLES = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "SSH_ASKPASS": "/bin/false",
    "GIT_EDITOR": "/bin/false",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",
}
SAFE_OPTIONS = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
)


async def git(
    *arguments: str,
    directory: Path | str = "/",
    stdin: bytes = b"",
    variables: Mapping[str, str] | None = None,
    timeout_seconds: float = 600.0,
    owner: int = 0,
) -> Finished:
    """Run git and give how it ended, also when it failed.

    A repository's own settings may name filters, which `status` runs: with an `owner` they get
    that user's rights and not ours.
    """
    if IDS.is_rootless and owner:
        owner = IDS.nobody  # a stranger's, whom we cannot name: git will say that it is not ours
    lowered = (
        ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups", "--no-new-privs"]
        if owner and os.geteuid() == 0
        else []
    )
    return await run_async(
        [*lowered, "git", *SAFE_OPTIONS, *arguments],
        variables={**GIT_VARIABLES, **(variables or {})},
        stdin=stdin,
        directory=str(directory),
        timeout_seconds=timeout_seconds,
    )


async def git_or_error(
    doing: str,
    *arguments: str,
    directory: Path | str = "/",
    stdin: bytes = b"",
    variables: Mapping[str, str] | None = None,
    timeout_seconds: float = 600.0,
) -> bytes:
    """Run git and give its output.

    Raises:
        WorkspaceError: It failed: ``cannot <doing>: `` and git's own last words.
    """
    done = await git(
        *arguments,
        directory=directory,
        stdin=stdin,
        variables=variables,
        timeout_seconds=timeout_seconds,
    )
    if not done.succeeded:
        raise WorkspaceError(f"cannot {doing}: {last_words(done.stderr)}")
    return done.stdout


def last_words(stderr: bytes) -> str:
    """Give the last lines of what git printed, as one clause."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines[-1:]
    return (
        "; ".join(telling[:2]).replace("fatal: ", "").replace("error: ", "") or "git said nothing"
    )
