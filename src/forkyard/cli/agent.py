"""Commands about agents."""

from __future__ import annotations

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import table


@click.group()
def agent() -> None:
    """Which agents can be run."""


@agent.command("list", epilog="\b\nExample:\n  forkyard agent list")
@json_option
def list_(*, as_json: bool) -> None:
    """List the drivers that a task file may name."""
    found = talk(lambda client: client.drivers())
    if as_json:
        write_json(found)
    else:
        table(("DRIVER", "WHAT IT RUNS"), [(one.name, one.summary) for one in found])
