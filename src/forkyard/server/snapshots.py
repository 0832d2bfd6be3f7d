"""Routes of snapshots."""

from __future__ import annotations

from forkyard.model.workspace import Snapshot, SnapshotState
from forkyard.server.finding import find_snapshot, find_workspace
from forkyard.server.services import Services
from forkyard.server.table import Answer, Call
from forkyard.wire.bodies import Nothing
from forkyard.wire.schema import SnapshotInfo, SnapshotRequest


async def create_snapshot(call: Call) -> SnapshotInfo:
    """Take a snapshot of a workspace."""
    body = call.asked(SnapshotRequest)
    workspace = find_workspace(call.services, body.workspace)
    return SnapshotInfo.model_validate(
        await call.services.snapshots.create(body.name, workspace.id)
    )


async def list_snapshots(call: Call) -> Answer:
    """List snapshots, oldest first; derived ones with `all`."""
    everything = call.flag("all")
    rows = [
        one
        for one in call.services.journal.state.snapshots.values()
        if one.state is not SnapshotState.DELETED and (everything or one.sealed_of is None)
    ]
    return await _sized(call.services, rows)


async def show_snapshot(call: Call) -> SnapshotInfo:
    """Show one snapshot."""
    row = find_snapshot(call.services, call.parameters["name"])
    return (await _sized(call.services, [row]))[0]


async def _sized(services: Services, rows: list[Snapshot]) -> list[SnapshotInfo]:
    sizes = await services.snapshots.sizes(rows)
    return [
        SnapshotInfo.model_validate(row).model_copy(
            update={"bytes_total": size.total_bytes, "bytes_unique": size.unique_bytes}
        )
        for row, size in zip(rows, sizes, strict=True)
    ]


async def delete_snapshot(call: Call) -> Nothing:
    """Remove a snapshot that nothing uses."""
    snapshot = find_snapshot(call.services, call.parameters["name"])
    await call.services.snapshots.delete(snapshot.id)
    return Nothing()
