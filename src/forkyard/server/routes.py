"""The API as one table. FastAPI serves it and describes it at /v1/openapi.json."""

from __future__ import annotations

from forkyard.server import (
    about,
    agents,
    applications,
    connections,
    execs,
    live,
    runs,
    secrets,
    snapshots,
    spaces,
    templates,
)
from forkyard.server.table import Route
from forkyard.wire.bodies import Nothing
from forkyard.wire.connections import ConnectionsInfo
from forkyard.wire.drivers import DriverInfo, DriverReport, InstallProgress, InstallRequest
from forkyard.wire.results import (
    ApplicationInfo,
    ApplyRequest,
    CandidateInfo,
    RunInfo,
    RunSummary,
    SubmitRequest,
    UndoRequest,
    UsageReport,
)
from forkyard.wire.schema import (
    BuildRequest,
    DoctorReport,
    GarbageReport,
    GarbageRequest,
    PatchInfo,
    SnapshotInfo,
    SnapshotRequest,
    StopRequest,
    TemplateInfo,
    TemplateRequest,
    VersionInfo,
)
from forkyard.wire.secrets import KeyRotation, SecretInfo, SecretKept, SecretRequest
from forkyard.wire.spaces import (
    ExecInfo,
    ExecRequest,
    LifetimeRequest,
    WorkspaceInfo,
    WorkspaceRequest,
)

BYTES = "application/octet-stream"

_FOLLOW = {
    "offset": "First byte to give.",
    "follow": "true: go on until it is over.",
}
_STREAM = {"stream": "stdout (default) or stderr.", **_FOLLOW}
_WHERE = {
    "target": "Only those in this folder (absolute).",
    "workspace": "Only those in this workspace.",
}
_USAGE = {"usage": "true: also what it takes on disk, and how long it has been idle."}
_ALL = {"all": "true: also those that serve runs."}


def _row(
    method: str,
    path: str,
    summary: str,
    handler: object,
    answers: object,
    takes: object = None,
    *,
    status: int = 200,
    query: dict[str, str] | None = None,
) -> Route:
    return Route(
        method=method,
        path=path,
        summary=summary,
        handler=handler,  # type: ignore[arg-type] # checked where each handler is defined
        answers=answers,
        takes=takes,  # type: ignore[arg-type]
        status=status,
        query=query or {},
    )


ROUTES: tuple[Route, ...] = (
    _row("GET", "/v1/version", "Which server answers", about.version, VersionInfo),
    _row("GET", "/v1/doctor", "What isolation is in force", about.doctor, DoctorReport),
    _row(
        "GET",
        "/v1/events",
        "The journal as server-sent events",
        about.events,
        "text/event-stream",
        query={
            "after": "Sequence number to start after, or now (default).",
            "run": "Only what belongs to this run id.",
        },
    ),
    _row("POST", "/v1/stop", "Exit; sandboxes stay", about.stop, Nothing, StopRequest),
    _row("GET", "/v1/drivers", "Which agent drivers exist", agents.drivers, list[DriverInfo]),
    _row("GET", "/v1/drivers/{name}", "How one is installed", agents.check, DriverReport),
    _row("GET", "/v1/drivers/{name}/progress", "How its installation goes", agents.progress,
         InstallProgress),
    _row("POST", "/v1/drivers/{name}/install", "Install one", agents.install, DriverReport,
         InstallRequest),
    _row("POST", "/v1/gc", "Remove what nothing needs", about.collect_garbage, GarbageReport,
         GarbageRequest),
    _row("GET", "/v1/sessions/{id}", "Be there, for ephemeral workspaces", about.session,
         "text/event-stream"),
    # secrets
    _row("GET", "/v1/secrets", "List secrets, not their values", secrets.list_secrets,
         list[SecretInfo]),
    _row("PUT", "/v1/secrets/{name}", "Keep a value under a name", secrets.set_secret,
         SecretKept, SecretRequest),
    _row("DELETE", "/v1/secrets/{name}", "Remove a secret", secrets.delete_secret, Nothing),
    _row("POST", "/v1/secret-key", "Seal all secrets with a new key", secrets.rotate_key,
         KeyRotation),
    # templates
    _row("POST", "/v1/templates", "Keep a recipe under a name", templates.apply_template,
         TemplateInfo, TemplateRequest, status=201),
    _row("GET", "/v1/templates", "List recipes", templates.list_templates, list[TemplateInfo]),
    _row("GET", "/v1/templates/{name}", "Show a recipe", templates.show_template, TemplateInfo),
    _row("DELETE", "/v1/templates/{name}", "Remove a recipe", templates.delete_template, Nothing),
    _row("POST", "/v1/templates/{name}/build", "Start a build", templates.build_template,
         TemplateInfo, BuildRequest, status=202),
    _row("GET", "/v1/templates/{name}/log", "Log of the newest build", templates.template_log,
         BYTES, query=_FOLLOW),
    # snapshots
    _row("POST", "/v1/snapshots", "Take a snapshot", snapshots.create_snapshot,
         SnapshotInfo, SnapshotRequest, status=201),
    _row("GET", "/v1/snapshots", "List snapshots", snapshots.list_snapshots,
         list[SnapshotInfo], query=_ALL),
    _row("GET", "/v1/snapshots/{name}", "Show a snapshot", snapshots.show_snapshot, SnapshotInfo),
    _row("DELETE", "/v1/snapshots/{name}", "Remove a snapshot", snapshots.delete_snapshot, Nothing),
    # workspaces
    _row("POST", "/v1/workspaces", "Fork a workspace", spaces.create_workspace,
         WorkspaceInfo, WorkspaceRequest, status=201),
    _row("GET", "/v1/workspaces", "List workspaces", spaces.list_workspaces,
         list[WorkspaceInfo], query={**_ALL, **_USAGE}),
    _row("GET", "/v1/workspaces/{id}", "Show a workspace", spaces.show_workspace, WorkspaceInfo,
         query=_USAGE),
    _row("PUT", "/v1/workspaces/{id}/lifetime", "Say when it is stopped or deleted by itself",
         spaces.change_lifetime, WorkspaceInfo, LifetimeRequest),
    _row("DELETE", "/v1/workspaces/{id}", "Remove a workspace", spaces.delete_workspace, Nothing),
    _row("POST", "/v1/workspaces/{id}/start", "Run its sandbox", spaces.start_workspace,
         WorkspaceInfo),
    _row("POST", "/v1/workspaces/{id}/stop", "End its sandbox", spaces.stop_workspace,
         WorkspaceInfo),
    _row("POST", "/v1/workspaces/{id}/patch", "Stop it and collect its change",
         spaces.workspace_patch, PatchInfo),
    # execs
    _row("POST", "/v1/workspaces/{id}/execs", "Run a command to its end", execs.create_exec,
         ExecInfo, ExecRequest),
    _row("GET", "/v1/workspaces/{id}/execs", "List its execs", execs.list_execs, list[ExecInfo]),
    _row("GET", "/v1/execs/{id}", "Show an exec", execs.show_exec, ExecInfo),
    _row("GET", "/v1/execs/{id}/output", "What it printed", execs.exec_output, BYTES,
         query=_STREAM),
    _row("POST", "/v1/execs/{id}/kill", "End it", execs.kill_exec, ExecInfo),
    _row("POST", "/v1/execs/{id}/attach", "Give it input and get its output, as frames both ways",
         live.attach, BYTES),
    _row("POST", "/v1/workspaces/{id}/connect", "Be connected to a port inside, byte for byte",
         live.connect, BYTES, query={"port": "Of its own loopback."}),
    # runs
    _row("POST", "/v1/runs", "Submit a run", runs.submit_run, RunInfo, SubmitRequest, status=201),
    _row("GET", "/v1/runs", "List runs", runs.list_runs, list[RunSummary]),
    _row("GET", "/v1/runs/{id}", "Show a run", runs.show_run, RunInfo,
         query={"brief": "true: without files and tests, for those who look often."}),
    _row("POST", "/v1/runs/{id}/cancel", "End a run, keep its results", runs.cancel_run, RunInfo),
    _row("POST", "/v1/runs/{id}/retry", "Try again what our trouble ended", runs.retry_run,
         RunInfo),
    _row("POST", "/v1/runs/{id}/regrade", "Evaluate its candidates again", runs.regrade_run,
         RunInfo),
    _row("GET", "/v1/attempts/{id}/log", "What the agent printed", runs.attempt_log, BYTES,
         query=_STREAM),
    _row("GET", "/v1/attempts/{id}/trajectory", "What the agent did, in one shape for all agents",
         runs.attempt_trajectory, "application/json"),
    _row("GET", "/v1/connections/{id}", "What an attempt or a workspace connected to",
         connections.show_connections, ConnectionsInfo),
    _row("GET", "/v1/usage", "What was spent", runs.usage, UsageReport,
         query={"by": "run (default), attempt, agent, model or day.", "run": "Only of this run."}),
    _row("GET", "/v1/candidates/{id}", "Show a candidate", runs.show_candidate, CandidateInfo),
    _row("GET", "/v1/candidates/{id}/patch", "Its patch", runs.candidate_patch, "text/x-patch"),
    _row("GET", "/v1/candidates/{id}/manifest", "Its manifest", runs.candidate_manifest,
         "application/json"),
    _row("POST", "/v1/candidates/{id}/apply", "Put it into a working tree", runs.apply_candidate,
         ApplicationInfo, ApplyRequest, status=201),
    _row("GET", "/v1/applications", "List what was put where", applications.list_applications,
         list[ApplicationInfo], query=_WHERE),
    _row("GET", "/v1/applications/{id}", "Show what was put where",
         applications.show_application, ApplicationInfo),
    _row("POST", "/v1/applications/{id}/undo", "Take it back, every path or none",
         applications.undo_application, ApplicationInfo, UndoRequest),
)  # fmt: skip
"""Every route; the order is that of the description."""
