"""Copying files between this machine and a workspace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.completion import complete_copy
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import progress, size_of
from forkyard.errors import WorkspaceError

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.client.copy import Copied


@click.command(
    "cp",
    epilog="\b\nExamples:\n  forkyard workspace cp mine:/workspace/repo/dist .\n"
    "  forkyard workspace cp notes.txt mine:/workspace/repo/\n"
    "  forkyard workspace cp mine:/workspace/repo - | tar tf -\n"
    "  tar cf - src | forkyard workspace cp - mine:/workspace/repo",
)
@click.argument("source", shell_complete=complete_copy)
@click.argument("target", shell_complete=complete_copy)
@json_option
def cp(source: str, target: str, *, as_json: bool) -> int:
    """Copy into a workspace (W:/path), or out of one. `-` is a tar stream."""
    from_inside, to_inside = _inside(source), _inside(target)
    if (from_inside is None) == (to_inside is None):
        raise click.UsageError("one of SOURCE and TARGET must be W:/path, and only one")
    if as_json and target == "-":
        raise click.UsageError("--json and the archive cannot both be standard output")

    async def conversation(client: Client) -> Copied:
        if from_inside is not None:
            found = await client.workspaces.get(from_inside[0])
            where = sys.stdout.buffer if target == "-" else target
            return await found.get(from_inside[1], where)
        assert to_inside is not None  # noqa: S101 - one of them is
        found = await client.workspaces.get(to_inside[0])
        return await found.put(sys.stdin.buffer if source == "-" else source, to_inside[1])

    copied = talk(conversation)
    if as_json:
        write_json(
            {
                "files": copied.files,
                "size_bytes": copied.size_bytes,
                "left_out": [{"path": path, "reason": why} for path, why in copied.left_out],
                "left_out_more": copied.left_out_more,
            }
        )
    failed = copied.failed
    for path, why in copied.left_out:
        progress(f"{'Not copied' if (path, why) in failed else 'Left out'}: {path}: {why}")
    if copied.left_out_more:
        progress(f"Left out or not copied: {copied.left_out_more} more.")
    files = "1 file" if copied.files == 1 else f"{copied.files} files"
    progress(f"Copied {files}, {size_of(copied.size_bytes)}.")
    return WorkspaceError.exit_code if copied.has_failed else 0


def _inside(text: str) -> tuple[str, str] | None:
    """Read W:/path; anything else is a path here, such as `./a:/b`."""
    workspace, colon, path = text.partition(":")
    if not colon or not workspace or "/" in workspace or not path.startswith("/"):
        return None
    return workspace, path
