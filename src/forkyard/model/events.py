"""Journal events: each states the new value of one entity, and why it has it now.

The journal is append-only; the newest event of an entity is its state. So a projection is a
fold that any reader can redo, and an event never needs a migration of meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from forkyard.model.application import Application
from forkyard.model.budget import UsageRow
from forkyard.model.candidate import Candidate
from forkyard.model.execution import Exec
from forkyard.model.image import Image
from forkyard.model.run import Attempt, Run
from forkyard.model.verdict import Evaluation
from forkyard.model.workspace import Snapshot, Spare, Template, Workspace

Entity = (
    Template
    | Snapshot
    | Workspace
    | Spare
    | Exec
    | Run
    | Attempt
    | Candidate
    | Evaluation
    | Application
    | UsageRow
    | Image
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the journal."""

    sequence: int
    at: str
    """Wall time, for people; order is by sequence only."""
    entity_kind: str
    """Lower-case class name of the entity."""
    entity: Entity
    note: str = ""
    """What happened, in a few words."""
