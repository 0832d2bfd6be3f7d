"""The async client: one object per installation, with one attribute per kind of thing."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from forkyard.client.agents import Agents
from forkyard.client.candidates import Candidates
from forkyard.client.connection import Connection
from forkyard.client.events import Events
from forkyard.client.resources import Runs, Snapshots, Templates, part
from forkyard.client.secrets import Secrets
from forkyard.client.session import Session
from forkyard.client.starter import Starter
from forkyard.client.workspaces import Workspaces
from forkyard.config import Layout, state_directory
from forkyard.wire.bodies import Nothing
from forkyard.wire.connections import ConnectionsInfo
from forkyard.wire.results import UsageReport
from forkyard.wire.schema import (
    DoctorReport,
    GarbageReport,
    GarbageRequest,
    StopRequest,
    VersionInfo,
)


class Client:
    """Everything an installation can do. Use it as an async context manager.

    Example:
        >>> async with forkyard.connect() as fy:
        ...     async with fy.workspaces.run(snapshot="issue-1842") as workspace:
        ...         outcome = await workspace.exec("pytest -q")
    """

    def __init__(self, home: str | Path | None = None, *, start: bool = True) -> None:
        """Keep where the installation lies; `connect` is the usual way to one.

        Args:
            home: State directory; by default FORKYARD_HOME or the user's own.
            start: Whether to start a server where none runs.
        """
        self.layout = Layout(state_directory() if home is None else Path(home).absolute())
        self._starter = Starter(self.layout)
        self._start = start
        self._connection = Connection(self.layout.api_socket, self._revive)
        self._session = Session(self._connection, self._revive)
        self.events = Events(self._connection, self._revive)
        self.templates = Templates(self._connection)
        self.snapshots = Snapshots(self._connection)
        self.workspaces = Workspaces(self._connection, self._session)
        self.runs = Runs(self._connection, self.events)
        self.candidates = Candidates(self._connection)
        self.secrets = Secrets(self._connection)
        self.agents = Agents(self._connection)

    async def _revive(self) -> None:
        if self._start:
            await self._starter.ensure()

    async def __aenter__(self) -> Self:
        """Make sure that a server of our version answers."""
        await self._revive()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection; the server goes on."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; the server goes on, and removes what is ephemeral and left."""
        await self._session.end()
        self._connection.close()

    async def version(self) -> VersionInfo:
        """Ask which server answers."""
        return await self._connection.ask("GET", "/v1/version", VersionInfo)

    async def doctor(self) -> DoctorReport:
        """Ask what isolation is in force on this machine."""
        return await self._connection.ask("GET", "/v1/doctor", DoctorReport)

    async def connections(self, identity: str) -> ConnectionsInfo:
        """Ask what an attempt, or a workspace, with an allowlist connected to.

        Args:
            identity: An id of an attempt or a workspace, or an abbreviation of one.
        """
        path = f"/v1/connections/{part(identity)}"
        return await self._connection.ask("GET", path, ConnectionsInfo)

    async def usage(self, *, by: str = "run", run: str | None = None) -> UsageReport:
        """Ask what was spent.

        Args:
            by: `run`, `attempt`, `agent`, `model` or `day`.
            run: Only of this run: an id, abbreviation, name, or `last`.
        """
        query = {"by": by} if run is None else {"by": by, "run": run}
        return await self._connection.ask("GET", "/v1/usage", UsageReport, query=query)

    async def collect_garbage(
        self, *, dry_run: bool = False, older_than_seconds: float | None = None
    ) -> GarbageReport:
        """Remove what nothing needs any more, or say what that would be.

        Args:
            dry_run: Say it only.
            older_than_seconds: Since a run ended, for the snapshot that was made for it.
        """
        return await self._connection.ask(
            "POST",
            "/v1/gc",
            GarbageReport,
            body=GarbageRequest(dry_run=dry_run, older_than_seconds=older_than_seconds),
        )

    async def find_server(self) -> int | None:
        """Give the process id of the running server, starting none."""
        found = await self._starter.find()
        return None if found is None else found.pid

    async def stop_server(self, *, only_if_idle: bool = False) -> None:
        """Ask the server to exit; sandboxes stay and are re-attached at the next start."""
        await self._connection.ask(
            "POST", "/v1/stop", Nothing, body=StopRequest(only_if_idle=only_if_idle)
        )


def connect(home: str | Path | None = None) -> Client:
    """Give a client for ``async with``; a server is started where none runs."""
    return Client(home)
