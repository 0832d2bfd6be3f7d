"""Commands about the installation: serve, doctor, gc."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, size_of, style
from forkyard.config import state_directory
from forkyard.errors import ConflictError, SandboxUnavailableError

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.wire.schema import DoctorReport

IDLE_EXIT_SECONDS = 600.0


@click.command(
    epilog="\b\nExamples:\n  forkyard serve\n  forkyard serve --idle-exit 3600\n"
    "  forkyard serve --stop"
)
@click.option(
    "--idle-exit", type=click.FloatRange(min=0.1), metavar="SECONDS",
    help="Exit after this long without a client and without work (default: never).",
)  # fmt: skip
@click.option("--on-demand", is_flag=True, hidden=True)
@click.option("--stop", is_flag=True, help="Stop the running server; sandboxes go on without it.")
@json_option
def serve(*, idle_exit: float | None, on_demand: bool, stop: bool, as_json: bool) -> None:
    """Run the server in the foreground; other commands start one on demand by themselves."""
    if stop:
        stopped = talk(_stop, start=False)
        if as_json:
            write_json({"stopped": stopped})
        else:
            say("The server stops." if stopped else "No server is running.")
        return
    from forkyard.client.rootless import enter  # noqa: PLC0415 - keeps help fast

    if not on_demand:
        talk(_refuse_a_second, start=False)
    if on_demand and idle_exit is None:
        idle_exit = IDLE_EXIT_SECONDS
    home = state_directory()  # asked for as whoever we still are
    enter(home)
    # Only now: what it imports decides by the namespace who owns what.
    from forkyard.bootstrap.serving import serve as run_server  # noqa: PLC0415 - the whole program

    run_server(home, idle_seconds=idle_exit, announce=progress, is_foreground=not on_demand)


async def _refuse_a_second(client: Client) -> None:
    # At once: only a server that is just exiting is worth waiting for.
    running = await client.find_server()
    if running is not None:
        raise ConflictError(
            f"cannot serve {state_directory()}: process {running} does so already",
            hint="Use it, or stop it with `forkyard serve --stop`.",
        )


async def _stop(client: Client) -> bool:
    if await client.find_server() is None:
        return False
    await client.stop_server()
    return True


@click.command(epilog="\b\nExample:\n  forkyard doctor --json")
@json_option
def doctor(*, as_json: bool) -> int:
    """Say what isolation is in force on this machine, by really starting a container."""
    report = _without_server() or talk(lambda client: client.doctor())
    if as_json:
        write_json(report)
    else:
        say(f"runtime   {clean(report.runtime or 'none')}")
        say(f"storage   {clean(report.storage_mode)}")
        say(f"state     {clean(report.home)}")
        if report.free_bytes is not None:
            say(f"free      {report.free_bytes / 1024**3:.1f} GiB")
        for name, value in report.protections.items():
            say(f"{style('ok', fg='green')}        {clean(name)}: {clean(value)}")
        for note in report.notes:
            say(f"note      {clean(note)}")
        for problem in report.problems:
            say(f"{style('problem', fg='red')}   {clean(problem)}")
        if report.digest:
            say(f"digest    {report.digest}")
    return SandboxUnavailableError.exit_code if report.problems else 0


def _without_server() -> DoctorReport | None:
    """Say what keeps an ordinary user's server from living here; None where nothing does."""
    from forkyard.client.rootless import missing  # noqa: PLC0415 - keeps help fast

    found = missing(really=True)
    if not found:
        return None
    from forkyard.wire.schema import DoctorReport  # noqa: PLC0415 - as above

    return DoctorReport(
        runtime=None,
        storage_mode="none",
        problems=[str(one) for one in found],
        home=str(state_directory()),
    )


@click.command(
    epilog="\b\nExamples:\n  forkyard gc --dry-run\n  forkyard gc --older-than 2h --json"
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and how much that is; no more.")
@click.option(
    "--older-than", metavar="DURATION",
    help="Since a run ended, for the snapshot of its repository (default: 168h).",
)  # fmt: skip
@json_option
def gc(*, dry_run: bool, older_than: str | None, as_json: bool) -> None:
    """Remove what nothing needs any more.

    Runs, candidates, patches, logs and everything that you named stay. What goes: snapshots that
    runs made of a repository by themselves, some time after the run; contents that nothing
    refers to; records of what was undone; leftovers. A run whose snapshot is gone can still be
    compared and applied, but neither retried nor regraded.
    """
    limit = None if older_than is None else _duration(older_than)
    report = talk(lambda client: client.collect_garbage(dry_run=dry_run, older_than_seconds=limit))
    if as_json:
        write_json(report)
        return
    verb = "would remove" if dry_run else "removed"
    for one in report.removed:
        size = f", {size_of(one.size_bytes)}" if one.size_bytes else ""
        say(f"{verb} {one.kind} {clean(one.name)}{size}")
    count = len(report.removed)
    things = "1 thing" if count == 1 else f"{count} things"
    say(f"{things}, {size_of(report.size_bytes)}{' (nothing was removed)' if dry_run else ''}.")


def _duration(text: str) -> float:
    from forkyard.wire.units import parse_duration  # noqa: PLC0415 - keeps help fast

    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"--older-than {error}") from error
