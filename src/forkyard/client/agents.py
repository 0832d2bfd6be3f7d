"""Agents in the SDK: which can be run, and installing them."""

from __future__ import annotations

from pathlib import Path

from forkyard.client.connection import Connection
from forkyard.client.resources import absolute, part
from forkyard.config import registry_settings
from forkyard.wire.drivers import DriverInfo, DriverReport, InstallProgress, InstallRequest
from forkyard.wire.errors import request_of


class Agents:
    """All drivers of an installation."""

    def __init__(self, connection: Connection) -> None:
        """Keep the connection."""
        self._connection = connection

    async def list(self) -> list[DriverInfo]:
        """List the drivers that a task file may name."""
        return await self._connection.ask_list("/v1/drivers", DriverInfo)

    async def check(self, name: str) -> DriverReport:
        """Ask how an agent is installed; every file of it is compared with what was unpacked."""
        return await self._connection.ask("GET", f"/v1/drivers/{part(name)}", DriverReport)

    async def progress(self, driver: str) -> InstallProgress:
        """Say what is done to install an agent just now."""
        return await self._connection.ask(
            "GET", f"/v1/drivers/{part(driver)}/progress", InstallProgress
        )

    async def install(self, name: str, *, source: str | Path | None = None) -> DriverReport:
        """Install an agent as it is pinned; one that is there is left as it is.

        Args:
            name: Its driver's.
            source: Folder that holds its archives; None: npm and pip fetch them, as this
                process's environment has them set up.

        Raises:
            NotFoundError: No such driver, or the folder lacks an archive.
            WorkspaceError: An archive cannot be fetched, or is not the pinned one.
        """
        return await self._connection.ask(
            "POST",
            f"/v1/drivers/{part(name)}/install",
            DriverReport,
            body=request_of(
                InstallRequest,
                source=None if source is None else str(absolute(source)),
                variables={} if source is not None else registry_settings(),
            ),
            may_repeat=True,
        )
