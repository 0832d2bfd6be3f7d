"""Kinds of files that a candidate does not carry. Standard library only."""

from __future__ import annotations

import os
import stat

LITTER_NAMES = frozenset(
    {
        b".bash_profile", b".bashrc", b".env", b".gitconfig", b".gitmodules", b".mcp.json",
        b".npmrc", b".profile", b".ripgreprc", b".zprofile", b".zshrc",
    }
)  # fmt: skip
"""Mount points that some agents' own sandboxes leave behind: empty, read-only, these names."""


def is_litter(name: bytes, status: os.stat_result) -> bool:
    """Say whether a new file is such a mount point."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == 0
        and not status.st_mode & 0o222
        and (name in LITTER_NAMES or b"*" in name)
    )


def kind_of(mode: int) -> str:
    """Say what git cannot hold is."""
    for test, kind in (
        (stat.S_ISFIFO, "a fifo"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    ):
        if test(mode):
            return f"{kind}, which git cannot hold"
    return "neither file, directory nor link"
