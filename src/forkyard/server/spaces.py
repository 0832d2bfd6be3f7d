"""Routes of workspaces: made, listed, started and stopped, and their change against the base."""

from __future__ import annotations

import asyncio
import base64

from forkyard.errors import ConfigError, ConflictError
from forkyard.model.budget import Budget
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import (
    Lifetime,
    Limits,
    NetworkPlan,
    NetworkPolicy,
    Snapshot,
    SnapshotState,
    Template,
    Workspace,
    WorkspaceState,
)
from forkyard.server.finding import find_snapshot, find_template, find_workspace
from forkyard.server.lifetimes import expiry
from forkyard.server.services import Services
from forkyard.server.sessions import is_a_persons, owner_of
from forkyard.server.table import Answer, Call
from forkyard.wire.bodies import Nothing
from forkyard.wire.schema import FileChangeInfo, LeftOutInfo, PatchInfo
from forkyard.wire.spaces import LifetimeRequest, LimitsRequest, WorkspaceInfo, WorkspaceRequest
from forkyard.workspace import limits, ports
from forkyard.workspace.usage import disk_bytes


def origin(services: Services, body: WorkspaceRequest) -> Snapshot:
    """Find the ready snapshot that a workspace is to be forked from."""
    if body.snapshot is not None:
        snapshot = find_snapshot(services, body.snapshot)
    else:
        template = find_template(services, body.template or "")
        if body.vars:
            return built_with(services, template, body.vars)
        if template.snapshot is None:
            raise ConflictError(
                f"cannot fork a workspace from template {template.name}: it is {template.state}"
                " and has no snapshot",
                hint=f"Build it with `forkyard template build {template.name}`.",
            )
        snapshot = find_snapshot(services, template.snapshot)
    if snapshot.state is not SnapshotState.READY:
        raise ConflictError(
            f"cannot fork a workspace from snapshot {snapshot.name or snapshot.id}: it is"
            f" {snapshot.state}, and only a ready one can be forked",
            hint=f"Look at it with `forkyard snapshot show {snapshot.id}`.",
        )
    return snapshot


def built_with(services: Services, template: Template, values: dict[str, str]) -> Snapshot:
    """Find the snapshot that was built with these values."""
    found = services.templates.built(template.name, values)
    if found is None:
        flags = " ".join(f"--var {name}={value}" for name, value in values.items())
        raise ConflictError(
            f"cannot fork a workspace from template {template.name}: it was not built with these"
            " values yet",
            hint=f"Build it with `forkyard template build {template.name} {flags}`.",
        )
    return found


def merged_limits(request: LimitsRequest | None, base: Limits) -> Limits | None:
    """Lay what was asked over what the snapshot says."""
    if request is None:
        return None
    return Limits(
        cpu_millicores=request.cpu_millicores or base.cpu_millicores,
        memory_bytes=request.memory_bytes or base.memory_bytes,
        processes=request.processes or base.processes,
        disk_bytes=request.disk_bytes or base.disk_bytes,
        disk_inodes=request.disk_inodes or base.disk_inodes,
        disk_is_hard=base.disk_is_hard if request.disk_is_hard is None else request.disk_is_hard,
        output_bytes=request.output_bytes or base.output_bytes,
    )


def reachable(
    body: WorkspaceRequest, plan: NetworkPlan | None
) -> tuple[NetworkPolicy, tuple[str, ...]]:
    """Lay what was asked over what the snapshot's template says.

    Raises:
        ConfigError: An allowlist would be empty.
    """
    plan = plan or NetworkPlan()
    policy = body.network or (NetworkPolicy.ALLOWLIST if body.allow else plan.workspace)
    if policy is not NetworkPolicy.ALLOWLIST:
        return policy, ()
    allow = tuple(dict.fromkeys((*plan.allow, *(entry.lower() for entry in body.allow))))
    if not allow:
        raise ConfigError(
            "cannot make a workspace with network allowlist: its list is empty",
            hint="Name hosts with `--allow HOST`, or use network none.",
        )
    return policy, allow


async def create_workspace(call: Call) -> WorkspaceInfo:
    """Fork a workspace."""
    body = call.asked(WorkspaceRequest)
    services = call.services
    snapshot = origin(services, body)
    if body.network is NetworkPolicy.GATEWAY:
        await services.access.refuse_without_keys()
    network, allow = reachable(body, snapshot.environment.network)
    workspace = await services.workspaces.create(
        snapshot.id,
        display_name=body.display_name,
        ephemeral=body.ephemeral,
        network=network,
        allow=allow,
        owner=owner_of(body.session) if body.ephemeral and body.session else None,
        limits=merged_limits(body.limits, snapshot.limits),
        start=body.start,
        budget=Budget(tokens=body.budget_tokens, micro_usd=body.budget_micro_usd),
        lifetime=Lifetime(
            idle_stop_seconds=body.idle_stop_seconds,
            expires_at=expiry(services.clock, body.ttl_seconds),
        ),
    )
    return workspace_view(workspace)


def workspace_view(
    workspace: Workspace, *, idle_seconds: float | None = None, disk_bytes: int | None = None
) -> WorkspaceInfo:
    """Tell a workspace, with what only a look at the machine can say."""
    info = WorkspaceInfo.model_validate(workspace)
    info.ports_count = 0 if workspace.ports_first is None else ports.COUNT
    info.idle_seconds, info.disk_bytes = idle_seconds, disk_bytes
    return info


async def _looked_at(services: Services, workspace: Workspace) -> WorkspaceInfo:
    disk = await asyncio.to_thread(disk_bytes, services.layout.upper(workspace.id))
    idle = services.lifetimes.idle_seconds(workspace)
    return workspace_view(workspace, idle_seconds=idle, disk_bytes=disk)


async def change_lifetime(call: Call) -> WorkspaceInfo:
    """Say anew when a workspace is stopped or deleted by itself."""
    body = call.asked(LifetimeRequest)
    services = call.services
    workspace = _own(services, call.parameters["id"])
    lifetime = Lifetime(
        idle_stop_seconds=body.idle_stop_seconds,
        expires_at=expiry(services.clock, body.ttl_seconds),
    )
    return workspace_view(await services.workspaces.change_lifetime(workspace.id, lifetime))


async def list_workspaces(call: Call) -> Answer:
    """List workspaces, oldest first; those of attempts and evaluations with `all`."""
    everything = call.flag("all")
    rows = [
        one
        for one in call.services.journal.state.workspaces.values()
        if one.state is not WorkspaceState.DELETED and (everything or is_a_persons(one))
    ]
    if not call.flag("usage"):
        return [workspace_view(one) for one in rows]
    return [await _looked_at(call.services, one) for one in rows]


async def show_workspace(call: Call) -> WorkspaceInfo:
    """Show one workspace."""
    workspace = find_workspace(call.services, call.parameters["id"])
    isolation = await call.services.fleet.isolation()
    if call.flag("usage"):
        info = await _looked_at(call.services, workspace)
    else:
        info = workspace_view(workspace)
    info.held = limits.words(workspace.limits, isolation.protections)
    return info


async def delete_workspace(call: Call) -> Nothing:
    """Remove a workspace from the host; one that is gone already is fine by its whole id."""
    text = call.parameters["id"]
    gone = call.services.journal.state.workspaces.get(WorkspaceId(text))
    if gone is None or gone.state is not WorkspaceState.DELETED:
        await call.services.workspaces.delete(_own(call.services, text).id)
    return Nothing()


async def start_workspace(call: Call) -> WorkspaceInfo:
    """Run its sandbox."""
    workspace = find_workspace(call.services, call.parameters["id"])
    return workspace_view(await call.services.workspaces.start(workspace.id))


async def stop_workspace(call: Call) -> WorkspaceInfo:
    """End its sandbox."""
    workspace = _own(call.services, call.parameters["id"])
    return workspace_view(await call.services.workspaces.stop(workspace.id))


async def workspace_patch(call: Call) -> PatchInfo:
    """Stop a workspace and collect its change from outside, against its snapshot."""
    workspace = _own(call.services, call.parameters["id"])
    candidate, patch = await call.services.candidates.collect_workspace(workspace.id)
    return PatchInfo(
        workspace=workspace.id,
        status=candidate.status,
        base_tree=candidate.base_tree,
        result_tree=candidate.result_tree,
        patch_sha256=candidate.patch_sha256,
        patch=base64.b64encode(patch).decode(),
        files=[FileChangeInfo.model_validate(one) for one in candidate.files],
        left_out=[LeftOutInfo.model_validate(one) for one in candidate.left_out],
        ignored=[LeftOutInfo.model_validate(one) for one in candidate.ignored],
        problems=list(candidate.problems),
    )


def _own(services: Services, text: str) -> Workspace:
    workspace = find_workspace(services, text)
    if not is_a_persons(workspace):
        raise ConflictError(
            f"cannot change workspace {workspace.id}: it serves {workspace.owner}",
            hint="Cancel its run with `forkyard cancel RUN`; it goes with it.",
        )
    return workspace
