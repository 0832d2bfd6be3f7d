"""Commands about agents."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, is_terminal, progress, say, size_of, style, table
from forkyard.errors import AgentError, ForkyardError

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.wire.drivers import DriverReport


_LOOK_SECONDS = 1.0


@click.group()
def agent() -> None:
    """Which agents can be run, and installing them."""


@agent.command("list", epilog="\b\nExample:\n  forkyard agent list")
@json_option
def list_(*, as_json: bool) -> None:
    """List the drivers that a task file may name."""
    found = talk(lambda client: client.agents.list())
    if as_json:
        write_json(found)
        return
    words = {True: "yes", False: "no", None: "-"}
    table(
        ("DRIVER", "WHAT IT RUNS", "VERSION", "INSTALLED", "PROVIDER", "MODEL"),
        [
            (
                one.name,
                one.summary,
                one.version or "-",
                words[one.installed],
                one.provider or "-",
                one.model or "-",
            )
            for one in found
        ],
    )


@agent.command(
    epilog="\b\nExamples:\n  forkyard agent check claude-code\n  forkyard agent check --json"
)
@click.argument("names", metavar="[DRIVER]...", nargs=-1)
@json_option
def check(names: tuple[str, ...], *, as_json: bool) -> int:
    """Say whether agents are installed as pinned. Without names: all of them.

    Every file is compared with what was unpacked. Exit code 11: one is missing or damaged.
    """

    async def ask(client: Client) -> list[DriverReport]:
        wanted = names or [one.name for one in await client.agents.list() if one.version]
        return [await client.agents.check(name) for name in wanted]

    found = talk(ask)
    if as_json:
        write_json(found)
    else:
        for one in found:
            _show(one)
    return AgentError.exit_code if any(one.problems for one in found) else 0


@agent.command(
    epilog="\b\nExamples:\n  forkyard agent install claude-code codex\n"
    "  forkyard agent install gemini --from ~/archives"
)
@click.argument("names", metavar="[DRIVER]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every agent that can be installed.")
@click.option(
    "--from", "source", metavar="FOLDER", type=click.Path(exists=True, file_okay=False),
    help="Take the archives from a folder instead of fetching them; `agent check --json` lists"
    " them.",
)  # fmt: skip
@json_option
def install(names: tuple[str, ...], *, everything: bool, source: str | None, as_json: bool) -> None:
    """Install agents as they are pinned. Fetched by npm and pip, checked by hash, no scripts run.

    An agent that is installed is left as it is. Nothing of this machine is changed outside
    Forkyard's own folder.
    """
    if bool(names) == everything:
        raise click.UsageError("name the drivers to install, or give --all")

    async def ask(client: Client) -> list[DriverReport]:
        wanted = names or [one.name for one in await client.agents.list() if one.version]
        done = []
        for name in wanted:
            progress(f"Installing {name}; a first time this takes a minute or two.")
            done.append(await _install(client, name, source))
        return done

    found = talk(ask)
    if as_json:
        write_json(found)
        return
    for one in found:
        say(f"{clean(one.name)} {clean(one.version or '')} is installed: {clean(one.folder or '')}")
        for note in one.notes:
            say(f"  note: {clean(note)}")


async def _install(client: Client, name: str, source: str | None) -> DriverReport:
    """Install one agent, and on a terminal show what is done meanwhile."""
    installing = asyncio.ensure_future(client.agents.install(name, source=source))
    try:
        if is_terminal(sys.stderr):
            await _look_on(client, name, installing)
        return await installing
    finally:
        installing.cancel()


async def _look_on(client: Client, name: str, installing: asyncio.Future[DriverReport]) -> None:
    told = ""
    while not installing.done():
        await asyncio.wait({installing}, timeout=_LOOK_SECONDS)
        if installing.done():
            return
        try:
            seen = await client.agents.progress(name)
        except ForkyardError:
            return  # it is only shown; what goes wrong is told by the installation itself
        text = "" if seen.doing is None else f"  {seen.doing}, {size_of(seen.size_bytes)} so far"
        if text not in {"", told}:
            told = text
            progress(text)


def _show(one: DriverReport) -> None:
    mark = style("problem", fg="red") if one.problems else style("ok", fg="green")
    where = f": {clean(one.folder)}" if one.folder else ""
    say(f"{mark}  {clean(one.name)} {clean(one.version or '')}{where}")
    for problem in one.problems:
        say(f"      problem: {clean(problem)}")
    for note in one.notes:
        say(f"      note: {clean(note)}")
