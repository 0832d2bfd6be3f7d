"""Commands about workspaces."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import bytes_out, clean, progress, say, short, stream_out, table
from forkyard.errors import ConfigError, Problem, WorkspaceError
from forkyard.wire.units import parse_duration

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.client.results import ExecOutcome
    from forkyard.wire.schema import WorkspaceInfo

TIMED_OUT = 124
NOT_STARTED = 127


@click.group()
def workspace() -> None:
    """Isolated, mutable copies of a snapshot."""


@workspace.command(
    epilog="\b\nExamples:\n  forkyard workspace create --snapshot issue-1842\n"
    "  forkyard workspace create --template payments --name mine"
)
@click.option("--snapshot", help="Fork this snapshot.")
@click.option("--template", help="Fork the snapshot of this template's newest build.")
@click.option("--name", "display_name", default="", help="A name for people.")
@click.option(
    "--network",
    type=click.Choice(["none", "gateway", "open"]),
    default="none",
    help="What it can reach; `gateway`: the models, without a key.",
)
@json_option
def create(
    snapshot: str | None, template: str | None, display_name: str, network: str, *, as_json: bool
) -> None:
    """Fork a workspace; nothing runs in it until the first command."""
    if (snapshot is None) == (template is None):
        raise click.UsageError("give exactly one of --snapshot and --template")

    async def conversation(client: Client) -> WorkspaceInfo:
        made = await client.workspaces.create(
            snapshot=snapshot, template=template, display_name=display_name, network=network
        )
        return made.info

    info = talk(conversation)
    if as_json:
        write_json(info)
    else:
        say(info.id)


class _CommandLast(click.Command):
    """Options may stand before or after the workspace; past them everything is the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a leading workspace out of the way while options are read."""
        if not args or args[0].startswith("-"):
            return super().parse_args(ctx, args)
        first, *others = args
        rest = super().parse_args(ctx, others)
        ctx.params["argv"] = (first, *ctx.params.get("argv", ()))
        return rest


@workspace.command(
    "exec",
    cls=_CommandLast,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  forkyard workspace exec ws_77aa pytest -q\n"
    "  forkyard workspace exec ws_77aa --timeout 10m -c 'make && make test'",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="W [COMMAND...]")
@click.option("-c", "--command", help="A shell command instead of a program with arguments.")
@click.option("-w", "--directory", metavar="FOLDER", help="Default: the repository.")
@click.option("-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--timeout", metavar="DURATION", help="Such as 45m.")
@json_option
def exec_(
    argv: tuple[str, ...],
    command: str | None,
    directory: str | None,
    variables: tuple[str, ...],
    timeout: str | None,
    *,
    as_json: bool,
) -> int:
    """Run one command in a workspace and exit with its status (124: it ran out of time)."""
    if not argv:
        raise click.UsageError("name a workspace")
    workspace_id, *words = argv
    if words and words[0] == "--":
        words = words[1:]
    if (command is None) == (not words):
        raise click.UsageError("give either a command with its arguments, or -c")
    environment = _variables(variables)
    limit = _duration(timeout)

    async def conversation(client: Client) -> ExecOutcome:
        found = await client.workspaces.get(workspace_id)
        return await found.exec(
            command if command is not None else words,
            working_directory=directory,
            variables=environment,
            timeout_seconds=limit,
        )

    outcome = talk(conversation)
    if as_json:
        write_json(_plain(outcome))
    else:
        bytes_out(outcome.stdout)
        bytes_out(outcome.stderr, sys.stderr.buffer)
    return _status(outcome)


def _plain(outcome: ExecOutcome) -> dict[str, object]:
    return {
        "id": outcome.id,
        "stop_reason": outcome.stop_reason,
        "exit_code": outcome.exit_code,
        "elapsed_seconds": outcome.elapsed_seconds,
        "stdout": outcome.stdout.decode("utf-8", "backslashreplace"),
        "stderr": outcome.stderr.decode("utf-8", "backslashreplace"),
        "stdout_base64": base64.b64encode(outcome.stdout).decode(),
        "stderr_base64": base64.b64encode(outcome.stderr).decode(),
        "truncated": outcome.truncated,
        "detail": outcome.detail,
    }


def _status(outcome: ExecOutcome) -> int:
    if outcome.truncated:
        progress("Output past the workspace's limit was dropped.")
    if outcome.stop_reason == "exited":
        return outcome.exit_code or 0
    progress(
        f"Not finished: {outcome.stop_reason}" + (f", {outcome.detail}" * bool(outcome.detail))
    )
    match outcome.stop_reason:
        case "timed-out":
            return TIMED_OUT
        case "could-not-start":
            return NOT_STARTED
        case "interrupted":
            return WorkspaceError.exit_code
        case _:
            return outcome.exit_code or 1


def _variables(entries: tuple[str, ...]) -> dict[str, str]:
    wrong = [one for one in entries if "=" not in one or one.startswith("=")]
    if wrong:
        raise ConfigError(
            f"cannot read -e {wrong[0]!r}: it is not NAME=VALUE",
            problems=tuple(
                Problem(key="-e", message=f"{one!r} is not NAME=VALUE") for one in wrong
            ),
        )
    return dict(one.split("=", 1) for one in entries)


def _duration(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(
            f"cannot read --timeout: {error}",
            problems=(Problem(key="--timeout", message=str(error)),),
        ) from error


@workspace.command(epilog="\b\nExample:\n  forkyard workspace start ws_77aa")
@click.argument("workspace_id", metavar="W")
@json_option
def start(workspace_id: str, *, as_json: bool) -> None:
    """Run a workspace's sandbox; a command starts it by itself."""
    _change(workspace_id, "start", as_json=as_json)


@workspace.command(epilog="\b\nExample:\n  forkyard workspace stop ws_77aa")
@click.argument("workspace_id", metavar="W")
@json_option
def stop(workspace_id: str, *, as_json: bool) -> None:
    """End a workspace's sandbox and every process in it; its files stay."""
    _change(workspace_id, "stop", as_json=as_json)


def _change(workspace_id: str, verb: str, *, as_json: bool) -> None:
    async def conversation(client: Client) -> WorkspaceInfo:
        found = await client.workspaces.get(workspace_id)
        await (found.start() if verb == "start" else found.stop())
        return found.info

    info = talk(conversation)
    if as_json:
        write_json(info)
    else:
        say(f"Workspace {info.id} is {info.state}.")


@workspace.command(epilog="\b\nExample:\n  forkyard workspace delete ws_77aa")
@click.argument("workspace_id", metavar="W")
@json_option
def delete(workspace_id: str, *, as_json: bool) -> None:
    """Remove a workspace and everything in it from this machine."""

    async def conversation(client: Client) -> str:
        found = await client.workspaces.get(workspace_id)
        await found.delete()
        return found.id

    identity = talk(conversation)
    if as_json:
        write_json({"deleted": identity})
    else:
        say(f"Workspace {identity} is deleted.")


@workspace.command("list", epilog="\b\nExample:\n  forkyard workspace list --all")
@click.option("--all", "everything", is_flag=True, help="Also those of attempts and evaluations.")
@json_option
def list_(*, everything: bool, as_json: bool) -> None:
    """List workspaces."""
    found = talk(lambda client: client.workspaces.list(everything=everything))
    if as_json:
        write_json(found)
        return
    table(
        ("WORKSPACE", "NAME", "STATE", "SNAPSHOT", "SERVES", "CREATED"),
        [
            (
                short(one.id),
                one.display_name or "-",
                one.state,
                short(one.snapshot),
                short(one.owner) if one.owner else "-",
                one.created_at,
            )
            for one in found
        ],
    )
    if not found:
        progress("No workspaces; `forkyard workspace create --snapshot NAME` makes one.")


@workspace.command(epilog="\b\nExample:\n  forkyard workspace show ws_77aa")
@click.argument("workspace_id", metavar="W")
@json_option
def show(workspace_id: str, *, as_json: bool) -> None:
    """Show one workspace."""

    async def conversation(client: Client) -> WorkspaceInfo:
        return (await client.workspaces.get(workspace_id)).info

    info = talk(conversation)
    if as_json:
        write_json(info)
        return
    limits = {} if info.limits is None else info.limits.model_dump()
    rows = [
        ("id", info.id),
        ("name", info.display_name or "-"),
        ("state", info.state),
        ("snapshot", info.snapshot),
        ("network", info.network),
        ("created", info.created_at),
        ("trouble", info.trouble or "-"),
        *((f"limit {key}", "-" if value is None else str(value)) for key, value in limits.items()),
    ]
    for key, value in rows:
        say(f"{key:<21} {clean(value)}")


@workspace.command(epilog="\b\nExample:\n  forkyard workspace logs ws_77aa")
@click.argument("workspace_id", metavar="W")
@click.option("-f", "--follow", is_flag=True, help="Go on until the newest command is over.")
@json_option
def logs(workspace_id: str, *, follow: bool, as_json: bool) -> None:
    """Show what the newest command in a workspace printed; with --json: all its commands."""

    async def conversation(client: Client) -> None:
        found = await client.workspaces.get(workspace_id)
        execs = await found.execs()
        if as_json:
            write_json(execs)
            return
        if not execs:
            progress("No command has been run in it yet.")
            return
        for stream, target in (("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)):
            await stream_out(found.output(execs[-1].id, stream=stream, follow=follow), target)

    talk(conversation)
