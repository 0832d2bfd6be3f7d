"""The variables that commands in a workspace start with."""

from __future__ import annotations

from collections.abc import Mapping

from forkyard.model.workspace import USER_HOME, USER_NAME, Workspace
from forkyard.workspace import ports

BUILT_IN_VARIABLES = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": USER_HOME,
    "USER": USER_NAME,
    "LOGNAME": USER_NAME,
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
ROOT_VARIABLES = {"HOME": "/root", "USER": "root", "LOGNAME": "root"}


def exec_variables(
    row: Workspace, more: Mapping[str, str] | None = None, *, as_root: bool = False
) -> dict[str, str]:
    """Give the built-in ones, the template's, and a command's own, each over the one before."""
    return {
        **BUILT_IN_VARIABLES,
        **ports.variables(row),
        **row.environment.variables,
        **(ROOT_VARIABLES if as_root else {}),
        **(more or {}),
    }
