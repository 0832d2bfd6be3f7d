"""The steps of a template's build, each under the one word that its failure is told with."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, TypeVar

from forkyard.errors import ForkyardError, WorkspaceError
from forkyard.model.workspace import BuildFailure

Word = Literal["pull", "build", "clone", "task", "start", "stop", "snapshot"]
"""pull, build: the image; clone: a repository; then the workspace's start, its tasks, its stop."""

_Result = TypeVar("_Result")


class StepError(Exception):
    """A step failed: its word, and the error that the caller is told."""

    def __init__(
        self, word: Word, error: ForkyardError, *, task: str | None = None, tail: str = ""
    ) -> None:
        """Keep both, and of a task its name and the end of its output."""
        super().__init__(word)
        self.failure = BuildFailure(word=word, task=task, tail=tail)
        self.error = error


async def step(word: Word, work: Awaitable[_Result]) -> _Result:
    """Wait for a step; a failure is told with the step's word, the innermost of several.

    Raises:
        StepError: It failed.
    """
    try:
        return await work
    except ForkyardError as error:
        raise StepError(word, error) from error
    except OSError as error:
        reason = error.strerror or str(error)
        told = WorkspaceError(f"cannot build: {reason}", hint="Look at the disk's free space.")
        raise StepError(word, told) from error
