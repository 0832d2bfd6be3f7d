"""Listeners on this machine's loopback whose connections are carried into a workspace.

Bytes go through the server's own socket, so it does not matter which network the workspace has:
nothing listens inside for it, and nothing but what connects here reaches in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from forkyard.client.connection import Connection
from forkyard.client.http import DuplexAnswer, LostError
from forkyard.errors import ConflictError, ForkyardError, StoreError

ADDRESS = "127.0.0.1"
PIECE_BYTES = 64 * 1024


@asynccontextmanager
async def forwarded(
    connection: Connection,
    workspace: str,
    ports: Sequence[int | tuple[int, int]],
    on_trouble: Callable[[ForkyardError], None],
) -> AsyncIterator[dict[int, int]]:
    """Listen here for a block, and carry what connects to the workspace's own loopback.

    Yields:
        Port inside -> port here.

    Raises:
        ConflictError: A port here is taken, or may not be had.

    Cancellation:
        Every connection is closed.
    """
    carrier = _Carrier(connection, workspace, on_trouble)
    found: dict[int, int] = {}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(carrier.close)
        for one in ports:
            here, inside = (one, one) if isinstance(one, int) else one
            try:
                server = await asyncio.start_server(carrier.to(inside), ADDRESS, here)
            except OSError as error:
                raise ConflictError(
                    f"cannot listen on {ADDRESS}:{here}: {(error.strerror or str(error)).lower()}",
                    hint=f"Choose another one, such as `0:{inside}` for any that is free.",
                ) from error
            stack.callback(server.close)
            found[inside] = server.sockets[0].getsockname()[1]
        yield found


_Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class _Carrier:
    """The connections under way."""

    def __init__(
        self, connection: Connection, workspace: str, on_trouble: Callable[[ForkyardError], None]
    ) -> None:
        self._connection, self._workspace = connection, workspace
        self._on_trouble = on_trouble
        self._under_way: set[asyncio.Task[None]] = set()

    def to(self, port: int) -> _Accept:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(port, reader, writer))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

        return accept

    async def close(self) -> None:
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = f"/v1/workspaces/{self._workspace}/connect"
        try:
            async with self._connection.duplex(path, {"port": str(port)}) as answer:
                await _both_ways(reader, writer, answer)
        except LostError as error:
            message = f"cannot go on with a connection to port {port}: the server went away"
            self._on_trouble(StoreError(f"{message} ({error})"))
        except ForkyardError as error:
            self._on_trouble(error)
        except OSError:
            pass  # whoever connected here is gone
        finally:
            writer.close()


async def _both_ways(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: DuplexAnswer
) -> None:
    sending = asyncio.ensure_future(_send(reader, answer))
    try:
        async for chunk in answer.chunks:
            writer.write(chunk)
            await writer.drain()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, answer: DuplexAnswer) -> None:
    with contextlib.suppress(OSError, LostError):
        while chunk := await reader.read(PIECE_BYTES):
            await answer.write(chunk)
        await answer.end()
