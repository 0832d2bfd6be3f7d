"""Judging one candidate on a clean fork: nothing from the agent's workspace but its tree.

Order inside a fork, while nothing runs in it: the candidate's tree, then the protected paths as
the base has them, then the held-out files; again before every check, since the code of one check
must not prepare the next. No network, and nobody else's files.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint, make_directory
from forkyard.base.masking import Masker
from forkyard.config import Layout
from forkyard.errors import EvaluationError, ForkyardError, StoreError
from forkyard.evaluation.baseline import settle
from forkyard.evaluation.checks import run_check, with_last_words
from forkyard.evaluation.interface import JudgeWorkspaces, Restored, TreeKeeper
from forkyard.evaluation.tamper import steering
from forkyard.evaluation.verdict import Judgement, compare, of_nothing
from forkyard.model.candidate import Candidate, CandidateStatus
from forkyard.model.ids import EvaluationId, new_evaluation_id
from forkyard.model.run import Task
from forkyard.model.verdict import Baseline, CheckRun, Evaluation, VerdictKind
from forkyard.model.workspace import Limits, NetworkPolicy, RecordedBase, Snapshot, Workspace

BASELINE_REPEATS = 2
BASELINE_OWNER = "baseline"
"""Owner of the forks that runs on the base use: nobody's once the server that made them is gone."""
_log = logging.getLogger(__name__)


class Evaluator:
    """Runs a task's checks on the base and on candidates."""

    def __init__(
        self,
        workspaces: JudgeWorkspaces,
        keeper: TreeKeeper,
        layout: Layout,
        clock: Clock,
        masker: Masker | None = None,
    ) -> None:
        """Keep the collaborators; nothing starts yet."""
        self._workspaces = workspaces
        self._keeper = keeper
        self._layout = layout
        self._clock = clock
        self._masker = masker or Masker()

    async def baseline(
        self,
        task: Task,
        snapshot: Snapshot,
        *,
        repeats: int = BASELINE_REPEATS,
        owner: str = BASELINE_OWNER,
        out: Path | None = None,
    ) -> Baseline:
        """Run the checks on the base, each repeat in a fresh fork.

        Args:
            task: Checks, protected paths and held-out files.
            snapshot: Ready, with a recorded base.
            repeats: How often; disagreement makes a test flaky.
            owner: What the forks belong to in the journal.
            out: Folder for logs and reports; by default one below the runs.

        Returns:
            All runs; with `trouble` where the base cannot be judged.

        Raises:
            StoreError: The journal cannot be written.

        Cancellation:
            The fork is deleted all the same.
        """
        runs: list[CheckRun] = []
        kept = out or self._layout.runs / "baselines" / f"{snapshot.id}-{secrets.token_hex(4)}"
        try:
            for number in range(1, repeats + 1 if task.checks else 1):
                folder = kept / str(number)
                runs += (await self._judge(task, snapshot, None, owner=owner, out=folder))[1]
                settled = settle(task.checks, runs)
                if settled.trouble is not None:
                    return settled
        except StoreError:
            raise
        except ForkyardError as error:
            return Baseline(checks=tuple(runs), trouble=str(error))
        return settle(task.checks, runs)

    async def evaluate(
        self,
        task: Task,
        snapshot: Snapshot,
        candidate: Candidate,
        baseline: Baseline,
        *,
        out: Path,
        evaluation_id: EvaluationId | None = None,
    ) -> Evaluation:
        """Judge one candidate.

        Args:
            task: Checks, protected paths and held-out files.
            snapshot: Of the base that the candidate was collected against.
            candidate: An invalid or incomplete one gets that verdict and nothing is run.
            baseline: Of the same task.
            out: Folder for logs and reports.
            evaluation_id: Also the owner of the fork in the journal.

        Returns:
            The evaluation; trouble of ours is the verdict `not-evaluated`.

        Raises:
            StoreError: The journal cannot be written.

        Cancellation:
            The fork is deleted all the same.

        Durability:
            Logs and reports are on disk when this returns; the evaluation itself is the
            caller's to journal.
        """
        identity = evaluation_id or new_evaluation_id()
        judgement = _without_running(task, candidate, baseline)
        told: tuple[str, ...] = ()
        if judgement is None:
            try:
                settings, runs = await self._judge(
                    task, snapshot, candidate, owner=identity, out=out
                )
                judgement = compare(task.checks, baseline, runs)
                told = steering(candidate, settings)
                if candidate.result_tree == candidate.base_tree:
                    judgement = of_nothing(judgement)
            except StoreError:
                raise
            except ForkyardError as error:
                judgement = compare(task.checks, replace(baseline, trouble=str(error)), ())
        failpoint("C18")
        return Evaluation(
            id=identity,
            candidate=candidate.id,
            result_tree=candidate.result_tree,
            verdict=judgement.kind,
            assurance=judgement.assurance,
            created_at=self._clock.now(),
            checks=judgement.checks,
            reasons=(*judgement.reasons, *told),
            trouble=judgement.trouble,
        )

    async def _judge(
        self, task: Task, snapshot: Snapshot, candidate: Candidate | None, *, owner: str, out: Path
    ) -> tuple[tuple[str, ...], list[CheckRun]]:
        """Give the files whose settings were put back at first, and the runs."""
        base = snapshot.base
        if base is None:
            msg = f"cannot judge task {task.name}: snapshot {snapshot.id} has no recorded base"
            raise EvaluationError(msg, hint="Take the snapshot of a workspace with a repository.")
        await asyncio.to_thread(make_directory, out)
        runs: list[CheckRun] = []
        settings: tuple[str, ...] | None = None
        async with self._fork(task, snapshot, owner) as workspace:
            if candidate is not None:
                await self._keeper.materialise(workspace, base, candidate)
            for check in task.checks:
                restored = await self._lay(task, workspace, base)
                # Later ones are of what the checks' own code did.
                settings = restored.settings if settings is None else settings
                run = await run_check(
                    check,
                    workspace.id,
                    task.repository,
                    workspaces=self._workspaces,
                    layout=self._layout,
                    out=out,
                    masker=self._masker,
                )
                # A candidate's words are not repeated in a verdict's reasons.
                runs.append(with_last_words(run, out) if candidate is None else run)
        return settings or (), runs

    async def _lay(self, task: Task, workspace: Workspace, base: RecordedBase) -> Restored:
        restored = await self._keeper.restore(workspace, base, task.protected)
        if task.held_out:
            await self._keeper.add_files(workspace, task.held_out, base.repository)
        return restored

    @asynccontextmanager
    async def _fork(self, task: Task, snapshot: Snapshot, owner: str) -> AsyncIterator[Workspace]:
        workspace = await self._workspaces.create(
            snapshot.id,
            display_name=f"judge of {task.name}",
            ephemeral=True,
            network=NetworkPolicy.NONE,
            limits=None if task.limits == Limits() else task.limits,
            owner=owner,
            is_evaluation=True,
        )
        try:
            yield workspace
        finally:
            try:
                await self._workspaces.delete(workspace.id)
            except StoreError:
                raise
            except ForkyardError as error:
                # The verdict stands; the reaper takes what is left, since the row says deleting.
                _log.warning("Could not delete %s: %s", workspace.id, error)


def _without_running(task: Task, candidate: Candidate, baseline: Baseline) -> Judgement | None:
    match candidate.status:
        case CandidateStatus.INVALID:
            why = candidate.problems or ("no reason is recorded",)
            reasons = tuple(f"cannot be carried: {problem}" for problem in why)
            return Judgement(kind=VerdictKind.INVALID, reasons=reasons)
        case CandidateStatus.INCOMPLETE:
            why = candidate.problems or ("a hard limit stopped the collection",)
            reasons = tuple(f"is not whole: {problem}" for problem in why)
            return Judgement(kind=VerdictKind.INCOMPLETE, reasons=reasons)
        case CandidateStatus.COMPLETE:
            if baseline.trouble is None and task.checks:
                return None
            return compare(task.checks, baseline, ())
