"""Commands about workspaces."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from forkyard.cli import live
from forkyard.cli.calls import json_option, talk
from forkyard.cli.completion import complete
from forkyard.cli.copy import cp
from forkyard.cli.forward import forward
from forkyard.cli.output import (
    age,
    clean,
    progress,
    say,
    seconds,
    short,
    size_of,
    stream_out,
    table,
)
from forkyard.cli.output import as_json as write_json
from forkyard.cli.variables import read_vars
from forkyard.wire.units import format_duration

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.wire.spaces import ExecInfo, WorkspaceInfo


@click.group()
def workspace() -> None:
    """Isolated, mutable copies of a snapshot."""


for one in (live.exec_, live.shell, cp, forward):
    workspace.add_command(one)


@workspace.command(
    epilog="\b\nExamples:\n  forkyard workspace create --snapshot issue-1842\n"
    "  forkyard workspace create --template payments --name mine"
)
@click.option("--snapshot", help="Fork this snapshot.")
@click.option("--template", help="Fork the snapshot of this template's newest build.")
@click.option(
    "--var", "values", multiple=True, metavar="NAME=VALUE",
    help="With --template: one of its vars, as it was built with. Repeatable.",
)  # fmt: skip
@click.option("--name", "display_name", default="", help="A name for people.")
@click.option(
    "--network",
    type=click.Choice(["none", "gateway", "allowlist", "open"]),
    help="What it can reach; by default as the template says, else nothing. `gateway`: the models,"
    " without a key.",
)
@click.option(
    "--allow", multiple=True, metavar="HOST", help="Let it reach HOST, *.HOST or HOST:PORT."
)
@click.option("--ttl", metavar="DURATION", help="Delete it with all it holds after, say, 8h.")
@click.option("--idle-stop", metavar="DURATION", help="Stop it when nothing happens for, say, 30m.")
@json_option
def create(
    snapshot: str | None,
    template: str | None,
    display_name: str,
    network: str | None,
    allow: tuple[str, ...],
    values: tuple[str, ...],
    *,
    ttl: str | None,
    idle_stop: str | None,
    as_json: bool,
) -> None:
    """Fork a workspace; nothing runs in it until the first command."""
    if (snapshot is None) == (template is None):
        raise click.UsageError("give exactly one of --snapshot and --template")
    ttl_seconds = live.duration(ttl, "--ttl")
    idle_stop_seconds = live.duration(idle_stop, "--idle-stop")

    given = read_vars(values)

    async def conversation(client: Client) -> WorkspaceInfo:
        made = await client.workspaces.create(
            snapshot=snapshot,
            template=template,
            display_name=display_name,
            network=network,
            allow=allow,
            values=given,
            ttl_seconds=ttl_seconds,
            idle_stop_seconds=idle_stop_seconds,
        )
        return made.info

    info = talk(conversation)
    if as_json:
        write_json(info)
    else:
        say(info.id)
    _say_lifetime(info)


def _say_lifetime(info: WorkspaceInfo) -> None:
    if info.expires_at is not None:
        progress(
            f"{info.id} is deleted with all it holds at {info.expires_at}, or when Forkyard is"
            f" next used after that; `forkyard workspace keep {info.id}` keeps it."
        )
    if info.idle_stop_seconds is not None:
        after = format_duration(info.idle_stop_seconds)
        progress(f"{info.id} is stopped when nothing has happened in it for {after}; files stay.")


@workspace.command(
    epilog="\b\nExamples:\n  forkyard workspace keep mine                 # for good\n"
    "  forkyard workspace keep mine --ttl 48h --idle-stop 1h"
)
@click.argument("workspace_id", metavar="W", shell_complete=complete)
@click.option("--ttl", metavar="DURATION", help="Delete it with all it holds so long from now.")
@click.option("--idle-stop", metavar="DURATION", help="Stop it when nothing happens for so long.")
@json_option
def keep(workspace_id: str, ttl: str | None, idle_stop: str | None, *, as_json: bool) -> None:
    """Set anew when a workspace ends by itself. Without options: never."""
    ttl_seconds = live.duration(ttl, "--ttl")
    idle_stop_seconds = live.duration(idle_stop, "--idle-stop")

    async def conversation(client: Client) -> WorkspaceInfo:
        found = await client.workspaces.get(workspace_id)
        await found.keep(ttl_seconds=ttl_seconds, idle_stop_seconds=idle_stop_seconds)
        return found.info

    info = talk(conversation)
    if as_json:
        write_json(info)
    else:
        say(f"Workspace {info.id} is kept.")
    _say_lifetime(info)


@workspace.command(epilog="\b\nExample:\n  forkyard workspace start ws_77aa")
@click.argument("workspace_id", metavar="W", shell_complete=complete)
@json_option
def start(workspace_id: str, *, as_json: bool) -> None:
    """Run a workspace's sandbox; a command starts it by itself."""
    _change(workspace_id, "start", as_json=as_json)


@workspace.command(epilog="\b\nExample:\n  forkyard workspace stop ws_77aa")
@click.argument("workspace_id", metavar="W", shell_complete=complete)
@json_option
def stop(workspace_id: str, *, as_json: bool) -> None:
    """End a workspace's sandbox and its processes. Its files stay."""
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
@click.argument("workspace_id", metavar="W", shell_complete=complete)
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
    found = talk(lambda client: client.workspaces.list(everything=everything, usage=True))
    if as_json:
        write_json(found)
        return
    table(
        ("WORKSPACE", "NAME", "STATE", "IDLE", "DISK", "SNAPSHOT", "SERVES", "AGE", "DELETED AT"),
        [
            (
                short(one.id),
                one.display_name or "-",
                one.state,
                seconds(one.idle_seconds),
                size_of(one.disk_bytes),
                short(one.snapshot),
                short(one.owner) if one.owner else "-",
                seconds(age(one.created_at)),
                one.expires_at or "-",
            )
            for one in found
        ],
    )
    if not found:
        progress("No workspaces; `forkyard workspace create --snapshot NAME` makes one.")


@workspace.command(epilog="\b\nExample:\n  forkyard workspace show ws_77aa")
@click.argument("workspace_id", metavar="W", shell_complete=complete)
@json_option
def show(workspace_id: str, *, as_json: bool) -> None:
    """Show one workspace."""

    async def conversation(client: Client) -> WorkspaceInfo:
        return await (await client.workspaces.get(workspace_id)).look()

    info = talk(conversation)
    if as_json:
        write_json(info)
        return
    last = (info.ports_first or 0) + info.ports_count - 1
    stop = info.idle_stop_seconds
    rows = [
        ("id", info.id),
        ("name", info.display_name or "-"),
        ("state", info.state),
        ("snapshot", info.snapshot),
        ("network", info.network),
        *(("allowed", host) for host in info.allow),
        ("created", info.created_at),
        ("disk", size_of(info.disk_bytes)),
        ("idle for", seconds(info.idle_seconds)),
        ("own ports", "-" if info.ports_first is None else f"{info.ports_first} to {last}"),
        ("stopped", "by you" if stop is None else f"when idle for {format_duration(stop)}"),
        ("deleted at", info.expires_at or "never"),
        ("trouble", info.trouble or "-"),
        *((f"limit {name}", held) for name, held in info.held.items()),
    ]
    for key, value in rows:
        say(f"{key:<21} {clean(value)}")


@workspace.command(
    epilog="\b\nExamples:\n  forkyard workspace logs mine             # of the newest command\n"
    "  forkyard workspace logs mine --all -f    # of all, and what comes until they are over\n"
    "  forkyard workspace logs mine --exec exec_12ab"
)
@click.argument("workspace_id", metavar="W", shell_complete=complete)
@click.option("-f", "--follow", is_flag=True, help="Go on until the command is over.")
@click.option("--all", "everything", is_flag=True, help="Of every command, each under its name.")
@click.option("--exec", "exec_id", metavar="EXEC", help="Of this command.")
@click.option("--task", metavar="NAME", help="Of this task of the template, in the newest start.")
@json_option
def logs(
    workspace_id: str,
    exec_id: str | None,
    task: str | None,
    *,
    follow: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Show what commands in a workspace printed. With --json: list the commands."""

    async def conversation(client: Client) -> None:
        from forkyard.client.copy import COMMAND  # noqa: PLC0415 - heavy: not for help

        found = await client.workspaces.get(workspace_id)
        execs = await found.execs()
        if as_json:
            write_json(execs)
            return
        if exec_id is not None:
            execs = [one for one in execs if one.id.startswith(exec_id)]
        elif not everything:
            execs = [one for one in execs if one.task.partition(" ")[2] == (task or "")]
            execs = [one for one in execs if one.argv[:1] != [COMMAND]][-1:]
        if not execs:
            what = "No such command" if exec_id else "No command" if not task else f"No task {task}"
            progress(f"{what} has been run in it yet.")
        for one in execs:
            if everything:
                progress(f"== {one.id} {one.created_at} {_how(one)}: {shlex.join(one.argv)}")
            for stream, target in (("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)):
                await stream_out(found.output(one.id, stream=stream, follow=follow), target)

    talk(conversation)


def _how(one: ExecInfo) -> str:
    if one.stop_reason is None:
        return "running"
    why = f", {one.detail}" if one.detail else ""
    if one.stop_reason == "exited":
        return f"exited {one.exit_code} after {seconds(one.elapsed_seconds)}{why}"
    return f"{one.stop_reason}{why}"
