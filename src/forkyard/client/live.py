"""An exec that one is attached to: its input and output over one connection, as they come.

The request that runs the command and the connection that is attached to it are two: whichever
server answers at its end, the command's result is the same. Where the server goes away meanwhile,
a command without input goes on being waited for, and what was missed is read from its files; one
with input cannot be, since nobody knows how much of it arrived. It goes on by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager

from forkyard.client.connection import Connection
from forkyard.client.http import DuplexAnswer, LostError
from forkyard.client.results import ExecOutcome
from forkyard.errors import ConflictError, StoreError
from forkyard.wire.frames import (
    END,
    ERROR_OUTPUT,
    HANG_UP,
    INPUT,
    INPUT_END,
    OUTPUT,
    TAKEN_OVER,
    frame,
    frames,
    size_frame,
)
from forkyard.wire.spaces import ExecInfo, ExecRequest

PIECE_BYTES = 256 * 1024
_STREAMS = {OUTPUT: "stdout", ERROR_OUTPUT: "stderr"}


class LiveExec:
    """One exec, attached to. Not thread-safe; input and output may be used by two tasks."""

    def __init__(
        self,
        connection: Connection,
        workspace: str,
        request: ExecRequest,
        answer: DuplexAnswer,
        running: asyncio.Task[ExecInfo],
    ) -> None:
        """Keep both halves: the attached connection and the request that waits for the end."""
        self.id = request.id
        self._workspace = workspace
        self._connection = connection
        self._request = request
        self._answer = answer
        self._running = running

    async def write(self, content: bytes) -> None:
        """Write to its input; waits while the command takes no more."""
        for start in range(0, len(content), PIECE_BYTES):
            await self._say(INPUT, content[start : start + PIECE_BYTES])

    async def end_input(self) -> None:
        """End its input: the command reads the end of the file."""
        await self._say(INPUT_END)

    async def feed(self, source: bytes | AsyncIterable[bytes]) -> None:
        """Write all of a source and end the input; a command that reads no more is fine."""
        if isinstance(source, bytes):
            await self.write(source)
        else:
            async for content in source:
                await self.write(content)
        await self.end_input()

    async def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal the size of ours; it gets SIGWINCH."""
        await self._send(size_frame(rows, columns))

    async def hang_up(self) -> None:
        """Take its terminal away, as closing a window does."""
        await self._say(HANG_UP)

    async def kill(self) -> ExecInfo:
        """End it and what it left behind, and wait for that."""
        return await self._connection.ask("POST", f"/v1/execs/{self.id}/kill", ExecInfo)

    async def _say(self, kind: bytes, content: bytes = b"") -> None:
        await self._send(frame(kind, content))

    async def _send(self, content: bytes) -> None:
        # Whether it is over, or the server is gone, shows in the output.
        with contextlib.suppress(LostError):
            await self._answer.write(content)

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Give what it prints, as `stdout` or `stderr` and bytes, until it is over.

        Raises:
            ConflictError: Somebody else attached to it.
            StoreError: The server went away under an exec with input; the exec goes on.
        """
        seen = {"stdout": 0, "stderr": 0}
        try:
            async for kind, content in frames(self._answer.chunks):
                if kind in _STREAMS:
                    seen[_STREAMS[kind]] += len(content)
                    yield _STREAMS[kind], content
                elif kind == TAKEN_OVER:
                    raise ConflictError(
                        f"cannot go on with {self.id}: somebody else attached to it",
                        hint=self._how_to_attach(),
                    )
                elif kind == END:
                    break
        except LostError as error:
            if self._request.has_input or self._request.terminal is not None:
                raise StoreError(
                    f"cannot go on with {self.id}: the server went away ({error}); what runs in"
                    " the workspace goes on",
                    hint=self._how_to_attach(),
                ) from error
        info = await self.result()
        for stream, size in (("stdout", info.stdout_bytes), ("stderr", info.stderr_bytes)):
            if size > seen[stream]:
                query = {"stream": stream, "offset": str(seen[stream])}
                async for chunk in self._connection.stream(
                    f"/v1/execs/{self.id}/output", query=query
                ):
                    yield stream, chunk

    def _how_to_attach(self) -> str:
        return f"Attach again with `forkyard workspace shell {self._workspace} --attach {self.id}`."

    async def result(self) -> ExecInfo:
        """Wait for its end, whichever server tells it."""
        return await asyncio.shield(self._running)

    async def outcome(self, stdout: bytes = b"", stderr: bytes = b"") -> ExecOutcome:
        """Wait for its end and give it, with the output that the caller took."""
        return outcome_of(await self.result(), stdout, stderr)


@asynccontextmanager
async def opened(
    connection: Connection, workspace: str, request: ExecRequest
) -> AsyncIterator[LiveExec]:
    """Run a command, or find it running, and be attached to it for a block.

    Raises:
        ForkyardError: Whatever the server raised about it.
        StoreError: The server cannot be reached.

    Cancellation:
        The command goes on.
    """
    running = asyncio.ensure_future(
        connection.ask(
            "POST", f"/v1/workspaces/{workspace}/execs", ExecInfo, body=request, may_repeat=True
        )
    )
    way = connection.duplex(f"/v1/execs/{request.id}/attach")
    attaching = asyncio.ensure_future(way.__aenter__())
    try:
        await asyncio.wait({running, attaching}, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and running.exception() is not None:
            await running  # it never ran
        try:
            answer = await attaching
        except LostError as error:
            raise StoreError(
                f"cannot attach to {request.id}: the server went away ({error})",
                hint=f"See what became of it with `forkyard workspace logs {workspace}`.",
            ) from error
        yield LiveExec(connection, workspace, request, answer, running)
    finally:
        for task in (running, attaching):
            task.cancel()
        await asyncio.gather(running, attaching, return_exceptions=True)
        await way.__aexit__(None, None, None)


def outcome_of(info: ExecInfo, stdout: bytes, stderr: bytes) -> ExecOutcome:
    """Give an exec's end with what it printed."""
    return ExecOutcome(
        id=info.id,
        stop_reason=info.stop_reason or "interrupted",
        exit_code=info.exit_code,
        elapsed_seconds=info.elapsed_seconds or 0.0,
        stdout=stdout,
        stderr=stderr,
        truncated=info.truncated,
        detail=info.detail,
    )
