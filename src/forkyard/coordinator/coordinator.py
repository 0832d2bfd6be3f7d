"""The coordinator as the server sees it: one object that is started, asked, and closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.masking import Masker
from forkyard.config import Layout
from forkyard.coordinator.agent_steps import AgentSteps
from forkyard.coordinator.attempts import AttemptSteps
from forkyard.coordinator.collect_step import CollectStep
from forkyard.coordinator.disk import DiskFloor
from forkyard.coordinator.interface import (
    AgentsPort,
    CollectorPort,
    EvaluatorPort,
    FleetPort,
    Ranker,
    SnapshotsPort,
    WorkspacesPort,
)
from forkyard.coordinator.logs import log_files
from forkyard.coordinator.metering import Metering
from forkyard.coordinator.reaper import Reaper
from forkyard.coordinator.reconciler import Deadlines, Reconciler, default_parallel_limit
from forkyard.coordinator.rows import Rows
from forkyard.coordinator.runs import Runs
from forkyard.coordinator.task_steps import TaskSteps
from forkyard.coordinator.usage import UsageCopier
from forkyard.errors import NotFoundError
from forkyard.gateway.interface import Gateway
from forkyard.model.ids import AttemptId, RunId
from forkyard.model.run import Run, RunLimits, Task
from forkyard.store.journal import Journal

_log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0
"""Keeps a loop that breaks at once from filling the log and the processor."""


class Coordinator:
    """Runs, from submission to ranking, and the tidying up around them.

    Start it after the workspaces have recovered: it relies on their rows being true. Several
    starts and closes over one journal are safe; the second start of a state at rest changes
    nothing.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        workspaces: WorkspacesPort,
        snapshots: SnapshotsPort,
        agents: AgentsPort,
        gateway: Gateway | None,
        collector: CollectorPort,
        evaluator: EvaluatorPort,
        rank: Ranker,
        fleet: FleetPort,
        layout: Layout,
        clock: Clock,
        parallel_limit: int | None = None,
        floor: DiskFloor | None = None,
        masker: Masker | None = None,
    ) -> None:
        """Wire the parts; nothing begins before `start`.

        Args:
            journal: Open.
            workspaces: Recovered before `start`.
            snapshots: For sealing.
            agents: Installs what attempts run.
            gateway: Lets agents in to their models; None: nobody.
            collector: For candidates.
            evaluator: For baselines and verdicts.
            rank: For rankings.
            fleet: For the reaper.
            layout: Where results are kept.
            clock: For deadlines and records.
            parallel_limit: Attempts at once on this machine; default two a core, at least four.
            floor: What must stay free on the disk.
            masker: Takes secrets out of what is kept of agents' output.
        """
        masker = masker or Masker()
        deadlines = Deadlines(clock)
        self._journal = journal
        self._layout = layout
        self.runs = Runs(journal=journal, layout=layout, clock=clock)
        tasks = TaskSteps(
            journal=journal,
            snapshots=snapshots,
            evaluator=evaluator,
            rank=rank,
            layout=layout,
            clock=clock,
        )
        rows = Rows(journal=journal, clock=clock)
        self.usage = None if gateway is None else UsageCopier(journal=journal, gateway=gateway)
        metering = Metering(gateway=gateway, usage=self.usage, clock=clock)
        steps = AttemptSteps(
            rows=rows,
            workspaces=workspaces,
            agents=agents,
            metering=metering,
            evaluator=evaluator,
            layout=layout,
            floor=floor or DiskFloor(directory=layout.home),
            masker=masker,
        )
        agent_steps = AgentSteps(
            rows=rows,
            workspaces=workspaces,
            metering=metering,
            remaining_seconds=lambda run: deadlines.remaining_seconds(journal.state.runs[run]),
        )
        self.reconciler = Reconciler(
            journal=journal,
            tasks=tasks,
            steps=steps,
            agents=agent_steps,
            collecting=CollectStep(
                rows=rows,
                workspaces=workspaces,
                collector=collector,
                metering=metering,
                layout=layout,
                mask=masker.mask,
            ),
            metering=metering,
            clock=clock,
            deadlines=deadlines,
            parallel_limit=parallel_limit or default_parallel_limit(),
        )
        self.reaper = Reaper(
            journal=journal, workspaces=workspaces, fleet=fleet, steps=steps, layout=layout
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def active(self) -> int:
        """Count the runs that are not over."""
        return self.reconciler.active

    async def start(self) -> None:
        """Remove what an earlier server left, then take up every run that is not over."""
        for line in await self.reaper.at_start():
            _log.info("Reaped %s", line)
        self._tasks = [
            asyncio.create_task(_for_ever(self.reconciler.run), name="reconciler"),
            asyncio.create_task(_for_ever(self.reaper.run), name="reaper"),
        ]

    async def close(self) -> None:
        """Stop working; agents go on in their sandboxes, and the next server attaches to them."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def submit(self, name: str, tasks: Sequence[Task], limits: RunLimits) -> Run:
        """Queue a run with all its attempts; see `Runs.submit`."""
        return await self.runs.submit(name, tasks, limits)

    async def cancel(self, run: RunId) -> Run:
        """Ask a run to end; see `Runs.cancel`."""
        return await self.runs.cancel(run)

    async def retry(self, run: RunId) -> Run:
        """Start again what trouble of ours ended; see `Runs.retry`."""
        self.reconciler.forget_failures(run)
        return await self.runs.retry(run)

    async def regrade(self, run: RunId) -> Run:
        """Evaluate the candidates again; see `Runs.regrade`."""
        self.reconciler.forget_failures(run)
        return await self.runs.regrade(run)

    async def wait(self, run: RunId) -> Run:
        """Wait until a run is over; see `Runs.wait`."""
        return await self.runs.wait(run)

    def logs(self, attempt: AttemptId) -> tuple[Path, ...]:
        """Say where an attempt's standard output and standard error lie now.

        Raises:
            NotFoundError: There is no such attempt.
        """
        found = self._journal.state.attempts.get(attempt)
        if found is None:
            raise NotFoundError(
                f"cannot find attempt {attempt}", hint="List them with `forkyard status RUN`."
            )
        return log_files(self._layout, found)


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Begin a loop again that a bug of ours ended; it decides from the journal, not memory."""
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - runs must not hang because of it
            _log.exception("A loop of the coordinator ended; it begins again")
        await asyncio.sleep(RESTART_SECONDS)
