"""Commands about workspaces."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from forkyard.cli import live
from forkyard.cli.calls import json_option, talk
from forkyard.cli.completion import complete
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, short, stream_out, table
from forkyard.cli.variables import read_vars

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.wire.schema import WorkspaceInfo


@click.group()
def workspace() -> None:
    """Isolated, mutable copies of a snapshot."""


for one in (live.exec_, live.shell):
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
    type=click.Choice(["none", "gateway", "open"]),
    default="none",
    help="What it can reach; `gateway`: the models, without a key.",
)
@json_option
def create(
    snapshot: str | None,
    template: str | None,
    display_name: str,
    network: str,
    values: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Fork a workspace; nothing runs in it until the first command."""
    if (snapshot is None) == (template is None):
        raise click.UsageError("give exactly one of --snapshot and --template")

    given = read_vars(values)

    async def conversation(client: Client) -> WorkspaceInfo:
        made = await client.workspaces.create(
            snapshot=snapshot,
            template=template,
            display_name=display_name,
            network=network,
            values=given,
        )
        return made.info

    info = talk(conversation)
    if as_json:
        write_json(info)
    else:
        say(info.id)


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
@click.argument("workspace_id", metavar="W", shell_complete=complete)
@json_option
def show(workspace_id: str, *, as_json: bool) -> None:
    """Show one workspace."""

    async def conversation(client: Client) -> WorkspaceInfo:
        return (await client.workspaces.get(workspace_id)).info

    info = talk(conversation)
    if as_json:
        write_json(info)
        return
    rows = [
        ("id", info.id),
        ("name", info.display_name or "-"),
        ("state", info.state),
        ("snapshot", info.snapshot),
        ("network", info.network),
        ("created", info.created_at),
        ("trouble", info.trouble or "-"),
        *((f"limit {name}", held) for name, held in info.held.items()),
    ]
    for key, value in rows:
        say(f"{key:<21} {clean(value)}")


@workspace.command(epilog="\b\nExample:\n  forkyard workspace logs ws_77aa")
@click.argument("workspace_id", metavar="W", shell_complete=complete)
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
