"""Looking at results and taking them home: compare, diff, logs, apply."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import bytes_out, clean, progress, say, short, stream_out
from forkyard.cli.tree import root_of
from forkyard.errors import ConflictError

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.wire.results import ApplicationInfo, CandidateInfo


@click.command(epilog="\b\nExamples:\n  forkyard compare last\n  forkyard compare run_1a2b --json")
@click.argument("run_id", metavar="RUN")
@json_option
def compare(run_id: str, *, as_json: bool) -> None:
    """Compare a run's candidates: verdict, assurance, tests, files, time and reasons."""
    from forkyard.cli.comparison import show_comparison  # noqa: PLC0415 - keeps help fast

    info = talk(lambda client: client.runs.get(run_id))
    if as_json:
        write_json(info)
    else:
        show_comparison(info)


@click.command(epilog="\b\nExample:\n  forkyard diff cand_1a2b > fix.patch")
@click.argument("candidate")
@json_option
def diff(candidate: str, *, as_json: bool) -> None:
    """Show a candidate's patch, byte for byte into files and pipes."""
    if as_json:
        write_json(talk(lambda client: client.candidates.get(candidate)))
    else:
        bytes_out(talk(lambda client: client.candidates.patch(candidate)))


@click.command(
    epilog="\b\nExamples:\n  forkyard apply cand_1a2b\n"
    "  forkyard apply cand_1a2b --workspace ws_77aa"
)
@click.argument("candidate")
@click.option(
    "--to", "target", metavar="FOLDER", help="Repository to write into (default: the current one)."
)
@click.option("--workspace", metavar="W", help="A workspace instead of a folder.")
@json_option
def apply(candidate: str, target: str | None, workspace: str | None, *, as_json: bool) -> None:
    """Put a candidate's bytes into your working tree, or into a workspace.

    Every touched path is compared with the recorded base first; any difference refuses before
    anything is touched. Another folder than the run started from must be named with --to.
    """
    if target is not None and workspace is not None:
        raise click.UsageError("--to and --workspace exclude each other")
    folder = None
    if workspace is None:
        folder = root_of(Path(target or ".")) or Path(target or ".").absolute()
    is_named = target is not None or workspace is not None

    async def conversation(client: Client) -> ApplicationInfo:
        if folder is not None and not is_named:
            _refuse_another(await client.candidates.get(candidate), folder)
        return await client.candidates.apply(candidate, target=folder, workspace=workspace)

    done = talk(conversation)
    if as_json:
        write_json(done)
        return
    if not done.paths:
        say(f"Nothing to apply to {clean(done.target)}: {short(done.candidate)} changes no file")
        return
    say(f"Applied {short(done.candidate)} to {clean(done.target)}:")
    for path in done.paths:
        say(f"  {clean(path)}")
    progress("Nothing was committed; review it with your own tools.")
    progress(f"Take it back with: forkyard undo {short(done.id)}")


def _refuse_another(info: CandidateInfo, folder: Path) -> None:
    # Where a candidate only adds files, nothing else would tell that this is another project.
    if info.source is not None and folder.resolve() != Path(info.source).resolve():
        raise ConflictError(
            f"cannot apply {info.id} to {folder}: its run started from {info.source}",
            hint=f"Go there, or name this folder: `forkyard apply {short(info.id)} --to .`.",
        )


@click.command(
    epilog="\b\nExamples:\n  forkyard logs careful#2\n  forkyard logs run_1a2b:careful\n"
    "  forkyard logs att_1a2b --follow"
)
@click.argument("attempt")
@click.option("-f", "--follow", is_flag=True, help="Go on until the agent is over.")
@click.option("--only", type=click.Choice(["stdout", "stderr"]), help="One stream only.")
@click.option("--trajectory", is_flag=True, help="What it said and did, as one form for all.")
@json_option
def logs(attempt: str, *, follow: bool, only: str | None, trajectory: bool, as_json: bool) -> None:
    """Show what an attempt's agent printed, whole: its output to stdout, its errors to stderr.

    An attempt is named as the comparison shows it: AGENT or AGENT#N of the newest run,
    RUN:AGENT#N of another, by its candidate, or by its id.
    """
    if trajectory:
        if follow or only is not None:
            raise click.UsageError("--trajectory excludes --follow and --only")
        _trajectory(attempt, as_json=as_json)
        return
    streams = [only] if only is not None else ["stdout", "stderr"]

    async def conversation(client: Client) -> None:
        async def show(stream: str) -> None:
            chunks = client.runs.log(attempt, stream=stream, follow=follow)
            is_error = only is None and stream == "stderr"
            await stream_out(chunks, sys.stderr.buffer if is_error else None)

        async def read(stream: str) -> str:
            chunks = [chunk async for chunk in client.runs.log(attempt, stream=stream)]
            return b"".join(chunks).decode("utf-8", "backslashreplace")

        if as_json:
            write_json({"attempt": attempt, **{one: await read(one) for one in streams}})
        else:
            await asyncio.gather(*(show(one) for one in streams))

    talk(conversation)


def _trajectory(attempt: str, *, as_json: bool) -> None:
    import json  # noqa: PLC0415 - only here

    from forkyard.cli.trajectory import show_trajectory  # noqa: PLC0415 - keeps help fast

    content = talk(lambda client: client.runs.trajectory(attempt))
    if as_json:
        write_json(json.loads(content))
    else:
        show_trajectory(content)
