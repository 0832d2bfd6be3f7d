"""Forkyard: fork a workspace, run agents side by side, judge, rank, merge what you approve."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from forkyard.client.blocking import BlockingClient, connect_blocking
    from forkyard.client.client import Client, connect
    from forkyard.client.results import ExecOutcome, Patch
    from forkyard.client.workspaces import Workspace
    from forkyard.errors import (
        AccessDeniedError,
        AgentError,
        ConfigError,
        ConflictError,
        EvaluationError,
        ForkyardError,
        InternalError,
        NotFoundError,
        SandboxUnavailableError,
        StoreError,
        UserError,
        WorkspaceError,
    )

_PLACES = {
    "forkyard.client.blocking": ("BlockingClient", "connect_blocking"),
    "forkyard.client.client": ("Client", "connect"),
    "forkyard.client.results": ("ExecOutcome", "Patch"),
    "forkyard.client.workspaces": ("Workspace",),
    "forkyard.errors": (
        "AccessDeniedError",
        "AgentError",
        "ConfigError",
        "ConflictError",
        "EvaluationError",
        "ForkyardError",
        "InternalError",
        "NotFoundError",
        "SandboxUnavailableError",
        "StoreError",
        "UserError",
        "WorkspaceError",
    ),
}

__all__ = [
    "AccessDeniedError",
    "AgentError",
    "BlockingClient",
    "Client",
    "ConfigError",
    "ConflictError",
    "EvaluationError",
    "ExecOutcome",
    "ForkyardError",
    "InternalError",
    "NotFoundError",
    "Patch",
    "SandboxUnavailableError",
    "StoreError",
    "UserError",
    "Workspace",
    "WorkspaceError",
    "__version__",
    "connect",
    "connect_blocking",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command line starts fast."""
    from importlib import import_module  # noqa: PLC0415 - only when a public name is used

    for place, names in _PLACES.items():
        if name in names:
            return getattr(import_module(place), name)
    raise AttributeError(name)
