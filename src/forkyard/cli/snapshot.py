"""Commands about snapshots."""

from __future__ import annotations

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, short, table


@click.group()
def snapshot() -> None:
    """Immutable states of a workspace's files, to fork from."""


@snapshot.command(epilog="\b\nExample:\n  forkyard snapshot create issue-1842 --workspace ws_77aa")
@click.argument("name")
@click.option("--workspace", required=True, metavar="W")
@json_option
def create(name: str, workspace: str, *, as_json: bool) -> None:
    """Take a snapshot of a stopped workspace."""
    info = talk(lambda client: client.snapshots.create(name, workspace=workspace))
    if as_json:
        write_json(info)
    else:
        say(f"Snapshot {clean(info.name)} is {info.state}: {info.id}")


@snapshot.command("list", epilog="\b\nExample:\n  forkyard snapshot list")
@click.option("--all", "everything", is_flag=True, help="Also those derived for runs.")
@json_option
def list_(*, everything: bool, as_json: bool) -> None:
    """List snapshots."""
    found = talk(lambda client: client.snapshots.list(everything=everything))
    if as_json:
        write_json(found)
        return
    table(
        ("SNAPSHOT", "NAME", "STATE", "COMMIT", "CREATED"),
        [
            (
                short(one.id),
                one.name,
                one.state,
                "-" if one.base is None or one.base.commit is None else one.base.commit[:12],
                one.created_at,
            )
            for one in found
        ],
    )
    if not found:
        progress("No snapshots yet; `forkyard template build NAME` makes one.")


@snapshot.command(epilog="\b\nExample:\n  forkyard snapshot show issue-1842")
@click.argument("name")
@json_option
def show(name: str, *, as_json: bool) -> None:
    """Show a snapshot and its recorded base."""
    info = talk(lambda client: client.snapshots.get(name))
    if as_json:
        write_json(info)
        return
    rows = [
        ("id", info.id),
        ("name", info.name or "-"),
        ("state", info.state),
        ("created", info.created_at),
        ("layers", str(len(info.layers))),
        ("trouble", info.trouble or "-"),
    ]
    if info.base is not None:
        rows += [
            ("repository", info.base.repository),
            ("commit", info.base.commit or "unknown"),
            ("tree", info.base.tree),
            ("uncommitted", "yes" if info.base.uncommitted else "no"),
        ]
        rows += [("note", note) for note in info.base.notes]
    for key, value in rows:
        say(f"{key:<12} {clean(value)}")


@snapshot.command(epilog="\b\nExample:\n  forkyard snapshot delete issue-1842")
@click.argument("name")
@json_option
def delete(name: str, *, as_json: bool) -> None:
    """Remove a snapshot that nothing uses."""
    talk(lambda client: client.snapshots.delete(name))
    if as_json:
        write_json({"deleted": name})
    else:
        say(f"Snapshot {clean(name)} is deleted.")
