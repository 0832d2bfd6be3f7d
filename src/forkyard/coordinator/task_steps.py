"""The steps of a run and its tasks: sealed, measured, ranked, finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from forkyard.base.clock import Clock
from forkyard.config import Layout
from forkyard.coordinator.commands import Command
from forkyard.coordinator.interface import EvaluatorPort, Ranker, SnapshotsPort
from forkyard.errors import ConflictError, ForkyardError, StoreError
from forkyard.model.candidate import Candidate
from forkyard.model.ids import RunId
from forkyard.model.run import AttemptState, Run, RunState, TaskProgress
from forkyard.model.verdict import Baseline, Evaluation, Ranking
from forkyard.store.journal import Journal


@dataclass(slots=True, kw_only=True)
class TaskSteps:
    """See the module."""

    journal: Journal
    snapshots: SnapshotsPort
    evaluator: EvaluatorPort
    rank: Ranker
    layout: Layout
    clock: Clock

    async def begin(self, command: Command) -> None:
        """Say that a queued run is being worked on."""
        await update_run(
            self.journal, command.run, lambda run: replace(run, state=RunState.RUNNING), "running"
        )

    async def seal(self, command: Command) -> None:
        """Derive the snapshot that the task's attempts fork."""
        task = self.journal.state.runs[command.run].tasks[command.task]
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
        run = self.journal.state.runs[command.run]
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

        await update_run(self.journal, command.run, finished, "over")

    async def _progress(
        self, command: Command, change: Callable[[TaskProgress], TaskProgress], note: str
    ) -> None:
        def changed(run: Run) -> Run:
            progress = list(run.progress)
            progress[command.task] = change(progress[command.task])
            return replace(run, progress=tuple(progress))

        await update_run(self.journal, command.run, changed, f"task {command.task + 1}: {note}")


async def update_run(journal: Journal, run: RunId, change: Callable[[Run], Run], note: str) -> Run:
    """Change a run's row.

    Durability:
        On disk when this returns.
    """
    # several tasks' steps change one row: whoever loses the race looks again
    while True:
        found = journal.state.runs[run]
        changed = change(found)
        if changed == found:
            return found
        try:
            await journal.append(changed, note, expect=found)
        except ConflictError:
            continue
        return changed
