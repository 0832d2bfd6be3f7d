"""What nothing needs any more, by the journal alone: pure.

What stays whatever its age: everything that a person named (templates, snapshots, workspaces), all
runs with their attempts' candidates, patches and logs, and what stands on something that stays.
What may go is what Forkyard made by itself on the way: the snapshot of a repository that a run
started from, records of applications, snapshots that failed. A run whose snapshot is gone can
still be compared and applied, but neither retried nor regraded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from forkyard.coordinator.view import ACTIVE_RUN_STATES, CLEANUP_DONE
from forkyard.model.application import Application, ApplicationState
from forkyard.model.ids import ApplicationId, SnapshotId
from forkyard.model.run import Run
from forkyard.model.workspace import (
    RepositorySource,
    Snapshot,
    SnapshotState,
    Template,
    TemplateSpec,
    TemplateState,
)
from forkyard.store.projections import State

KEPT_SECONDS = 7 * 86400.0
"""How long after its run a snapshot of its repository is kept for `retry` and `regrade`."""

GRACE_SECONDS = 3600.0
"""What is younger may belong to something that is not journalled yet, however little is kept."""

UNDO_SECONDS = 90 * 86400.0
"""How long an application can be undone; the newest of each tree can be for ever."""

_LIVE = frozenset({SnapshotState.PENDING, SnapshotState.READY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unneeded:
    """What may be removed, oldest first."""

    snapshots: tuple[Snapshot, ...]
    templates: tuple[Template, ...]
    """Whose snapshots are all gone, or among those."""
    records: tuple[Application, ...]


def automatic_name(run: str, path: str) -> str:
    """Name the template that a run from a repository on disk makes: one for one folder."""
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{run[:60]}-{digest[:8]}"


def is_automatic(template: Template) -> bool:
    """Say whether a run made a template, and no person."""
    source = template.spec.repository
    if source is None or source.path is None or source.url is not None:
        return False
    plain = TemplateSpec(
        repository=RepositorySource(
            path=source.path, include_uncommitted=source.include_uncommitted
        )
    )
    digest = automatic_name("", source.path)
    return template.spec == plain and template.name.endswith(digest)


def unneeded(state: State, now: str, *, older_than_seconds: float = KEPT_SECONDS) -> Unneeded:
    """Say what nothing needs.

    Args:
        state: The journal's.
        now: Wall time.
        older_than_seconds: Since the run that used it ended.
    """
    ages = _Ages(now)
    automatic = {t.name: t for t in state.templates.values() if is_automatic(t)}
    snapshots = tuple(_snapshots(state, automatic, ages, older_than_seconds))
    gone = {snapshot.id for snapshot in snapshots}
    templates = tuple(
        template
        for template in automatic.values()
        if template.state not in {TemplateState.BUILDING, TemplateState.DELETED}
        and not any(_is_built(one, template) and one.id not in gone for one in _live(state))
    )
    return Unneeded(
        snapshots=snapshots,
        templates=templates,
        records=tuple(_records(state, ages, older_than_seconds)),
    )


class _Ages:
    def __init__(self, now: str) -> None:
        self._now = datetime.fromisoformat(now)

    def of(self, moment: str | None) -> float:
        """Give the seconds since a moment; one that cannot be read is now."""
        try:
            return (self._now - datetime.fromisoformat(moment or "")).total_seconds()
        except (ValueError, TypeError):
            return 0.0


def _live(state: State) -> Iterator[Snapshot]:
    """Give those that live by themselves: sealed copies go with what they are copies of."""
    return (one for one in state.snapshots.values() if one.state in _LIVE and one.sealed_of is None)


def _is_built(snapshot: Snapshot, template: Template) -> bool:
    name, at, number = snapshot.name.rpartition("@")
    return bool(at) and number.isdecimal() and name == template.name


def _snapshots(
    state: State, automatic: dict[str, Template], ages: _Ages, older_than: float
) -> Iterator[Snapshot]:
    used: dict[SnapshotId, list[Run]] = {}
    for run in state.runs.values():
        for task in run.tasks:
            used.setdefault(task.snapshot, []).append(run)
    for snapshot in state.snapshots.values():
        age = ages.of(snapshot.created_at)
        if snapshot.state is SnapshotState.FAILED:
            # It holds no file; its row says why for as long as somebody may wonder.
            if age > max(older_than, GRACE_SECONDS):
                yield snapshot
            continue
        template = automatic.get(snapshot.name.rpartition("@")[0])
        if snapshot.state is not SnapshotState.READY or snapshot.sealed_of is not None:
            continue
        if template is None or not _is_built(snapshot, template):
            continue
        runs = used.get(snapshot.id, [])
        if runs:
            is_unneeded = all(
                _is_over(run, state) and ages.of(run.ended_at) >= older_than for run in runs
            )
        else:
            # Taking in several repositories may last hours before the run is journalled.
            is_unneeded = age > max(older_than, 24 * GRACE_SECONDS)
        if is_unneeded:
            yield snapshot


def _is_over(run: Run, state: State) -> bool:
    if run.state in ACTIVE_RUN_STATES:
        return False
    return all(attempt.cleanup == CLEANUP_DONE for attempt in state.attempts_of(run.id))


def _records(state: State, ages: _Ages, older_than: float) -> Iterator[Application]:
    newest: dict[str, ApplicationId] = {
        one.target: one.id
        for one in state.applications.values()
        if one.state is ApplicationState.APPLIED
    }
    for one in state.applications.values():
        age = ages.of(one.created_at)
        if one.state is ApplicationState.UNDONE:
            # Of paths that were left alone only the record has what lay there before.
            limit = UNDO_SECONDS if one.left else older_than
        elif one.state is ApplicationState.APPLIED and newest[one.target] != one.id:
            limit = UNDO_SECONDS
        else:
            continue
        if age > max(limit, GRACE_SECONDS):
            yield one
