"""Why a tree is not touched, in words."""

from __future__ import annotations

import os
from collections.abc import Mapping

from forkyard.errors import ConflictError, WorkspaceError
from forkyard.model.application import Application, ApplicationState
from forkyard.model.candidate import Candidate
from forkyard.model.ids import ApplicationId
from forkyard.promotion.action import Outcome
from forkyard.promotion.targets import Target
from forkyard.promotion.tree import Difference

_NAMED_IN_MESSAGE = 8


def refuse_unfinished(
    verb: str, target: str, applications: Mapping[ApplicationId, Application]
) -> None:
    """Refuse a tree in which an earlier way back was not gone to its end.

    Raises:
        ConflictError: There is one.
    """
    for other in applications.values():
        if other.target == target and other.state is ApplicationState.WRITING:
            raise ConflictError(
                f"cannot {verb} {target}: {other.id} is writing there, and its way back was not "
                "finished",
                hint=f"Finish it with `forkyard undo {other.id}`.",
            )


def refuse_differences(candidate: Candidate, target: Target, outcome: Outcome) -> None:
    """Refuse what a comparison with the recorded base found.

    Raises:
        ConflictError: A touched path differs.
        WorkspaceError: They could not be compared.
    """
    if outcome.error is not None:
        raise WorkspaceError(
            f"cannot apply {candidate.id} to {target.words}: {outcome.error}",
            hint="Look at the folder's rights and its disk, then apply again.",
        )
    if outcome.differences:
        raise ConflictError(
            f"cannot apply {candidate.id} to {target.words}: not as in the recorded base: "
            f"{named(outcome.differences)}",
            hint="Nothing was changed; put these paths back as they were, or apply elsewhere.",
        )


def named(differences: tuple[Difference, ...]) -> str:
    """Name differences, the first few of many."""
    shown = [f"{os.fsdecode(d.path)!r} {d.reason}" for d in differences[:_NAMED_IN_MESSAGE]]
    more = len(differences) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
