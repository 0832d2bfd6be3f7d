"""Cloning from an address: bytes of a stranger, read by git as a user without any right.

What keeps a hostile remote from running something here (docs/decisions/0017):

- protocols: https, http, ssh and git; never `ext`, `file` or a helper that a setting names;
- no setting of anybody: neither the system's, nor a user's, nor a template, nor credentials;
- no submodule is fetched, no hook exists, no filter driver is defined, nothing is asked;
- git runs as a user of its own, with no capability and no way to one, in a mount namespace where it
  sees its folder at a place that it may enter; memory, file size and time are limited.

An ssh address needs this machine's keys, so there git runs as we do; such an address can hold no
option for ssh.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from forkyard.base.process import run_async
from forkyard.errors import WorkspaceError
from forkyard.shim.ids import CLONER_USER_ID
from forkyard.workspace.owners import home_of
from forkyard.workspace.trusted_git import GIT_VARIABLES, SAFE_OPTIONS, last_words

CLONE_SECONDS = 3600.0
PROTOCOLS = "https:http:ssh:git"
MEMORY_BYTES = 16 * 1024**3
"""Of addresses: git maps whole packs. A list of references without an end stops there."""
KEPT_FREE_BYTES = 1024**3
_PLACE = "/mnt"
_OPTIONS = (
    "-c", "credential.helper=", "-c", "submodule.recurse=false",
    "-c", "fetch.recurseSubmodules=false", "-c", "transfer.bundleURI=false",
    "-c", "protocol.version=2",
)  # fmt: skip
_ENTER = 'mount --bind -- "$1" "$2" && shift 2 && cd / && exec "$@"'


async def clone(
    url: str, target: Path, say: Callable[[str], None], *, memory_bytes: int = MEMORY_BYTES
) -> None:
    """Clone into a folder that does not exist yet; its files belong to whoever git ran as.

    Args:
        url: Checked to be one of the known schemes.
        target: Its parent exists.
        say: Takes sentences for the build log.
        memory_bytes: Most that git may map.

    Raises:
        WorkspaceError: Cloning failed, or took too much of something.

    Cancellation:
        Git is killed; the target is left half-made.
    """
    say(f"cloning {url}")
    target.mkdir()  # noqa: ASYNC240 - one system call
    limits = ["prlimit", f"--as={memory_bytes}", f"--fsize={_room(target)}", "--core=0"]
    git = ["git", *SAFE_OPTIONS, *_OPTIONS, "clone", "-q", "--template=", "--no-hardlinks"]
    git += ["--no-recurse-submodules", "--", url]
    if url.startswith("ssh://") or os.geteuid() != 0:
        argv, home = [*limits, *git, str(target)], home_of(os.geteuid())
    else:
        os.chown(target, CLONER_USER_ID, CLONER_USER_ID)
        argv, home = [*_lowered(target), *limits, *git, _PLACE], "/nonexistent"
    done = await run_async(
        argv,
        variables={
            **GIT_VARIABLES,
            "HOME": home,
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
            "GIT_ALLOW_PROTOCOL": PROTOCOLS,
        },
        timeout_seconds=CLONE_SECONDS,
    )
    if not done.succeeded:
        raise WorkspaceError(
            f"cannot clone {url}: {last_words(done.stderr)}",
            hint="Clone it by hand and give the folder's path where it needs a login or a proxy.",
        )


def _lowered(target: Path) -> list[str]:
    user = [f"--reuid={CLONER_USER_ID}", f"--regid={CLONER_USER_ID}", "--clear-groups"]
    nothing = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return [
        "unshare", "--mount", "--propagation=private", "--",
        "/bin/sh", "-c", _ENTER, "sh", str(target), _PLACE,
        "setpriv", *user, *nothing, "--",
    ]  # fmt: skip


def _room(target: Path) -> int:
    return max(KEPT_FREE_BYTES, shutil.disk_usage(target).free - KEPT_FREE_BYTES)
