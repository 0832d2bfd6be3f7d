"""Whose home a file's owner has, whatever namespace we see the owner from."""

from __future__ import annotations

import pwd

from forkyard.shim.ids import IDS, REAL_USER_ID

NO_HOME = "/nonexistent"


def home_of(user: int) -> str:
    """Give the home of a user as `stat` tells it here; a place that is not there for strangers."""
    if IDS.is_rootless:
        if user != 0:
            return NO_HOME
        user = REAL_USER_ID
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return NO_HOME


def at_home() -> list[str]:
    """Give what stands before a command that asks the system where its user's home is.

    Rootless, that would be the home of the machine's root: ssh looks for keys there, whatever the
    environment says. In a mount namespace of the command's own, our user's home lies over it.
    """
    if not IDS.is_rootless:
        return []
    return [
        "unshare", "--mount", "--propagation=private", "--",
        "/bin/sh", "-c", _SHOW_HOME, "sh", home_of(0), pwd.getpwuid(0).pw_dir,
    ]  # fmt: skip


_SHOW_HOME = 'mount --rbind -- "$1" "$2" && shift 2 && exec "$@"'
