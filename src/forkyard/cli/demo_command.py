"""``forkyard demo``: a task file like any other, over a repository that is laid out first."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.comparison import exit_code_of
from forkyard.cli.demo import REPOSITORY, prepare
from forkyard.cli.output import clean, progress, say
from forkyard.cli.run import finish, follow

if TYPE_CHECKING:
    from forkyard.client.client import Client


@click.command(epilog="\b\nExample:\n  forkyard demo")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where to lay it out (default: a new folder)."
)
@click.option("-q", "--quiet", is_flag=True, help="No live table.")
@json_option
def demo(folder: Path | None, *, quiet: bool, as_json: bool) -> int:
    """Best of 3 on a bundled example: a real bug, scripted agents, real sandboxes, offline."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="forkyard-demo-"))
    else:
        folder.mkdir(parents=True, exist_ok=True)
    task = prepare(folder.absolute())
    progress(f"The example lies in {os.fspath(task.parent)}; its task file is {task.name}.")

    async def conversation(client: Client) -> int:
        info = await client.runs.submit_file(task)
        info = await follow(client, info, quiet=quiet, cancels=True)
        finish(info, as_json=as_json)
        if not as_json:
            say(f"      (apply it in {clean(os.fspath(task.parent / REPOSITORY))})")
        return exit_code_of(info)

    return talk(conversation)
