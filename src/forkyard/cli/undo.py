"""Taking an applied candidate back out of a working tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, short, table
from forkyard.cli.tree import root_of
from forkyard.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.wire.results import ApplicationInfo, CandidateInfo

_WORDS = {"added": "remove", "deleted": "bring back", "modified": "put back"}


@click.command(
    epilog="\b\nExamples:\n  forkyard undo\n  forkyard undo --dry-run\n  forkyard undo app_1a2b\n"
    "  forkyard undo --workspace ws_77aa\n  forkyard undo --list"
)
@click.argument("application", required=False)
@click.option(
    "--to", "target", metavar="FOLDER",
    help="Repository whose last application is meant (default: the current one).",
)  # fmt: skip
@click.option("--workspace", metavar="W", help="A workspace instead of a folder.")
@click.option(
    "--dry-run", is_flag=True, help="Say what would be touched, or what refuses; no more."
)
@click.option("--list", "is_listing", is_flag=True, help="List what was applied, everywhere.")
@json_option
def undo(
    application: str | None,
    target: str | None,
    workspace: str | None,
    *,
    dry_run: bool,
    is_listing: bool,
    as_json: bool,
) -> int:
    """Take the last applied candidate back out of your working tree, or out of a workspace.

    Every touched path is compared with what was applied first; any difference refuses before
    anything is touched. An application that was cut short is taken back to its end.
    """
    if sum(one is not None for one in (application, target, workspace)) > 1:
        raise click.UsageError("APPLICATION, --to and --workspace exclude each other")
    if is_listing:
        if application is not None or dry_run:
            raise click.UsageError("--list takes neither an APPLICATION nor --dry-run")
        _list(target, workspace, as_json=as_json)
        return 0
    done = talk(lambda client: _take_back(client, application, target, workspace, is_dry=dry_run))
    if as_json:
        write_json(done)
    elif dry_run:
        say(f"Nothing in the way: {short(done.candidate)} can be taken back.")
    else:
        say(f"Took {short(done.candidate)} back out of {clean(done.target)}.")
    if done.left:
        progress("Left alone, edited meanwhile; what lay there before is in the record:")
        for path in done.left:
            progress(f"  {path}")
        return ConflictError.exit_code
    return 0


def _list(target: str | None, workspace: str | None, *, as_json: bool) -> None:
    folder = None if target is None else _root(target)
    found = talk(lambda client: client.candidates.applications(target=folder, workspace=workspace))
    if as_json:
        write_json(found)
        return
    rows = [
        (short(one.id), one.state, one.created_at, short(one.candidate), one.target)
        for one in found
    ]
    table(("APPLICATION", "STATE", "AT", "CANDIDATE", "WHERE"), rows)


async def _take_back(
    client: Client,
    application: str | None,
    target: str | None,
    workspace: str | None,
    *,
    is_dry: bool,
) -> ApplicationInfo:
    if application is not None:
        meant = await client.candidates.application(application)
    else:
        meant = await _last(client, None if workspace else _root(target or "."), workspace)
    # What would be refused is refused before anything is said of what is going to be done.
    done = await client.candidates.undo(meant.id, dry_run=True)
    if meant.state != "undone":
        _announce(meant, await client.candidates.get(meant.candidate))
    return done if is_dry else await client.candidates.undo(meant.id, dry_run=False)


async def _last(client: Client, folder: Path | None, workspace: str | None) -> ApplicationInfo:
    found = await client.candidates.applications(target=folder, workspace=workspace)
    open_ones = [one for one in found if one.state != "undone"]
    if not open_ones:
        raise NotFoundError(
            f"cannot undo in {folder or workspace}: nothing is applied there",
            hint="See `forkyard undo --list`.",
        )
    return open_ones[-1]


def _announce(application: ApplicationInfo, candidate: CandidateInfo) -> None:
    what = short(application.candidate)
    progress(f"Taking {what} back, applied at {application.created_at} to {application.target}:")
    for change in candidate.files:
        progress(f"  {_WORDS.get(change.kind, 'put back')} {change.path}")


def _root(folder: str) -> Path:
    return root_of(Path(folder)) or Path(folder).absolute()
