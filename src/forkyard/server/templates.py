"""Routes of templates and their builds."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence

from starlette.responses import StreamingResponse

from forkyard.model.workspace import Template, TemplateState
from forkyard.server.finding import find_template
from forkyard.server.output import stream_file
from forkyard.server.table import Answer, Call
from forkyard.wire.bodies import Nothing
from forkyard.wire.schema import BuildRequest, TaskInfo, TemplateInfo, TemplateRequest
from forkyard.wire.templatefile import parse_template
from forkyard.workspace.recipes import notes, secret_names
from forkyard.workspace.task_records import TaskRecord, read_records


async def apply_template(call: Call) -> TemplateInfo:
    """Keep a recipe under a name."""
    body = call.asked(TemplateRequest)
    spec = parse_template(body.text, body.file, folder=posixpath.dirname(body.file) or None)
    return template_info(await call.services.templates.apply(body.name, spec))


def template_info(row: Template, tasks: Sequence[TaskRecord] = ()) -> TemplateInfo:
    """Tell of a recipe: its row, and what a person should know of it."""
    info = TemplateInfo.model_validate(row)
    return info.model_copy(
        update={
            "image": row.spec.image,
            "parameters": dict(row.spec.parameters),
            "secrets": sorted(secret_names(row.spec)),
            "notes": list(notes(row.spec)),
            "tasks": [TaskInfo.model_validate(one) for one in tasks],
        }
    )


async def list_templates(call: Call) -> Answer:
    """List recipes, oldest first."""
    return [
        template_info(one)
        for one in call.services.journal.state.templates.values()
        if one.state is not TemplateState.DELETED
    ]


async def show_template(call: Call) -> TemplateInfo:
    """Show one recipe."""
    template = find_template(call.services, call.parameters["name"])
    folder = call.services.templates.log(template.name).parent
    return template_info(template, await asyncio.to_thread(read_records, folder))


async def delete_template(call: Call) -> Nothing:
    """Remove a recipe."""
    await call.services.templates.delete(find_template(call.services, call.parameters["name"]).name)
    return Nothing()


async def build_template(call: Call) -> TemplateInfo:
    """Start a build."""
    template = find_template(call.services, call.parameters["name"])
    values = call.asked(BuildRequest).vars
    return template_info(await call.services.templates.begin_build(template.name, values))


async def template_log(call: Call) -> StreamingResponse:
    """Give the log of the newest build."""
    services = call.services
    template = find_template(services, call.parameters["name"])

    def is_over() -> bool:
        now = services.journal.state.templates.get(template.id)
        return now is None or now.state is not TemplateState.BUILDING or services.stopping.is_set()

    return StreamingResponse(
        stream_file(
            services.templates.log(template.name),
            offset=call.number("offset", 0),
            follow=call.flag("follow"),
            is_over=is_over,
            is_cut=services.stopping.is_set,
            masker=services.masker,
        ),
        media_type="application/octet-stream",
    )
