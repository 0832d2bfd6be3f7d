"""Routes about the server itself: version, doctor, the event stream, stopping."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from forkyard import __version__
from forkyard.errors import ConflictError
from forkyard.model.workspace import TemplateState
from forkyard.server.services import Services
from forkyard.server.table import Call, bad_query
from forkyard.server.views import active, event_bytes, event_view
from forkyard.store.reserve import Reserve
from forkyard.wire.bodies import Nothing
from forkyard.wire.schema import (
    API_VERSION,
    DoctorReport,
    GarbageReport,
    GarbageRequest,
    RemovedInfo,
    StopRequest,
    VersionInfo,
)
from forkyard.workspace.recipes import notes

HEARTBEAT_SECONDS = 15.0
EVENTS_AT_ONCE = 200


async def version(call: Call) -> VersionInfo:
    """Say who answers."""
    services = call.services
    return VersionInfo(
        version=__version__,
        api_version=API_VERSION,
        pid=os.getpid(),
        home=str(services.layout.home),
        started_at=services.started_at,
        active=active(services.journal.state),
    )


async def doctor(call: Call) -> DoctorReport:
    """Say what isolation is in force, by really starting a container."""
    isolation = await call.services.fleet.isolation()
    home = call.services.layout.home
    of_templates = [
        f"template {one.name}: {note}"
        for one in call.services.journal.state.templates.values()
        if one.state is not TemplateState.DELETED
        for note in notes(one.spec)
    ]
    full = await asyncio.to_thread(Reserve(call.services.layout.reserve).trouble)
    return DoctorReport(
        runtime=isolation.runtime,
        storage_mode=isolation.storage_mode,
        protections=dict(isolation.protections),
        problems=[*isolation.problems, *([] if full is None else [full])],
        notes=[*isolation.notes, *of_templates],
        digest=isolation.digest,
        home=str(home),
        free_bytes=shutil.disk_usage(home).free,
    )


async def collect_garbage(call: Call) -> GarbageReport:
    """Remove what nothing needs now instead of by and by, or say what that would be."""
    asked = call.asked(GarbageRequest)
    removed = await call.services.maintenance.collect_garbage(
        older_than_seconds=asked.older_than_seconds, is_dry=asked.dry_run
    )
    return GarbageReport(
        removed=[RemovedInfo.model_validate(one) for one in removed],
        size_bytes=sum(one.size_bytes for one in removed),
        dry_run=asked.dry_run,
    )


async def session(call: Call) -> StreamingResponse:
    """Stream nothing for as long as a client is there; its ephemeral workspaces go with it."""
    name = call.parameters["id"]
    if not (8 <= len(name) <= 64 and name.isascii() and name.isalnum()):  # noqa: PLR2004 - the bounds are in the message
        raise bad_query("id", "must be 8 to 64 letters and digits")
    return StreamingResponse(
        call.services.sessions.hold(name, call.services.stopping),
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
    )


async def stop(call: Call) -> Nothing:
    """Exit soon; sandboxes stay."""
    only_if_idle = call.asked(StopRequest).only_if_idle
    count = active(call.services.journal.state)
    if only_if_idle and count:
        raise ConflictError(
            f"cannot stop the server: {count} runs or sandboxes are in progress",
            hint="Wait for them, or stop it with `forkyard serve --stop`; they go on without it.",
        )
    call.services.stopping.set()
    return Nothing()


async def events(call: Call) -> StreamingResponse:
    """Stream the journal from a sequence number on; `after=now` starts at the newest."""
    journal = call.services.journal
    after = call.request.headers.get("last-event-id") or call.query.get("after", "now")
    if after == "now":
        sequence = journal.sequence
    elif after.isascii() and after.isdigit() and len(after) <= 18:  # noqa: PLR2004 - 63 bits
        sequence = int(after)
    else:
        raise bad_query("after", f"must be a sequence number or 'now', not {after!r}")
    return StreamingResponse(
        _events(call.services, sequence, run=call.query.get("run")),
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
    )


async def _events(services: Services, sequence: int, *, run: str | None) -> AsyncIterator[bytes]:
    journal = services.journal
    # At once something to read, so that the client knows the stream stands.
    yield f": from {sequence}\n\n".encode()
    while not services.stopping.is_set():
        batch = await asyncio.to_thread(journal.events_after, sequence, limit=EVENTS_AT_ONCE)
        for event in batch:
            view = event_view(event, journal.state)
            if run is None or view.run == run:
                yield event_bytes(view)
        if batch:
            sequence = batch[-1].sequence
            continue
        if not await _changed(services, sequence):
            yield b": still here\n\n"


async def _changed(services: Services, sequence: int) -> bool:
    """Wait for a change, the end of the server, or the time for a heartbeat."""
    change = asyncio.ensure_future(services.journal.wait_for_change(sequence))
    stop = asyncio.ensure_future(services.stopping.wait())
    try:
        done, _ = await asyncio.wait(
            {change, stop}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        change.cancel()
        stop.cancel()
    return bool(done)
