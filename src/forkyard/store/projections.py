"""The read model: the newest value of every entity, as a fold of events anyone can redo."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from forkyard.errors import StoreError
from forkyard.model.application import Application
from forkyard.model.budget import UsageRow
from forkyard.model.candidate import Candidate
from forkyard.model.events import Entity
from forkyard.model.execution import Exec
from forkyard.model.ids import (
    ApplicationId,
    AttemptId,
    CandidateId,
    EvaluationId,
    ExecId,
    ImageId,
    RunId,
    SnapshotId,
    TemplateId,
    WorkspaceId,
)
from forkyard.model.image import Image, ImageState
from forkyard.model.run import Attempt, Run
from forkyard.model.verdict import Evaluation
from forkyard.model.workspace import (
    Snapshot,
    SnapshotState,
    Spare,
    SpareState,
    Template,
    TemplateState,
    Workspace,
)

_ADAPTERS: dict[str, TypeAdapter[Entity]] = {
    entity.__name__.lower(): TypeAdapter(entity)
    for entity in (
        Template,
        Snapshot,
        Workspace,
        Spare,
        Exec,
        Run,
        Attempt,
        Candidate,
        Evaluation,
        Application,
        UsageRow,
        Image,
    )
}


def kind_of(entity: Entity) -> str:
    """Give the lower-case class name under which an entity is journalled."""
    return type(entity).__name__.lower()


def key_of(entity: Entity) -> tuple[str, str]:
    """Give kind and id, which together name an entity."""
    return kind_of(entity), entity.id


def encode(entity: Entity) -> str:
    """Write an entity as ASCII JSON.

    Paths may hold bytes that are no UTF-8, kept as lone surrogates: only the escaped form of
    the standard library carries those both ways.
    """
    plain = _ADAPTERS[kind_of(entity)].dump_python(entity, mode="json")
    return json.dumps(plain, ensure_ascii=True, separators=(",", ":"))


def decode(kind: str, body: str) -> Entity:
    """Read an entity back.

    Raises:
        StoreError: The kind is unknown or the body does not fit it: a newer or damaged journal.
    """
    try:
        return _ADAPTERS[kind].validate_python(json.loads(body))
    except (KeyError, ValueError, ValidationError) as error:
        msg = f"cannot read the journal: an entry of kind {kind!r} is not understood"
        raise StoreError(
            msg, hint="Use the version that wrote this state directory, or a newer one."
        ) from error


@dataclass(slots=True)
class State:
    """The newest value of every entity, keyed by id. Read it freely; only the journal writes."""

    templates: dict[TemplateId, Template] = field(default_factory=dict)
    snapshots: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    workspaces: dict[WorkspaceId, Workspace] = field(default_factory=dict)
    spares: dict[WorkspaceId, Spare] = field(default_factory=dict)
    """Those that wait; one that is over is forgotten."""
    execs: dict[ExecId, Exec] = field(default_factory=dict)
    runs: dict[RunId, Run] = field(default_factory=dict)
    attempts: dict[AttemptId, Attempt] = field(default_factory=dict)
    candidates: dict[CandidateId, Candidate] = field(default_factory=dict)
    evaluations: dict[EvaluationId, Evaluation] = field(default_factory=dict)
    applications: dict[ApplicationId, Application] = field(default_factory=dict)
    usage: dict[str, UsageRow] = field(default_factory=dict)
    images: dict[ImageId, Image] = field(default_factory=dict)
    """Those whose layers are here; one that is gone is forgotten."""
    _attempts_of: dict[RunId, dict[AttemptId, None]] = field(default_factory=dict)
    _usage_of: dict[AttemptId, dict[str, None]] = field(default_factory=dict)

    def apply(self, entity: Entity) -> None:  # noqa: C901, PLR0912 - a line or two per kind of entity
        """Make one value the newest of its entity."""
        match entity:
            case Template():
                self.templates[entity.id] = entity
            case Snapshot():
                self.snapshots[entity.id] = entity
            case Workspace():
                self.workspaces[entity.id] = entity
            case Spare(state=SpareState.WAITING):
                self.spares[entity.id] = entity
            case Spare():
                self.spares.pop(entity.id, None)
            case Exec():
                self.execs[entity.id] = entity
            case Run():
                self.runs[entity.id] = entity
            case Attempt():
                self.attempts[entity.id] = entity
                self._attempts_of.setdefault(entity.run, {})[entity.id] = None
            case Candidate():
                self.candidates[entity.id] = entity
            case Evaluation():
                self.evaluations[entity.id] = entity
            case Application():
                self.applications[entity.id] = entity
            case UsageRow():
                self.usage[entity.id] = entity
                self._usage_of.setdefault(entity.attempt, {})[entity.id] = None
            case Image(state=ImageState.GONE):
                self.images.pop(entity.id, None)
            case Image():
                self.images[entity.id] = entity

    def __iter__(self) -> Iterator[Entity]:
        """Go through every entity, kind by kind, oldest first within a kind."""
        yield from self.templates.values()
        yield from self.snapshots.values()
        yield from self.workspaces.values()
        yield from self.spares.values()
        yield from self.execs.values()
        yield from self.runs.values()
        yield from self.attempts.values()
        yield from self.candidates.values()
        yield from self.evaluations.values()
        yield from self.applications.values()
        yield from self.usage.values()
        yield from self.images.values()

    def template_named(self, name: str) -> Template | None:
        """Find a template that is not deleted, by name."""
        return next(
            (
                template
                for template in reversed(self.templates.values())
                if template.name == name and template.state is not TemplateState.DELETED
            ),
            None,
        )

    def snapshot_named(self, name: str) -> Snapshot | None:
        """Find a snapshot that is neither deleted nor a sealed derivative, by name or id."""
        gone = (SnapshotState.DELETED, SnapshotState.FAILED)
        exact = self.snapshots.get(SnapshotId(name))
        if exact is not None:
            return exact
        fallback: Snapshot | None = None
        for snapshot in reversed(self.snapshots.values()):
            if snapshot.name != name or snapshot.sealed_of is not None:
                continue
            if snapshot.state not in gone:
                return snapshot
            if snapshot.state is SnapshotState.FAILED and fallback is None:
                fallback = snapshot
        return fallback

    def run_named(self, name: str) -> Run | None:
        """Find a run by id, or the newest run of that name."""
        exact = self.runs.get(RunId(name))
        if exact is not None:
            return exact
        return next((run for run in reversed(self.runs.values()) if run.name == name), None)

    def attempts_of(self, run: RunId) -> tuple[Attempt, ...]:
        """List a run's attempts in the order in which they were submitted."""
        return tuple(self.attempts[attempt] for attempt in self._attempts_of.get(run, ()))

    def usage_of(self, attempt: AttemptId) -> tuple[UsageRow, ...]:
        """List what an attempt spent, by model and day."""
        return tuple(self.usage[row] for row in self._usage_of.get(attempt, ()))


def fold(entities: Iterable[Entity]) -> State:
    """Build the state that a sequence of events leads to."""
    state = State()
    for entity in entities:
        state.apply(entity)
    return state
