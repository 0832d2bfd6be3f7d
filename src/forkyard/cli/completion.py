"""Completing the names of workspaces: asked of the server that runs, never starting one."""

from __future__ import annotations

import asyncio
import contextlib

import click
from click.shell_completion import CompletionItem

from forkyard.errors import ForkyardError

PATIENCE_SECONDS = 2.0


def complete(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Give ids and display names that begin so; nothing where they cannot be had quickly."""
    if parameter.name == "argv" and ctx.params.get("argv"):
        return []  # past the workspace: the command's own words
    from forkyard.client.client import Client  # noqa: PLC0415 - heavy: not for help

    async def names() -> list[CompletionItem]:
        client = Client(start=False)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                found = await client.workspaces.list()
        finally:
            await client.close()
        items = [CompletionItem(one.display_name, help=one.state) for one in found]
        items += [CompletionItem(one.id, help=one.display_name or one.state) for one in found]
        return [one for one in items if one.value and one.value.startswith(incomplete)]

    with contextlib.suppress(ForkyardError, OSError, TimeoutError):
        return asyncio.run(names())
    return []


def complete_copy(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Give workspaces with the colon that a path inside follows, and files here."""
    found = complete(ctx, parameter, incomplete)
    return [CompletionItem("", type="file"), *(CompletionItem(f"{one.value}:/") for one in found)]
