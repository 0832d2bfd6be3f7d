"""Where a candidate can be put: a folder of the host, or a stopped workspace."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forkyard.base import process
from forkyard.errors import ConflictError, NotFoundError, WorkspaceError
from forkyard.promotion.action import Action, Outcome, act
from forkyard.promotion.going_on import going_on
from forkyard.promotion.record import Record

_WRITING_SECONDS = 600.0
"""Far beyond what the largest candidate takes; past it the disk is stuck."""


class Target(Protocol):
    """One tree that actions are done to."""

    @property
    def words(self) -> str:
        """Name it for a person."""
        ...

    async def act(self, action: Action, record: Record) -> Outcome:
        """Do one action."""
        ...


@dataclass(frozen=True, slots=True)
class HostTree:
    """A folder of the host, usually a checkout of the user's."""

    path: Path

    @property
    def words(self) -> str:
        """Name it for a person."""
        return str(self.path)

    async def act(self, action: Action, record: Record) -> Outcome:
        """Do one action in a thread.

        Cancellation:
            The thread goes on to its end; the caller shields the call and waits for it.
        """
        return await asyncio.to_thread(self._act, action, record)

    def _act(self, action: Action, record: Record) -> Outcome:
        try:
            root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"cannot {_VERBS[action]} {self.path}: there is no such folder",
                hint="Give the folder that holds the repository.",
            ) from error
        except OSError as error:
            raise ConflictError(
                f"cannot {_VERBS[action]} {self.path}: {error.strerror}",
                hint="Give the folder that holds the repository.",
            ) from error
        try:
            if action in _BEGINNINGS and (busy := going_on(self.path)) is not None:
                raise ConflictError(
                    f"cannot {_VERBS[action]} {self.path}: {busy}",
                    hint="End that first; nothing was changed.",
                )
            return act(action, root, record)
        finally:
            os.close(root)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedWorkspace:
    """A workspace's files, seen through its layers in a process with a private mount."""

    name: str
    lowers: Sequence[str]
    """Layer folders, topmost first."""
    upper: str
    work: str
    repository: str
    """Absolute path inside the workspace."""

    @property
    def words(self) -> str:
        """Name it for a person."""
        return f"{self.name}:{self.repository}"

    async def act(self, action: Action, record: Record) -> Outcome:
        """Do one action in a process of its own, which dies with this one.

        Raises:
            WorkspaceError: The view could not be mounted, or its repository is missing.
        """
        request = {
            "action": action.value,
            "lowers": list(self.lowers),
            "upper": self.upper,
            "work": self.work,
            "repository": self.repository,
            "record": str(record.folder),
        }
        finished = await process.run_async(
            [sys.executable, "-m", "forkyard.promotion.in_workspace"],
            variables={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            stdin=json.dumps(request).encode(),
            timeout_seconds=_WRITING_SECONDS,
        )
        if not finished.succeeded:
            reason = finished.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise WorkspaceError(
                f"cannot {_VERBS[action]} {self.words}: {reason or 'its helper died'}",
                hint="Look at the workspace with `forkyard workspace show`.",
            )
        return Outcome.from_json(finished.stdout)


_BEGINNINGS = frozenset({Action.COMPARE, Action.COMPARE_UNDO})
"""Before anything is written; a way back that was begun is gone to its end whatever goes on."""

_VERBS = {
    Action.COMPARE: "apply to",
    Action.WRITE: "apply to",
    Action.COMPARE_UNDO: "undo in",
    Action.TAKE_BACK: "undo in",
}
