"""What every command shares: the --json switch, and one conversation with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from forkyard.client.client import Client

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Add ``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Write the result as one line of JSON."
    )(function)


def talk(conversation: Callable[[Client], Awaitable[T]], *, start: bool = True) -> T:
    """Hold one conversation with the server, which is started where none runs."""
    from forkyard.client.client import Client  # noqa: PLC0415 - heavy: not for help

    async def whole() -> T:
        async with Client(start=start) as client:
            return await conversation(client)

    return asyncio.run(whole())
