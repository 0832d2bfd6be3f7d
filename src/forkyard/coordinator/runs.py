"""Runs as a whole: submitted, cancelled, retried, regraded; and the steps of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forkyard.agents.registry import driver_named
from forkyard.base.clock import Clock
from forkyard.config import Layout
from forkyard.coordinator.commands import Command
from forkyard.coordinator.interface import EvaluatorPort, Ranker, SnapshotsPort
from forkyard.coordinator.logs import set_aside
from forkyard.coordinator.view import ACTIVE_RUN_STATES, CLEANUP_KEPT, CLEANUP_PENDING
from forkyard.errors import (
    ConfigError,
    ConflictError,
    ForkyardError,
    NotFoundError,
    Problem,
    StoreError,
)
from forkyard.model.candidate import Candidate
from forkyard.model.ids import RunId, new_attempt_id, new_run_id
from forkyard.model.run import (
    AgentSpec,
    Attempt,
    AttemptState,
    Run,
    RunLimits,
    RunState,
    Task,
    TaskProgress,
)
from forkyard.model.verdict import Baseline, Evaluation, Ranking
from forkyard.model.workspace import SnapshotState
from forkyard.store.journal import Change, Journal

RETRIED_STATES = frozenset({AttemptState.COULD_NOT_RUN, AttemptState.INTERRUPTED})
"""What `retry` starts again: the ends that are trouble of ours."""


@dataclass(slots=True, kw_only=True)
class Runs:
    """Everything that changes a run's own row."""

    journal: Journal
    snapshots: SnapshotsPort
    evaluator: EvaluatorPort
    rank: Ranker
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
        problems = self._problems(tasks, limits)
        if problems:
            msg = f"cannot submit run {name}: {len(problems)} problem(s)"
            raise ConfigError(msg, problems=tuple(problems))
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
            for number, agent in _in_turns(task)
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
        return await self._update(
            run, lambda now: replace(now, cancel_requested=True), "cancel requested"
        )

    async def retry(self, run: RunId) -> Run:
        """Start the attempts again that trouble of ours ended; the others stay as they are.

        One whose work could not be collected is collected again, not run again.

        Raises:
            NotFoundError: There is none of that id.
            ConflictError: It is not over, nothing of it is to be retried, or a leftover of an
                old attempt is not gone yet.
        """
        found = self._over(run, "retry")
        again = [
            attempt
            for attempt in self.journal.state.attempts_of(run)
            if attempt.state in RETRIED_STATES or attempt.cleanup == CLEANUP_KEPT
        ]
        if not again:
            raise ConflictError(
                f"cannot retry {run}: no attempt of it was ended by trouble of ours",
                hint="Submit the task again for fresh attempts.",
            )
        pending = [attempt.id for attempt in again if attempt.cleanup == CLEANUP_PENDING]
        if pending:
            raise ConflictError(
                f"cannot retry {run}: the old workspace of {pending[0]} is not gone yet",
                hint="Retry in a minute; leftovers are removed every 60 s.",
            )
        tasks = {attempt.task for attempt in again}
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

    # -- steps -------------------------------------------------------------------------------

    async def begin(self, command: Command) -> None:
        """Say that a queued run is being worked on."""
        await self._update(command.run, lambda run: replace(run, state=RunState.RUNNING), "running")

    async def seal(self, command: Command) -> None:
        """Derive the snapshot that the task's attempts fork."""
        task = self.get(command.run).tasks[command.task]
        try:
            snapshot = self.journal.state.snapshots[task.snapshot]
            sealed = await self.snapshots.sealed(snapshot)
        except StoreError:
            raise
        except ForkyardError as error:
            trouble = error.message
            await self._progress(command, lambda one: replace(one, trouble=trouble), trouble)
            return
        await self._progress(command, lambda one: replace(one, sealed=sealed.id), "sealed")

    async def measure_baseline(self, command: Command) -> None:
        """Run the task's checks on the base."""
        run = self.get(command.run)
        sealed = run.progress[command.task].sealed
        if sealed is None:
            return
        try:
            baseline = await self.evaluator.baseline(
                run.tasks[command.task],
                self.journal.state.snapshots[sealed],
                owner=run.id,
                out=self.layout.runs / run.id / f"task-{command.task + 1}",
                repeats=run.limits.baseline_repeats,
            )
        except StoreError:
            raise
        except ForkyardError as error:
            baseline = Baseline(checks=(), trouble=error.message)
        await self._progress(command, lambda one: replace(one, baseline=baseline), "base checked")

    async def block(self, command: Command) -> None:
        """Say that trouble of ours keeps a task from going on."""
        trouble = command.trouble or "trouble of ours"
        ranking = Ranking(summary=f"not ranked: {trouble}")

        def blocked(one: TaskProgress) -> TaskProgress:
            # a second pass means that even the ranking could not be made
            return replace(
                one, trouble=one.trouble or trouble, ranking=ranking if one.trouble else one.ranking
            )

        await self._progress(command, blocked, trouble)

    async def rank_task(self, command: Command) -> None:
        """Order the task's candidates."""
        attempts = [
            attempt
            for attempt in self.journal.state.attempts_of(command.run)
            if attempt.task == command.task
        ]
        candidates: list[Candidate] = []
        evaluations: list[Evaluation] = []
        for attempt in attempts:
            if attempt.candidate is not None and attempt.evaluation is not None:
                candidates.append(self.journal.state.candidates[attempt.candidate])
                evaluations.append(self.journal.state.evaluations[attempt.evaluation])
        ranking = self.rank(candidates, evaluations, attempts)
        await self._progress(command, lambda one: replace(one, ranking=ranking), "ranked")

    async def finish(self, command: Command) -> None:
        """Say that a run is over."""
        attempts = self.journal.state.attempts_of(command.run)

        def finished(run: Run) -> Run:
            if run.cancel_requested:
                state = RunState.CANCELLED
            elif attempts and all(a.state is AttemptState.INTERRUPTED for a in attempts):
                state = RunState.INTERRUPTED
            else:
                state = RunState.FINISHED
            return replace(run, state=state, ended_at=self.clock.now())

        await self._update(command.run, finished, "over")

    # -- small ones --------------------------------------------------------------------------

    def _problems(self, tasks: Sequence[Task], limits: RunLimits) -> list[Problem]:
        problems: list[Problem] = []
        if not tasks:
            problems.append(Problem(message="there must be at least one task", key="tasks"))
        if limits.parallel < 1:
            problems.append(Problem(message="must be at least 1", key="limits.parallel"))
        for index, task in enumerate(tasks):
            where = f"tasks.{index}"
            problems.extend(self._start_problems(task, where))
            if not task.agents:
                problems.append(Problem(message="names no agent", key=f"{where}.agents"))
            names = [agent.name for agent in task.agents]
            problems.extend(
                Problem(message=f"two agents are named {name!r}", key=f"{where}.agents")
                for name in sorted({name for name in names if names.count(name) > 1})
            )
            for place, agent in enumerate(task.agents):
                key = f"{where}.agents.{place}"
                try:
                    problem = driver_named(agent.driver).check(agent)
                except ConfigError as error:
                    problem = error
                if problem is not None:
                    problems.append(Problem(message=problem.message, key=key))
                if agent.attempts < 1:
                    message = f"attempts is {agent.attempts}, must be at least 1"
                    problems.append(Problem(message=message, key=key))
        return problems

    def _start_problems(self, task: Task, where: str) -> list[Problem]:
        snapshot = self.journal.state.snapshots.get(task.snapshot)
        key = f"{where}.start"
        if snapshot is None or snapshot.state is not SnapshotState.READY:
            state = "not there" if snapshot is None else snapshot.state.value
            return [Problem(message=f"snapshot {task.snapshot} is {state}, not ready", key=key)]
        if snapshot.base is None:
            message = f"snapshot {snapshot.name} holds no repository that could be judged"
            return [Problem(message=message, key=key)]
        if snapshot.base.repository != task.repository:
            message = f"snapshot {snapshot.name} has its repository at {snapshot.base.repository}"
            return [Problem(message=message, key=f"{where}.repository")]
        return []

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

    async def _progress(
        self, command: Command, change: Callable[[TaskProgress], TaskProgress], note: str
    ) -> None:
        def changed(run: Run) -> Run:
            progress = list(run.progress)
            progress[command.task] = change(progress[command.task])
            return replace(run, progress=tuple(progress))

        await self._update(command.run, changed, f"task {command.task + 1}: {note}")

    async def _update(self, run: RunId, change: Callable[[Run], Run], note: str) -> Run:
        # several tasks' steps change one row: whoever loses the race looks again
        while True:
            found = self.get(run)
            changed = change(found)
            if changed == found:
                return found
            try:
                await self.journal.append(changed, note, expect=found)
            except ConflictError:
                continue
            return changed


def _in_turns(task: Task) -> list[tuple[int, AgentSpec]]:
    """Order a task's attempts: every agent's first one before any agent's second."""
    most = max((agent.attempts for agent in task.agents), default=0)
    return [
        (number, agent)
        for number in range(1, most + 1)
        for agent in task.agents
        if number <= agent.attempts
    ]


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
