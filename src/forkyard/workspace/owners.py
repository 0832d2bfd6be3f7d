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
