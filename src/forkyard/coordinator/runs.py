"""What people ask of runs: submit, cancel, retry, regrade, wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forkyard.base.clock import Clock
from forkyard.config import Layout
from forkyard.coordinator.logs import set_aside
from forkyard.coordinator.submission import in_turns, submission_problems
from forkyard.coordinator.task_steps import update_run
from forkyard.coordinator.view import ACTIVE_RUN_STATES, CLEANUP_KEPT, CLEANUP_PENDING
from forkyard.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
)
from forkyard.model.ids import RunId, new_attempt_id, new_run_id
from forkyard.model.run import (
    Attempt,
    AttemptState,
    Failure,
    Run,
    RunLimits,
    RunState,
    Task,
    TaskProgress,
)
from forkyard.model.workspace import SnapshotState
from forkyard.store.journal import Change, Journal

RETRIED_STATES = frozenset({AttemptState.COULD_NOT_RUN, AttemptState.INTERRUPTED})
"""What `retry` starts again: the ends that are trouble of ours."""
RETRIED_FAILURES = frozenset({Failure.PROVIDER, Failure.OURS})
"""And these, where nothing was changed."""


@dataclass(slots=True, kw_only=True)
class Runs:
    """See the module."""

    journal: Journal
    layout: Layout
    clock: Clock

    # -- what people ask for -----------------------------------------------------------------

    async def submit(self, name: str, tasks: Sequence[Task], limits: RunLimits) -> Run:
        """Queue a run with all its attempts.

        Raises:
            ConfigError: Something in it cannot be honoured; every problem at once.

        Durability:
            Run and attempts are on disk, together, when this returns.
        """
        problems = submission_problems(tasks, limits, self.journal.state)
        if problems:
            count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
            msg = f"cannot submit run {name}: {count}: {problems[0]}"
            raise ConfigError(
                msg, hint="Correct them, then submit it again.", problems=tuple(problems)
            )
        now = self.clock.now()
        run = Run(
            id=new_run_id(),
            name=name,
            tasks=tuple(tasks),
            progress=tuple(TaskProgress() for _ in tasks),
            limits=limits,
            state=RunState.QUEUED,
            created_at=now,
            deadline_at=_deadline(now, limits),
        )
        attempts = [
            Attempt(
                id=new_attempt_id(),
                run=run.id,
                task=index,
                agent=agent.name,
                number=number,
                epoch=1,
                state=AttemptState.QUEUED,
                created_at=now,
            )
            for index, task in enumerate(run.tasks)
            for number, agent in in_turns(task)
        ]
        await self.journal.append_all(
            [
                Change(entity=run, note="submitted", expect=None),
                *(Change(entity=attempt, note="queued", expect=None) for attempt in attempts),
            ]
        )
        return run

    async def cancel(self, run: RunId) -> Run:
        """Ask a run to end; what its attempts did so far is kept. Twice is fine.

        Raises:
            NotFoundError: There is none of that id.
            ConflictError: It is over already.

        Durability:
            The wish is on disk when this returns; `wait` tells when it has come true.
        """
        found = self.get(run)
        if found.state not in ACTIVE_RUN_STATES:
            raise ConflictError(
                f"cannot cancel {run}: it is {found.state} already",
                hint=f"Look at what it yielded with `forkyard compare {run}`.",
            )
        return await update_run(
            self.journal, run, lambda now: replace(now, cancel_requested=True), "cancel requested"
        )

    async def retry(self, run: RunId) -> Run:
        """Start the attempts again that trouble of ours or a provider's ended.

        The others stay as they are, and so does one that left a change before its provider
        broke off.

        One whose work could not be collected is collected again, not run again.

        Raises:
            NotFoundError: There is none of that id.
            ConflictError: It is not over, nothing of it is to be retried, or a leftover of an
                old attempt is not gone yet.
        """
        found = self._over(run, "retry")
        again = [
            attempt for attempt in self.journal.state.attempts_of(run) if self._is_retried(attempt)
        ]
        if not again:
            raise ConflictError(
                f"cannot retry {run}: no trouble of ours or a provider's ended an attempt",
                hint="Submit the task again for fresh attempts.",
            )
        pending = [attempt.id for attempt in again if attempt.cleanup == CLEANUP_PENDING]
        if pending:
            raise ConflictError(
                f"cannot retry {run}: the old workspace of {pending[0]} is not gone yet",
                hint="Retry in a minute; leftovers are removed every 60 s.",
            )
        tasks = {attempt.task for attempt in again}
        self._refuse_without_start(found, tasks, "retry")
        progress = tuple(
            _fresh(one) if index in tasks else one for index, one in enumerate(found.progress)
        )
        changes = [self._reopened(found, progress)]
        for attempt in again:
            if attempt.cleanup == CLEANUP_KEPT:
                fresh = _recollected(attempt)
            else:
                await asyncio.to_thread(set_aside, self.layout, attempt)
                fresh = _requeued(attempt)
            changes.append(
                Change(entity=fresh, note=f"retried, epoch {fresh.epoch}", expect=attempt)
            )
        await self.journal.append_all(changes)
        return self.get(run)

    async def regrade(self, run: RunId) -> Run:
        """Evaluate every candidate again, on a base that is checked again.

        Raises:
            NotFoundError: There is none of that id.
            ConflictError: It is not over, or has no candidate.
        """
        found = self._over(run, "regrade")
        again = [
            attempt
            for attempt in self.journal.state.attempts_of(run)
            if attempt.candidate is not None and attempt.cleanup != CLEANUP_KEPT
        ]
        if not again:
            raise ConflictError(
                f"cannot regrade {run}: none of its attempts yielded a candidate",
                hint="Retry it, or submit the task again.",
            )
        tasks = {attempt.task for attempt in again}
        self._refuse_without_start(found, tasks, "regrade")
        progress = tuple(
            replace(_fresh(one), baseline=None) if index in tasks else one
            for index, one in enumerate(found.progress)
        )
        changes = [self._reopened(found, progress)]
        changes.extend(
            Change(
                entity=replace(
                    attempt,
                    state=AttemptState.EVALUATING,
                    ending=attempt.state,
                    evaluation=None,
                    ended_at=None,
                ),
                note="regraded",
                expect=attempt,
            )
            for attempt in again
        )
        await self.journal.append_all(changes)
        return self.get(run)

    async def wait(self, run: RunId) -> Run:
        """Wait until a run is over.

        Cancellation:
            Safe at any point; the run goes on.
        """
        while self.get(run).state in ACTIVE_RUN_STATES:
            await self.journal.wait_for_change(self.journal.sequence)
        return self.get(run)

    def get(self, run: RunId) -> Run:
        """Find a run.

        Raises:
            NotFoundError: There is none of that id.
        """
        found = self.journal.state.runs.get(run)
        if found is None:
            raise NotFoundError(f"cannot find run {run}", hint="List runs with `forkyard status`.")
        return found

    def _refuse_without_start(self, run: Run, tasks: set[int], verb: str) -> None:
        for index in tasks:
            task = run.tasks[index]
            snapshot = self.journal.state.snapshots.get(task.snapshot)
            if snapshot is None or snapshot.state is not SnapshotState.READY:
                raise ConflictError(
                    f"cannot {verb} {run.id}: the snapshot that task {task.name} started from is"
                    " gone",
                    hint="Its candidates can still be compared and applied; submit it again.",
                )

    # -- small ones --------------------------------------------------------------------------

    def _is_retried(self, attempt: Attempt) -> bool:
        if attempt.state in RETRIED_STATES or attempt.cleanup == CLEANUP_KEPT:
            return True
        if attempt.failure not in RETRIED_FAILURES or attempt.candidate is None:
            return False
        candidate = self.journal.state.candidates[attempt.candidate]
        return candidate.result_tree == candidate.base_tree

    def _over(self, run: RunId, verb: str) -> Run:
        found = self.get(run)
        if found.state in ACTIVE_RUN_STATES:
            raise ConflictError(
                f"cannot {verb} {run}: it is {found.state}, and only one that is over can be",
                hint=f"Wait with `forkyard watch {run}`, or cancel it.",
            )
        return found

    def _reopened(self, run: Run, progress: tuple[TaskProgress, ...]) -> Change:
        fresh = replace(
            run,
            state=RunState.RUNNING,
            progress=progress,
            ended_at=None,
            cancel_requested=False,
            deadline_at=_deadline(self.clock.now(), run.limits),
        )
        return Change(entity=fresh, note="reopened", expect=run)


def _fresh(progress: TaskProgress) -> TaskProgress:
    baseline = progress.baseline
    if baseline is not None and baseline.trouble is not None:
        baseline = None
    return replace(progress, ranking=None, trouble=None, baseline=baseline)


def _requeued(attempt: Attempt) -> Attempt:
    return Attempt(
        id=attempt.id,
        run=attempt.run,
        task=attempt.task,
        agent=attempt.agent,
        number=attempt.number,
        epoch=attempt.epoch + 1,
        state=AttemptState.QUEUED,
        created_at=attempt.created_at,
    )


def _recollected(attempt: Attempt) -> Attempt:
    return replace(
        attempt,
        state=AttemptState.COLLECTING,
        ended_at=None,
        trouble=None,
        cleanup=CLEANUP_PENDING,
    )


def _deadline(now: str, limits: RunLimits) -> str | None:
    if limits.deadline_seconds is None:
        return None
    moment = datetime.fromisoformat(now) + timedelta(seconds=limits.deadline_seconds)
    return moment.isoformat(timespec="milliseconds")
