"""Routes of applications: what was put where, and taking it back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forkyard.model.application import Application
from forkyard.server.finding import find_workspace
from forkyard.server.lookup import find
from forkyard.server.services import Services
from forkyard.server.table import Answer, Call, bad_query
from forkyard.wire.results import ApplicationInfo, UndoRequest


def find_application(services: Services, text: str) -> Application:
    """Find an application by id."""
    known = {str(key): one for key, one in services.journal.state.applications.items()}
    return find("application", text, known, prefix="app", hint="See `forkyard undo --list`.")


async def list_applications(call: Call) -> Answer:
    """List applications, oldest first; those of one folder or workspace where asked for."""
    found = list(call.services.journal.state.applications.values())
    target, workspace = call.query.get("target"), call.query.get("workspace")
    if workspace is not None:
        owner = find_workspace(call.services, workspace)
        found = [one for one in found if one.target == owner.id]
    elif target is not None:
        if not target.startswith("/") or "\0" in target:
            raise bad_query("target", "must be an absolute path")
        found = await asyncio.to_thread(_those_in, target, found)
    return [ApplicationInfo.model_validate(one) for one in found]


def _those_in(folder: str, applications: list[Application]) -> list[Application]:
    # The same folder may be reached by another way than it was applied by.
    there = Path(folder).resolve()
    return [
        one
        for one in applications
        if one.target.startswith("/") and Path(one.target).resolve() == there
    ]


async def show_application(call: Call) -> ApplicationInfo:
    """Show one application."""
    return ApplicationInfo.model_validate(find_application(call.services, call.parameters["id"]))


async def undo_application(call: Call) -> ApplicationInfo:
    """Take an application back, every path or none."""
    application = find_application(call.services, call.parameters["id"])
    is_dry = call.asked(UndoRequest).dry_run
    done = await call.services.candidates.undo(application.id, is_dry=is_dry)
    return ApplicationInfo.model_validate(done)
