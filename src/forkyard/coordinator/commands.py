"""The words in which `decide` says what should be in flight."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forkyard.model.ids import AttemptId, RunId
from forkyard.model.run import Attempt, AttemptState


class CommandKind(StrEnum):
    """What is to be done; each is safe to begin again after a crash."""

    BEGIN = "begin"
    """Say that a queued run is being worked on."""
    SEAL = "seal"
    """Derive the snapshot that a task's attempts fork."""
    BASELINE = "baseline"
    """Run a task's checks on the base."""
    BLOCK = "block"
    """Say that trouble of ours keeps a task from going on."""
    RANK = "rank"
    FINISH = "finish"
    """Say that a run is over."""
    PREPARE = "prepare"
    """Fork a workspace and run its sandbox."""
    RUN_AGENT = "run-agent"
    """Run the agent to its end, or attach to it."""
    STOP_AGENT = "stop-agent"
    """End the agent for a reason that is given."""
    COLLECT = "collect"
    EVALUATE = "evaluate"
    LEAVE_UNJUDGED = "leave-unjudged"
    """Give a candidate the verdict `not-evaluated` for a reason that is given."""
    END = "end"
    """Give an attempt a terminal state without more work."""
    CLEAN_UP = "clean-up"
    """Keep the logs, delete the workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One thing to do for a run, a task of it, or an attempt."""

    kind: CommandKind
    run: RunId
    task: int = 0
    attempt: AttemptId | None = None
    epoch: int = 0
    ending: AttemptState | None = None
    """Of END and STOP_AGENT: the terminal state that the attempt gets."""
    trouble: str | None = None
    """Why, when it is trouble of ours."""
    detail: str | None = None
    """Why, when it is not."""

    @property
    def key(self) -> str:
        """Name the work: the same work asked for again has the same key."""
        return f"{self.kind}:{self.subject}:{self.epoch}"

    @property
    def subject(self) -> str:
        """Name what only one command at a time may work on."""
        return self.attempt if self.attempt is not None else f"{self.run}/{self.task}/{self.kind}"


def for_attempt(
    kind: CommandKind,
    attempt: Attempt,
    *,
    ending: AttemptState | None = None,
    trouble: str | None = None,
    detail: str | None = None,
) -> Command:
    """Make a command about an attempt as it is now."""
    return Command(
        kind=kind,
        run=attempt.run,
        task=attempt.task,
        attempt=attempt.id,
        epoch=attempt.epoch,
        ending=ending,
        trouble=trouble,
        detail=detail,
    )
