"""Routes of execs. Running one is the hot path: its answer is prepared bytes."""

from __future__ import annotations

import asyncio
import base64
import json

from starlette.responses import StreamingResponse

from forkyard.errors import ConflictError
from forkyard.model.execution import Exec, ExecState
from forkyard.model.ids import ExecId
from forkyard.model.workspace import WORKSPACE_ROOT, Workspace
from forkyard.server.finding import find_workspace
from forkyard.server.lookup import find
from forkyard.server.output import read_small, stream_file
from forkyard.server.services import Services
from forkyard.server.table import Call, bad_query
from forkyard.server.views import exec_view
from forkyard.wire.errors import printable
from forkyard.wire.spaces import INLINE_OUTPUT_BYTES, ExecInfo, ExecRequest

KILL_AGAIN_SECONDS = 0.5
MOST_WORD = 2000
"""Characters of one argument that are told."""


def find_exec(services: Services, text: str) -> Exec:
    """Find an exec by id."""
    execs = {str(key): one for key, one in services.journal.state.execs.items()}
    return find("exec", text, execs, prefix="exec")


async def create_exec(call: Call) -> bytes:
    """Run a command and wait for its end; a known id attaches instead of running again."""
    body = call.asked(ExecRequest)
    services = call.services
    workspace = find_workspace(services, call.parameters["id"])
    known = services.journal.state.execs.get(ExecId(body.id))
    if known is not None and known.workspace != workspace.id:
        raise ConflictError(
            f"cannot run {body.id} in {workspace.id}: that exec belongs to {known.workspace}",
            hint="Make a fresh id for every command.",
        )
    argv = body.argv if body.argv is not None else ["/bin/sh", "-c", body.command or ""]
    row = await services.workspaces.exec(
        workspace.id,
        argv,
        working_directory=body.working_directory or _home(services, workspace),
        variables=body.variables,
        timeout_seconds=body.timeout_seconds,
        exec_id=ExecId(body.id),
        keep_background=body.keep_background,
        as_root=body.as_root,
        has_input=body.has_input,
        attended=body.attended,
        terminal=None if body.terminal is None else (body.terminal.rows, body.terminal.columns),
        copy=None if body.copy_path is None else (body.copy_direction, body.copy_path),
        # What is copied goes to whoever copies, and is not kept.
        output_bytes=None if body.copy_path is None else 0,
    )
    return exec_bytes(services, row)


def _home(services: Services, workspace: Workspace) -> str:
    snapshot = services.journal.state.snapshots.get(workspace.snapshot)
    return WORKSPACE_ROOT if snapshot is None or snapshot.base is None else snapshot.base.repository


def exec_bytes(services: Services, row: Exec) -> bytes:
    """Write an exec with its small outputs."""
    result = row.result
    if result is None:
        return exec_view(row).model_dump_json().encode()
    folder = services.layout.exec(row.workspace, row.id)
    limit = INLINE_OUTPUT_BYTES
    stdout = read_small(folder / "stdout", result.stdout_bytes, limit, services.masker)
    stderr = read_small(folder / "stderr", result.stderr_bytes, limit, services.masker)
    return json.dumps(
        {
            "id": row.id,
            "workspace": row.workspace,
            "state": row.state,
            "created_at": row.created_at,
            "stop_reason": result.stop_reason,
            "exit_code": result.exit_code,
            "elapsed_seconds": result.elapsed_seconds,
            "stdout_bytes": result.stdout_bytes,
            "stderr_bytes": result.stderr_bytes,
            "truncated": result.truncated,
            "detail": None if result.detail is None else printable(result.detail),
            "stdout": None if stdout is None else base64.b64encode(stdout).decode(),
            "stderr": None if stderr is None else base64.b64encode(stderr).decode(),
        }
    ).encode()


async def show_exec(call: Call) -> ExecInfo:
    """Show one exec, without its output."""
    return _told(call.services, find_exec(call.services, call.parameters["id"]))


def _told(services: Services, row: Exec) -> ExecInfo:
    """Tell an exec with what was run; a person may have typed a secret into that."""
    info = exec_view(row)
    info.argv = [printable(services.masker.mask_text(word))[:MOST_WORD] for word in row.spec.argv]
    return info


async def list_execs(call: Call) -> list[ExecInfo]:
    """List a workspace's execs, oldest first."""
    workspace = find_workspace(call.services, call.parameters["id"])
    return [
        _told(call.services, one)
        for one in call.services.journal.state.execs.values()
        if one.workspace == workspace.id
    ]


async def exec_output(call: Call) -> StreamingResponse:
    """Give an exec's output from an offset on, and what comes while it runs with `follow`."""
    services = call.services
    row = find_exec(services, call.parameters["id"])
    stream = call.query.get("stream", "stdout")
    if stream not in {"stdout", "stderr"}:
        raise bad_query("stream", f"must be stdout or stderr, not {stream!r}")

    def is_over() -> bool:
        now = services.journal.state.execs.get(row.id)
        return now is None or now.state is ExecState.ENDED or services.stopping.is_set()

    return StreamingResponse(
        stream_file(
            services.layout.exec(row.workspace, row.id) / stream,
            offset=call.number("offset", 0),
            follow=call.flag("follow"),
            is_over=is_over,
            is_cut=services.stopping.is_set,
            masker=services.masker,
        ),
        media_type="application/octet-stream",
    )


async def kill_exec(call: Call) -> ExecInfo:
    """End an exec and what it left behind, and wait for that; one that is over stays as it is."""
    row = find_exec(call.services, call.parameters["id"])
    if row.state is not ExecState.ENDED:
        row = await _end(call.services, row)
    return exec_view(row)


async def _end(services: Services, row: Exec) -> Exec:
    over = asyncio.ensure_future(services.workspaces.wait_exec(row.id))
    try:
        while not over.done():
            # Again and again: one that is journalled but only just being started hears it late.
            await services.workspaces.kill_exec(row.workspace, row.id)
            await asyncio.wait({over}, timeout=KILL_AGAIN_SECONDS)
        return over.result()
    finally:
        over.cancel()
