"""Templates, snapshots and workspaces, found as a person names them."""

from __future__ import annotations

from forkyard.errors import ConflictError
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import (
    Snapshot,
    SnapshotState,
    Template,
    TemplateState,
    Workspace,
    WorkspaceState,
)
from forkyard.server.lookup import find
from forkyard.server.services import Services


def find_template(services: Services, text: str) -> Template:
    """Find a template that is not deleted, by name or id."""
    state = services.journal.state
    things = {
        str(one.id): one
        for one in state.templates.values()
        if one.state is not TemplateState.DELETED
    }
    named = state.template_named(text)
    return find(
        "template",
        text,
        things,
        prefix="tmpl",
        names=None if named is None else {named.name: named.id},
        hint="See `forkyard template list`.",
    )


def find_snapshot(services: Services, text: str) -> Snapshot:
    """Find a snapshot that is not deleted, by name or id."""
    state = services.journal.state
    things = {
        str(one.id): one
        for one in state.snapshots.values()
        if one.state is not SnapshotState.DELETED
    }
    named = state.snapshot_named(text)
    return find(
        "snapshot",
        text,
        things,
        prefix="snap",
        names=None if named is None else {text: named.id},
        hint="See `forkyard snapshot list`.",
    )


def find_workspace(services: Services, text: str) -> Workspace:
    """Find a workspace that is not deleted, by id or display name."""
    state = services.journal.state
    exact = state.workspaces.get(WorkspaceId(text))
    if exact is not None and exact.state is not WorkspaceState.DELETED:
        return exact  # the hot path: a whole id
    things = {
        str(one.id): one
        for one in state.workspaces.values()
        if one.state is not WorkspaceState.DELETED
    }
    named = [key for key, one in things.items() if one.display_name == text]
    if len(named) > 1 and text not in things:
        shown = ", ".join(named[:4]) + (", ..." if len(named) > 4 else "")  # noqa: PLR2004 - as many as are shown
        raise ConflictError(
            f"cannot tell which workspace {text!r} means: {len(named)} have that name ({shown})",
            hint="Give the id; see `forkyard workspace list`.",
        )
    return find(
        "workspace",
        text,
        things,
        prefix="ws",
        names={text: named[0]} if named else None,
        hint="See `forkyard workspace list`.",
    )
