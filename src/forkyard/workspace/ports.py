"""Each persistent workspace's own range of ports, so that copies on one host do not collide.

A development server that listens inside on FORKYARD_PORT_FIRST can be forwarded to the same number
on this machine's loopback, whatever runs in the other copies. Inside, every port is free anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

from forkyard.model.workspace import Workspace, WorkspaceState

COUNT = 10
FIRST, RANGES = 24000, 800
"""Below the ports that the kernel gives out by itself, above those that are somebody's."""


def take(home: Path, workspaces: Iterable[Workspace]) -> int | None:
    """Choose a range that none of an installation's workspaces has; None where all are taken.

    Where to begin depends on the installation, so that two on one host seldom choose alike.
    """
    taken = {one.ports_first for one in workspaces if one.state is not WorkspaceState.DELETED}
    begin = zlib.crc32(str(home).encode()) % RANGES
    for step in range(RANGES):
        first = FIRST + (begin + step) % RANGES * COUNT
        if first not in taken:
            return first
    return None


def variables(workspace: Workspace) -> dict[str, str]:
    """Give what tells a workspace's commands its range."""
    if workspace.ports_first is None:
        return {}
    return {
        "FORKYARD_PORT_FIRST": str(workspace.ports_first),
        "FORKYARD_PORT_COUNT": str(COUNT),
    }
