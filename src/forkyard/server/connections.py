"""The route that tells what workspaces with an allowlist connected to."""

from __future__ import annotations

from forkyard.errors import NotFoundError
from forkyard.model.connection import Connections
from forkyard.model.workspace import Workspace, WorkspaceState
from forkyard.server.finding import find_workspace
from forkyard.server.runs import find_attempt
from forkyard.server.table import Call
from forkyard.wire.connections import ConnectionCountInfo, ConnectionInfo, ConnectionsInfo


async def show_connections(call: Call) -> ConnectionsInfo:
    """Tell the connections of an attempt or a workspace, whichever the id is of."""
    services, text = call.services, call.parameters["id"]
    try:
        attempt = find_attempt(services, text)
    except NotFoundError:
        workspace = find_workspace(services, text)
        return _told(workspace, await services.workspaces.connections(workspace.id))
    row = None
    if attempt.workspace is not None:
        row = services.journal.state.workspaces.get(attempt.workspace)
    found = attempt.connections
    if found is None and row is not None and row.state is not WorkspaceState.DELETED:
        found = await services.workspaces.connections(row.id)
    return _told(row, found)


def _told(row: Workspace | None, found: Connections | None) -> ConnectionsInfo:
    found = found or Connections()
    return ConnectionsInfo(
        workspace=None if row is None else row.id,
        network="none" if row is None else row.network,
        allow=[] if row is None else list(row.allow),
        total=found.total,
        listed=[ConnectionInfo.model_validate(one) for one in found.listed],
        counted=[ConnectionCountInfo.model_validate(one) for one in found.counted],
    )
