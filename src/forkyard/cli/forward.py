"""Reaching a workspace's ports from this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.completion import complete
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import progress, say
from forkyard.errors import ConfigError, Problem

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.errors import ForkyardError

MOST_PORT = 65535


@click.command(
    epilog="\b\nExamples:\n  forkyard workspace forward mine            # its own range\n"
    "  forkyard workspace forward mine 8080:80 5173\n"
    "  forkyard workspace forward mine 0:80       # any port here that is free"
)
@click.argument("workspace_id", metavar="W", shell_complete=complete)
@click.argument("ports", nargs=-1, metavar="[[LOCAL:]REMOTE]...")
@json_option
def forward(workspace_id: str, ports: tuple[str, ...], *, as_json: bool) -> None:
    """Reach a workspace's ports on this machine's loopback. Ends with Ctrl-C."""
    wanted = [_pair(text) for text in ports]

    def trouble(error: ForkyardError) -> None:
        progress(f"Not connected: {error.message}")

    async def conversation(client: Client) -> None:
        found = await client.workspaces.get(workspace_id)
        async with found.forward(*wanted, on_trouble=trouble) as forwarded:
            if as_json:
                write_json(
                    [{"local": here, "remote": inside} for inside, here in forwarded.items()]
                )
            else:
                for inside, here in forwarded.items():
                    say(f"127.0.0.1:{here} -> {inside} in {found.id}")
            progress("Forwarding; Ctrl-C ends it.")
            await asyncio.Event().wait()

    talk(conversation)


def _pair(text: str) -> tuple[int, int]:
    here, colon, inside = text.rpartition(":")
    numbers = (here if colon else inside, inside)
    if not all(one.isascii() and one.isdigit() and int(one) <= MOST_PORT for one in numbers):
        raise _bad(text, f"{text!r} is not [LOCAL:]REMOTE with numbers up to {MOST_PORT}")
    if int(inside) == 0:
        raise _bad(text, f"{text!r} names no port inside")
    return int(numbers[0]), int(inside)


def _bad(text: str, message: str) -> ConfigError:
    return ConfigError(
        f"cannot read port {text!r}: {message}", problems=(Problem(key="REMOTE", message=message),)
    )
