"""Candidates in the SDK, and putting them where a person wants them."""

from __future__ import annotations

from pathlib import Path

from forkyard.client.connection import Connection
from forkyard.client.resources import absolute, part
from forkyard.wire.errors import request_of
from forkyard.wire.results import ApplicationInfo, ApplyRequest, CandidateInfo, UndoRequest


class Candidates:
    """What attempts yielded."""

    def __init__(self, connection: Connection) -> None:
        """Keep the connection."""
        self._connection = connection

    async def get(self, candidate: str) -> CandidateInfo:
        """Find a candidate by id or abbreviation."""
        return await self._connection.ask("GET", f"/v1/candidates/{part(candidate)}", CandidateInfo)

    async def patch(self, candidate: str) -> bytes:
        """Give its patch, byte for byte."""
        return await self._connection.send("GET", f"/v1/candidates/{part(candidate)}/patch")

    async def manifest(self, candidate: str) -> bytes:
        """Give its manifest (JSON)."""
        return await self._connection.send("GET", f"/v1/candidates/{part(candidate)}/manifest")

    async def apply(
        self, candidate: str, *, target: str | Path | None = None, workspace: str | None = None
    ) -> ApplicationInfo:
        """Put its bytes into a folder of this machine, or into a workspace.

        Raises:
            ConflictError: A touched path is not as it was in the recorded base; nothing changed.
        """
        where = None if target is None else str(absolute(target))
        return await self._connection.ask(
            "POST",
            f"/v1/candidates/{part(candidate)}/apply",
            ApplicationInfo,
            body=request_of(ApplyRequest, target=where, workspace=workspace),
        )

    async def applications(
        self, *, target: str | Path | None = None, workspace: str | None = None
    ) -> list[ApplicationInfo]:
        """List what was put where, oldest first: everywhere, or in one folder or workspace."""
        where = {"target": None if target is None else str(absolute(target))}
        query = {k: v for k, v in {**where, "workspace": workspace}.items() if v is not None}
        return await self._connection.ask_list(
            "/v1/applications", ApplicationInfo, query=query or None
        )

    async def application(self, application: str) -> ApplicationInfo:
        """Find an application by id or abbreviation."""
        return await self._connection.ask(
            "GET", f"/v1/applications/{part(application)}", ApplicationInfo
        )

    async def undo(self, application: str, *, dry_run: bool = False) -> ApplicationInfo:
        """Take an application back, every path or none; with `dry_run` only see whether it can be.

        Raises:
            ConflictError: It is undone already, or a path was edited since; nothing changed.
        """
        return await self._connection.ask(
            "POST",
            f"/v1/applications/{part(application)}/undo",
            ApplicationInfo,
            body=request_of(UndoRequest, dry_run=dry_run),
        )
