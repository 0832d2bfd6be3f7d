"""The main job: run, status, watch, cancel, retry, regrade."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.comparison import exit_code_of, show_comparison
from forkyard.cli.main import INTERRUPTED
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, short, table
from forkyard.cli.progress import follower
from forkyard.cli.quick import read_quick, refuse_unless_task_file
from forkyard.errors import ConflictError
from forkyard.wire.results import QuickRequest, RunInfo

if TYPE_CHECKING:
    from forkyard.client.client import Client


@click.command(
    epilog="""\b
Examples:
  forkyard run task.yaml
  forkyard run "Fix the failing test" -a claude-code -a codex:gpt-5.5 --check "pytest -q"
  forkyard run "Fix the failing test" -a mine='my-agent -p "$PROMPT"' -n 2 --check "pytest -q"
"""
)
@click.argument("task", metavar="TASK.yaml|PROMPT")
@click.option(
    "-a", "--agent", "agents", multiple=True, metavar="AGENT",
    help="Quick form: DRIVER, DRIVER:MODEL, or NAME='SHELL COMMAND', which gets the prompt as"
    " $PROMPT. Repeatable.",
)  # fmt: skip
@click.option("-n", "--attempts", type=int, default=1, help="Quick form: attempts of each agent.")
@click.option(
    "--check", "checks", multiple=True, metavar="COMMAND",
    help="Quick form: a command that judges a candidate by its exit status, or, where it names"
    " $REPORT, by the JUnit XML that it writes there. Repeatable. Default: the repository's tests.",
)  # fmt: skip
@click.option("--no-check", is_flag=True, help="Quick form: judge by nothing.")
@click.option(
    "--setup", multiple=True, metavar="COMMAND",
    help="Quick form: run once in the copy, with the network open, before the forks. Repeatable."
    " Default: what brings missing dependencies in.",
)  # fmt: skip
@click.option("--no-setup", is_flag=True, help="Quick form: take the copy as it is.")
@click.option(
    "--repository", metavar="FOLDER",
    help="Quick form: repository to start from (default: the one around the current folder).",
)  # fmt: skip
@click.option("--committed", is_flag=True, help="Quick form: leave uncommitted work out.")
@click.option("--snapshot", help="Quick form: start from this snapshot instead.")
@click.option("--template", help="Quick form: start from this template's snapshot instead.")
@click.option(
    "--var", "values", multiple=True, metavar="NAME=VALUE",
    help="Quick form: one of the template's vars. Repeatable.",
)  # fmt: skip
@click.option(
    "--allow", multiple=True, metavar="HOST",
    help="Let the agents reach HOST, *.HOST or HOST:PORT.",
)  # fmt: skip
@click.option(
    "--protected", multiple=True, metavar="PATTERN",
    help="Quick form: paths restored before the checks. Repeatable.",
)  # fmt: skip
@click.option("--parallel", type=int, metavar="N", help="Quick form: attempts at once.")
@click.option("--timeout", metavar="DURATION", help="Quick form: of each attempt, such as 45m.")
@click.option("--deadline", metavar="DURATION", help="Quick form: of the whole run.")
@click.option("--budget-usd", metavar="USD", help="Quick form: most that all attempts may spend.")
@click.option("--budget-tokens", metavar="N", help="Quick form: the same in tokens, such as 5M.")
@click.option("--detach", is_flag=True, help="Return at once; the run goes on.")
@click.option("-q", "--quiet", is_flag=True, help="No live table.")
@json_option
def run(task: str, *, detach: bool, quiet: bool, as_json: bool, **quick: object) -> int:
    """Run agents on a task in forks of one snapshot, judge and rank what each really did.

    The argument is a task file, or a prompt for the quick form, which needs -a and starts from
    the current repository, uncommitted work included.

    The first Ctrl-C cancels the run and keeps its results, the second leaves at once.
    """
    request = read_quick(task, quick) if quick["agents"] else None
    if request is None:
        refuse_unless_task_file(click.get_current_context(), task)
    return talk(
        lambda client: _run(client, task, request, detach=detach, quiet=quiet, as_json=as_json)
    )


async def _run(
    client: Client,
    task: str,
    request: QuickRequest | None,
    *,
    detach: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    if request is None:
        info = await client.runs.submit_file(task)
    else:
        info = await client.runs.submit(request)
    if detach:
        progress(f"Run {info.id} goes on by itself; follow it with `forkyard watch {info.id}`.")
        if as_json:
            write_json(info)
        else:
            say(info.id)
        return 0
    info = await follow(client, info, quiet=quiet, cancels=True)
    finish(info, as_json=as_json)
    return exit_code_of(info)


def finish(info: RunInfo, *, as_json: bool) -> None:
    """Write a run's result: the comparison for people, the one object for programs."""
    if as_json:
        write_json(info)
    else:
        show_comparison(info)


async def follow(client: Client, info: RunInfo, *, quiet: bool, cancels: bool) -> RunInfo:
    """Show a run until it is over.

    Args:
        client: Connected.
        info: The run, as known.
        quiet: Lines instead of a live table.
        cancels: Whether the first Ctrl-C cancels the run; otherwise it leaves at once.
    """
    loop = asyncio.get_running_loop()
    interrupts = 0
    cancelling: list[asyncio.Task[RunInfo]] = []

    def interrupted() -> None:
        nonlocal interrupts
        interrupts += 1
        if not cancels or interrupts > 1:
            what = "is being cancelled" if cancels else "goes on"
            progress(f"Left; run {short(info.id)} {what}: `forkyard watch {short(info.id)}`.")
            sys.stderr.flush()
            # At once, as promised: the server is another process and needs no farewell.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            import os  # noqa: PLC0415 - only at a second interrupt

            os._exit(INTERRUPTED)
        progress("Cancelling the run; its results so far are kept. Ctrl-C again leaves at once.")
        cancelling.append(loop.create_task(client.runs.cancel(info.id)))

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        with follower(quiet=quiet) as shown:
            shown.show(info)
            async for newer in client.runs.watch(info.id):
                info = newer
                shown.show(info)
        for one in cancelling:
            with contextlib.suppress(ConflictError):  # it ended by itself in the same moment
                await one
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    if interrupts:
        raise click.exceptions.Exit(_after_cancel(info))
    return info


def _after_cancel(info: RunInfo) -> int:
    with contextlib.suppress(BrokenPipeError):
        finish(info, as_json="--json" in sys.argv)
    return INTERRUPTED


@click.command(epilog="\b\nExamples:\n  forkyard status\n  forkyard status last --json")
@click.argument("run_id", metavar="[RUN]", required=False)
@json_option
def status(run_id: str | None, *, as_json: bool) -> None:
    """List all runs, or show one: its id, an abbreviation, its name, or `last`."""
    if run_id is not None:
        finish(talk(lambda client: client.runs.get(run_id)), as_json=as_json)
        return
    runs = talk(lambda client: client.runs.list())
    if as_json:
        write_json(runs)
        return
    table(
        ("RUN", "NAME", "STATE", "ATTEMPTS", "WINNER", "CREATED"),
        [
            (
                short(one.id),
                one.name,
                one.state,
                f"{one.attempts_ended}/{one.attempts}",
                ", ".join("-" if winner is None else short(winner) for winner in one.winners),
                one.created_at,
            )
            for one in runs
        ],
    )
    if not runs:
        progress("No runs yet; try `forkyard demo`.")


@click.command(epilog="\b\nExample:\n  forkyard watch last")
@click.argument("run_id", metavar="RUN")
@click.option("-q", "--quiet", is_flag=True, help="No live table.")
@json_option
def watch(run_id: str, *, quiet: bool, as_json: bool) -> int:
    """Follow a run to its end; Ctrl-C leaves, and the run goes on."""

    async def conversation(client: Client) -> RunInfo:
        info = await client.runs.get(run_id)
        return await follow(client, info, quiet=quiet, cancels=False)

    info = talk(conversation)
    finish(info, as_json=as_json)
    return exit_code_of(info)


@click.command(epilog="\b\nExample:\n  forkyard cancel last")
@click.argument("run_id", metavar="RUN")
@json_option
def cancel(run_id: str, *, as_json: bool) -> None:
    """End a run: its agents are stopped, what was found so far is kept."""
    info = talk(lambda client: client.runs.cancel(run_id))
    if as_json:
        write_json(info)
    else:
        say(f"Run {clean(info.id)} is being cancelled.")


@click.command(epilog="\b\nExample:\n  forkyard retry last")
@click.argument("run_id", metavar="RUN")
@click.option("--detach", is_flag=True, help="Return at once; the run goes on.")
@click.option("-q", "--quiet", is_flag=True, help="No live table.")
@json_option
def retry(run_id: str, *, detach: bool, quiet: bool, as_json: bool) -> int:
    """Start those attempts again that trouble of ours ended."""
    return talk(
        lambda client: _again(client, run_id, "retry", detach=detach, quiet=quiet, as_json=as_json)
    )


@click.command(epilog="\b\nExample:\n  forkyard regrade last")
@click.argument("run_id", metavar="RUN")
@click.option("--detach", is_flag=True, help="Return at once; the run goes on.")
@click.option("-q", "--quiet", is_flag=True, help="No live table.")
@json_option
def regrade(run_id: str, *, detach: bool, quiet: bool, as_json: bool) -> int:
    """Evaluate a run's candidates again, without running any agent."""
    return talk(
        lambda client: _again(
            client, run_id, "regrade", detach=detach, quiet=quiet, as_json=as_json
        )
    )


async def _again(
    client: Client, run_id: str, verb: str, *, detach: bool, quiet: bool, as_json: bool
) -> int:
    ask = client.runs.retry if verb == "retry" else client.runs.regrade
    info = await ask(run_id)
    if detach:
        if as_json:
            write_json(info)
        else:
            say(info.id)
        return 0
    info = await follow(client, info, quiet=quiet, cancels=True)
    finish(info, as_json=as_json)
    return exit_code_of(info)
