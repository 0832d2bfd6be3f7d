"""Commands about snapshots."""

from __future__ import annotations

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, short, size_of, table


@click.group()
def snapshot() -> None:
    """Immutable states of a workspace's files, to fork from."""


@snapshot.command(epilog="\b\nExample:\n  forkyard snapshot create issue-1842 --workspace ws_77aa")
@click.argument("name")
@click.option("--workspace", required=True, metavar="W")
@json_option
def create(name: str, workspace: str, *, as_json: bool) -> None:
    """Take a snapshot of a workspace. One that runs is frozen while it is copied."""
    info = talk(lambda client: client.snapshots.create(name, workspace=workspace))
    if as_json:
        write_json(info)
        return
    say(f"Snapshot {clean(info.name)} is {info.state}: {info.id}")
    if info.frozen_seconds is not None:
        progress(f"The workspace was {_frozen(info.frozen_seconds)}.")


@snapshot.command("list", epilog="\b\nExample:\n  forkyard snapshot list")
@click.option("--all", "everything", is_flag=True, help="Also those derived for runs.")
@json_option
def list_(*, everything: bool, as_json: bool) -> None:
    """List snapshots."""
    found = talk(lambda client: client.snapshots.list(everything=everything))
    if as_json:
        write_json(found)
        return
    names = {one.id: one.name for one in found}
    table(
        (
            "SNAPSHOT",
            "NAME",
            "STATE",
            "COMMIT",
            "OWN",
            "TOTAL",
            "DEPTH",
            "PARENT",
            "WORKSPACE",
            "CREATED",
        ),
        [
            (
                short(one.id),
                one.name,
                one.state,
                "-" if one.base is None or one.base.commit is None else one.base.commit[:12],
                size_of(one.bytes_unique),
                size_of(one.bytes_total),
                str(one.depth),
                "-" if one.parent is None else names.get(one.parent, short(one.parent)),
                "-" if one.workspace is None else short(one.workspace),
                one.created_at,
            )
            for one in found
        ],
    )
    if not found:
        progress("No snapshots yet; `forkyard template build NAME` makes one.")


def _frozen(seconds: float) -> str:
    return f"frozen for {seconds:.2f} s; the files are consistent at file-system level"


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
        ("parent", info.parent or "-"),
        ("workspace", info.workspace or "-"),
        ("depth", str(info.depth)),
        ("size", f"{size_of(info.bytes_unique)} of its own, {size_of(info.bytes_total)} in all"),
        ("layers", str(len(info.layers))),
        (
            "taken of",
            "a stopped workspace"
            if info.frozen_seconds is None
            else f"a running workspace, {_frozen(info.frozen_seconds)}",
        ),
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
