"""What a workspace offers to those who live in it: being attached, ports, how long it is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from forkyard.client.connection import Connection
from forkyard.client.forward import forwarded
from forkyard.client.live import LiveExec, opened
from forkyard.client.resources import part
from forkyard.errors import ForkyardError
from forkyard.model.ids import new_exec_id
from forkyard.wire.errors import request_of
from forkyard.wire.schema import ExecInfo, ExecRequest, LifetimeRequest, WorkspaceInfo


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
