"""Commands about templates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, short, stream_out, table
from forkyard.cli.variables import read_vars

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.wire.schema import TemplateInfo


@click.group()
def template() -> None:
    """Recipes whose build yields a snapshot."""


@template.command(
    "apply", epilog="\b\nExample:\n  forkyard template apply agents.yaml --name payments"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Default: the file's name without its suffix.")
@json_option
def apply_(file: Path, name: str | None, *, as_json: bool) -> None:
    """Keep a template file's recipe under a name. Every problem of it is told at once."""
    info = talk(lambda client: client.templates.apply(file, name=name))
    if as_json:
        write_json(info)
    else:
        say(f"Template {clean(info.name)} is {info.state}.")
        progress(f"Next: forkyard template build {info.name}")


@template.command(epilog="\b\nExample:\n  forkyard template build payments")
@click.argument("name")
@click.option(
    "--var", "values", multiple=True, metavar="NAME=VALUE",
    help="One of its vars, in place of the default. Repeatable.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Return at once; the build goes on.")
@json_option
def build(name: str, values: tuple[str, ...], *, detach: bool, as_json: bool) -> None:
    """Build a template's snapshot. Workspaces and runs start from it."""
    given = read_vars(values)

    async def conversation(client: Client) -> TemplateInfo:
        begun = await client.templates.begin_build(name, values=given)
        if detach:
            return begun
        await stream_out(client.templates.log(name, follow=True), sys.stderr.buffer)
        return await client.templates.wait_until_built(name)

    try:
        info = talk(conversation)
    except KeyboardInterrupt:
        progress(f"Left; a build that was begun goes on: `forkyard template show {name} --log`.")
        raise
    if as_json:
        write_json(info)
    elif detach:
        say(f"Template {clean(info.name)} is {info.state}.")
    else:
        say(f"Template {clean(info.name)} is built: snapshot {info.last_build}")


@template.command("list", epilog="\b\nExample:\n  forkyard template list")
@json_option
def list_(*, as_json: bool) -> None:
    """List templates."""
    found = talk(lambda client: client.templates.list())
    if as_json:
        write_json(found)
        return
    table(
        ("NAME", "STATE", "SNAPSHOT", "CREATED"),
        [
            (one.name, one.state, short(one.snapshot) if one.snapshot else "-", one.created_at)
            for one in found
        ],
    )
    if not found:
        progress("No templates yet; `forkyard template apply FILE` makes one.")


@template.command(epilog="\b\nExample:\n  forkyard template show payments --log")
@click.argument("name")
@click.option("--log", is_flag=True, help="The log of its newest build.")
@json_option
def show(name: str, *, log: bool, as_json: bool) -> None:
    """Show a template, or the log of its newest build."""
    if log:

        async def conversation(client: Client) -> None:
            await stream_out(client.templates.log(name))

        talk(conversation)
        return
    info = talk(lambda client: client.templates.get(name))
    if as_json:
        write_json(info)
        return
    for key, value in (
        ("name", info.name),
        ("id", info.id),
        ("state", info.state),
        ("created", info.created_at),
        ("image", info.image or "-"),
        ("snapshot", info.snapshot or "-"),
        ("vars", ", ".join(f"{key}={value}" for key, value in info.parameters.items()) or "-"),
        ("secrets", ", ".join(info.secrets) or "-"),
        ("trouble", info.trouble or "-"),
    ):
        say(f"{key:<9} {clean(value)}")
    for note in info.notes:
        say(f"note      {clean(note)}")
    for one in info.tasks:
        where = " (background)" if one.background else ""
        told = f"{one.outcome} after {one.elapsed_seconds:.1f} s"
        say(f"task      {one.number} {clean(one.name)}{where}: {clean(told)}")
    if info.failure is not None and info.failure.tail:
        say(clean(info.failure.tail))


@template.command(epilog="\b\nExample:\n  forkyard template delete payments")
@click.argument("name")
@json_option
def delete(name: str, *, as_json: bool) -> None:
    """Remove a template; snapshots that were built from it stay."""
    talk(lambda client: client.templates.delete(name))
    if as_json:
        write_json({"deleted": name})
    else:
        say(f"Template {clean(name)} is deleted.")


@template.command(
    "import",
    epilog="\b\nExamples:\n  forkyard template import > template.yaml\n"
    "  forkyard template import ../service --name service",
)
@click.argument("place", type=click.Path(path_type=Path), default=".")
@click.option("--name", help="Keep the template under this name, instead of writing it out.")
@json_option
def import_(place: Path, name: str | None, *, as_json: bool) -> None:
    """Turn a devcontainer.json into a template. Says of each key what became of it.

    PLACE is the file, or a repository that holds one. Nothing of it is executed here:
    initializeCommand never runs on this machine.
    """
    from forkyard.client.imports import import_template  # noqa: PLC0415 - heavy: not for help

    made = import_template(place)
    for one in made.report:
        progress(f"{clean(one.key)}: {one.fate}: {clean(one.note)}")
    if name is not None:
        kept = talk(
            lambda client: client.templates.apply_text(made.text, name=name, file=str(made.file))
        )
        progress(f"Template {clean(kept.name)} is {kept.state}.")
        progress(f"Next: forkyard template build {kept.name}")
    if as_json:
        write_json(
            {
                "file": str(made.file),
                "name": name or made.name,
                "template": made.text,
                "keys": [
                    {"key": one.key, "fate": one.fate, "note": one.note} for one in made.report
                ],
            }
        )
    elif name is None:
        say(made.text.rstrip("\n"))
