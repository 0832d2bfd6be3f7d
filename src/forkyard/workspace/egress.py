"""What workspaces ask of the allowlist's proxy, and what programs inside are told of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from forkyard.errors import WorkspaceError
from forkyard.model.connection import Connections
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import NetworkPolicy, Workspace, WorkspaceState
from forkyard.shim.listeners import EGRESS, EGRESS_PLACE

_NEVER = ("localhost", "127.0.0.1", "::1")


class Egress(Protocol):
    """The proxy of one state directory (gateway/egress/supervisor.py)."""

    async def ready(self) -> None:
        """Return when a proxy lives; it is kept alive while a workspace depends on it."""
        ...

    async def connections(self, workspace: WorkspaceId, *, is_over: bool) -> Connections:
        """Give what a workspace connected to; with `is_over`, once its last record is there."""
        ...

    async def forget(self, workspace: WorkspaceId) -> None:
        """Remove the records of a workspace that is deleted."""
        ...


class NoEgress:
    """Stands where there is no proxy: no workspace with an allowlist can start."""

    async def ready(self) -> None:
        """Refuse.

        Raises:
            WorkspaceError: Always.
        """
        raise WorkspaceError("cannot start with network `allowlist`: there is no proxy here")

    async def connections(self, workspace: WorkspaceId, *, is_over: bool) -> Connections:
        """Give none."""
        del workspace, is_over
        return Connections()

    async def forget(self, workspace: WorkspaceId) -> None:
        """Do nothing."""


def proxy_variables(providers: Iterable[str]) -> dict[str, str]:
    """Give what tells programs inside of the proxy; the gateway's providers are not behind it."""
    address = f"http://{EGRESS}:{EGRESS_PLACE[1]}"
    directly = ",".join((*_NEVER, *providers))
    return {
        "HTTP_PROXY": address,
        "HTTPS_PROXY": address,
        "NO_PROXY": directly,
        "http_proxy": address,
        "https_proxy": address,
        "no_proxy": directly,
        # Node's own fetch reads the others only then.
        "NODE_USE_ENV_PROXY": "1",
    }


def has_allowlist_up(rows: Iterable[Workspace]) -> bool:
    """Say whether any workspace that is up, or about to be, depends on the proxy."""
    up = (WorkspaceState.STARTING, WorkspaceState.RUNNING)
    return any(row.network is NetworkPolicy.ALLOWLIST and row.state in up for row in rows)


def connection_lines(found: Connections) -> list[str]:
    """Give one line for each connection, and for those that are only counted, for people."""
    lines = [
        f"connection to {one.host}:{one.port} {one.outcome}: {one.sent_bytes} bytes out,"
        f" {one.received_bytes} in" + (f"; {one.reason}" if one.reason else "")
        for one in found.listed
    ]
    lines += [
        f"{one.count} more to {one.host}:{one.port} {one.outcome}: {one.sent_bytes} bytes out,"
        f" {one.received_bytes} in"
        for one in found.counted
    ]
    return lines
