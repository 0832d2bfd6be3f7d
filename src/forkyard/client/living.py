"""What a workspace offers to those who live in it: being attached, ports, how long it is kept."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from forkyard.client.connection import Connection
from forkyard.client.copy import (
    COMMAND,
    MOST_BYTES,
    Copied,
    Incoming,
    IncomingTar,
    batches,
    cannot,
    outgoing,
    outgoing_tar,
    report_of,
)
from forkyard.client.forward import forwarded
from forkyard.client.live import LiveExec, opened
from forkyard.client.resources import part
from forkyard.client.results import ExecOutcome
from forkyard.errors import ForkyardError
from forkyard.model.ids import new_exec_id
from forkyard.wire.errors import request_of
from forkyard.wire.spaces import ExecInfo, ExecRequest, LifetimeRequest, WorkspaceInfo

MOST_REPORT_BYTES = 16 * 1024**2
"""Of what the end inside a workspace says of a copy: it may have no end."""


class Living:
    """A part of `Workspace`, which keeps the connection and what the server said last."""

    _connection: Connection
    info: WorkspaceInfo

    @property
    def id(self) -> str:
        """Give its id."""
        return self.info.id

    async def start(self) -> None:
        """Run its sandbox; one that runs already is fine."""
        self.info = await self._connection.ask(
            "POST", f"/v1/workspaces/{self.id}/start", WorkspaceInfo, may_repeat=True
        )

    @asynccontextmanager
    async def attach(
        self,
        command: str | Sequence[str] = "",
        *,
        exec_id: str | None = None,
        working_directory: str | None = None,
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        terminal: tuple[int, int] | None = None,
        has_input: bool = True,
        as_root: bool = False,
    ) -> AsyncIterator[LiveExec]:
        """Run a command and be attached to it: write its input, get its output as it comes.

        Leaving the block leaves the command running; `LiveExec.kill` ends it.

        Args:
            command: As for `exec`; empty: attach again to the one that `exec_id` names.
            exec_id: Of the command; by default a fresh one.
            working_directory: Absolute; by default the repository.
            variables: Added to the workspace's environment.
            timeout_seconds: After this, TERM, a grace, KILL to all it started.
            terminal: Rows and columns of a terminal of its own.
            has_input: Without, its standard input is empty.
            as_root: As root of the workspace; only where its image is its own.

        Raises:
            NotFoundError: The workspace, or the exec to attach to, is gone.
            WorkspaceError: The sandbox could not run it.
        """
        if not command:
            found = await self._connection.ask("GET", f"/v1/execs/{part(exec_id or '')}", ExecInfo)
            exec_id, command = found.id, ["attach"]
        size = None if terminal is None else {"rows": terminal[0], "columns": terminal[1]}
        request = request_of(
            ExecRequest,
            id=exec_id or new_exec_id(),
            command=command if isinstance(command, str) else None,
            argv=None if isinstance(command, str) else list(command),
            working_directory=working_directory,
            variables=dict(variables or {}),
            timeout_seconds=timeout_seconds,
            as_root=as_root,
            has_input=has_input,
            attended=True,
            terminal=size,
        )
        async with opened(self._connection, self.id, request) as one:
            yield one

    async def get(
        self, path: str, target: str | Path | IO[bytes], *, most_bytes: int = MOST_BYTES
    ) -> Copied:
        """Copy a file or folder out of it; the sandbox is started if it is not running.

        Args:
            path: Inside, absolute.
            target: A folder here, or the name to give it here; or a stream that gets it as tar.
            most_bytes: Of content; past that the copy ends with an error.

        Returns:
            What was copied, and what was left out: links that lead out of it, what is no file.

        Raises:
            ConflictError: There is no such folder here.
            NotFoundError: It is not there.
            WorkspaceError: It is larger than the limit, or the disk is full.

        Cancellation:
            Ended inside, too; files here are whole or not there.
        """
        name = posixpath.basename(path.rstrip("/"))
        name = "workspace" if name in ("", "..") else name  # never the folder above the target
        incoming = (
            Incoming(str(target), name, most_bytes)
            if isinstance(target, str | Path)
            else IncomingTar(target, name, most_bytes)
        )
        trouble = bytearray()
        try:
            async with opened(self._connection, self.id, self._copy("out", path)) as one:
                try:
                    async for stream, chunk in one.output():
                        if stream == "stdout":
                            await asyncio.to_thread(incoming.feed, chunk)
                        else:
                            trouble += chunk[: max(0, MOST_REPORT_BYTES - len(trouble))]
                except BaseException:
                    await asyncio.shield(one.kill())
                    raise
                outcome = await one.outcome(stderr=bytes(trouble))
        finally:
            copied = incoming.close()
        _check(outcome, "copy", f"{path} out of {self.id}")
        return copied

    async def put(self, source: str | Path | IO[bytes], path: str) -> Copied:
        """Copy a file or folder of this machine into it; the sandbox is started if need be.

        What is written belongs to the workspace's user.

        Args:
            source: A path here; or a stream with a tar archive, which goes into a folder.
            path: Inside, absolute: a folder, or the name to give it.

        Returns:
            What was copied, and what was left out: what is no file, folder or link.

        Raises:
            NotFoundError: It, or the folder to copy into, is not there.
            WorkspaceError: It does not fit.

        Cancellation:
            Ended inside, too; files there are whole or not there.
        """
        pieces = outgoing(str(source)) if isinstance(source, str | Path) else outgoing_tar(source)
        report, trouble = bytearray(), bytearray()
        async with opened(self._connection, self.id, self._copy("in", path)) as one:
            try:
                async with asyncio.TaskGroup() as group:
                    feeding = group.create_task(one.feed(batches(pieces)))
                    async for stream, chunk in one.output():
                        place = report if stream == "stdout" else trouble
                        place += chunk[: max(0, MOST_REPORT_BYTES - len(place))]
                    feeding.cancel()
            except BaseException as error:
                await asyncio.shield(one.kill())
                if isinstance(error, BaseExceptionGroup):
                    raise error.exceptions[0] from None
                raise
            outcome = await one.outcome(stderr=bytes(trouble))
        _check(outcome, "copy", f"into {path} of {self.id}")
        return report_of(bytes(report), str(source) if isinstance(source, str | Path) else path)

    @staticmethod
    def _copy(direction: str, path: str) -> ExecRequest:
        return request_of(
            ExecRequest,
            id=new_exec_id(),
            argv=[COMMAND, direction, path],
            working_directory="/",
            has_input=direction == "in",
            attended=True,
            copy_path=path,
            copy_direction=direction,
        )

    async def look(self) -> WorkspaceInfo:
        """Ask how it is now, with what it takes on disk and how long it has been idle."""
        self.info = await self._connection.ask(
            "GET", f"/v1/workspaces/{self.id}", WorkspaceInfo, query={"usage": "true"}
        )
        return self.info

    async def keep(
        self, *, idle_stop_seconds: float | None = None, ttl_seconds: float | None = None
    ) -> None:
        """Say anew when it is stopped or deleted by itself; without a time: never.

        Args:
            idle_stop_seconds: Stop it when nothing has happened in it for so long.
            ttl_seconds: Delete it with all it holds that long from now.
        """
        self.info = await self._connection.ask(
            "PUT",
            f"/v1/workspaces/{self.id}/lifetime",
            WorkspaceInfo,
            body=request_of(
                LifetimeRequest, idle_stop_seconds=idle_stop_seconds, ttl_seconds=ttl_seconds
            ),
            may_repeat=True,
        )

    @asynccontextmanager
    async def forward(
        self,
        *ports: int | tuple[int, int],
        on_trouble: Callable[[ForkyardError], None] = lambda error: None,  # noqa: ARG005 - told to nobody
    ) -> AsyncIterator[dict[int, int]]:
        """Forward ports of this machine's loopback into it for a block; it is started first.

        Args:
            ports: Each a port inside, also here, or (here, inside); 0 here: any that is free. By
                default its own range of ports.
            on_trouble: Told why a connection could not be made inside; whoever connected here is
                hung up on.

        Yields:
            Port inside -> port here.

        Raises:
            ConflictError: Somebody else has a port here.
        """
        await self.start()
        first, count = self.info.ports_first or 0, self.info.ports_count
        wanted = ports or tuple(range(first, first + count))
        async with forwarded(self._connection, self.id, wanted, on_trouble) as found:
            yield found


def _check(outcome: ExecOutcome, verb: str, what: str) -> None:
    if outcome.succeeded:
        return
    reason = outcome.stderr.decode("utf-8", "replace").strip() or outcome.detail
    raise cannot(verb, what, reason or str(outcome.stop_reason))
