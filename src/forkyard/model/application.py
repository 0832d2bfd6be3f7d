"""Putting a candidate's bytes into a working tree: a journalled step with a way back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forkyard.model.ids import ApplicationId, CandidateId


class ApplicationState(StrEnum):
    """`writing` found at start-up means a crash in the middle: the way back is taken."""

    WRITING = "writing"
    APPLIED = "applied"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One candidate put into one working tree."""

    id: ApplicationId
    candidate: CandidateId
    target: str
    """Absolute path of the user's tree, or a workspace id."""
    paths: tuple[str, ...]
    state: ApplicationState
    created_at: str
    left: tuple[str, ...] = ()
    """Paths that the way back left alone, since somebody had written them meanwhile."""
