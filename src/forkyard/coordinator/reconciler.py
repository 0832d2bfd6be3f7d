"""Making the machine do what `decide` says: start what is not in flight, stop what is not wanted.

The loop wakes when the journal changes, when a command ends, and when time alone can change the
decision. A command that fails for reasons of ours is tried again later; whether it was too often
is `decide`'s to say. Closing leaves agents running: the next server attaches to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from forkyard.base.clock import Clock
from forkyard.coordinator.agent_steps import AgentSteps
from forkyard.coordinator.attempts import AttemptSteps
from forkyard.coordinator.collect_step import CollectStep
from forkyard.coordinator.commands import Command, CommandKind
from forkyard.coordinator.decide import decide, next_wake
from forkyard.coordinator.metering import Metering
from forkyard.coordinator.task_steps import TaskSteps
from forkyard.coordinator.view import ACTIVE_RUN_STATES, Failure, View
from forkyard.errors import ConflictError, ForkyardError, StoreError
from forkyard.model.ids import RunId
from forkyard.model.run import Run
from forkyard.store.journal import Journal

_log = logging.getLogger(__name__)

TOGETHER_SECONDS = 0.002
"""What changes within this time is decided on at once, after whoever waits for the change was
answered."""

RETRY_SECONDS = (0.5, 2.0, 5.0, 15.0)
"""Before the second, third, … try; the last one repeats."""


def default_parallel_limit() -> int:
    """Give how many attempts this machine works on at once: two a core, at least four."""
    return max(4, 2 * (os.cpu_count() or 1))


class Deadlines:
    """Runs' deadlines on the monotonic clock.

    The journal keeps wall time, which may jump; so it is read once, clamped to what the run was
    given, and from then on only the monotonic clock counts.
    """

    def __init__(self, clock: Clock) -> None:
        """Know of none yet."""
        self._clock = clock
        self._known: dict[RunId, tuple[str, float]] = {}

    def of(self, run: Run) -> float | None:
        """Give a run's deadline; None where it has none."""
        if run.deadline_at is None or run.limits.deadline_seconds is None:
            return None
        known = self._known.get(run.id)
        if known is None or known[0] != run.deadline_at:
            left = datetime.fromisoformat(run.deadline_at) - datetime.fromisoformat(
                self._clock.now()
            )
            seconds = min(max(left.total_seconds(), 0.0), run.limits.deadline_seconds)
            known = (run.deadline_at, self._clock.monotonic() + seconds)
            self._known[run.id] = known
        return known[1]

    def forget(self, run: RunId) -> None:
        """Drop a run that is over."""
        self._known.pop(run, None)

    def remaining_seconds(self, run: Run) -> float | None:
        """Give the seconds until a run's deadline, 0 when it passed; None where it has none."""
        deadline = self.of(run)
        return None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)


@dataclass(slots=True)
class _InFlight:
    command: Command
    task: asyncio.Task[None]
    is_unwanted: bool = False


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """See the module. `run` is the loop; it ends when it is cancelled."""

    journal: Journal
    tasks: TaskSteps
    steps: AttemptSteps
    agents: AgentSteps
    collecting: CollectStep
    metering: Metering
    clock: Clock
    deadlines: Deadlines
    parallel_limit: int = field(default_factory=default_parallel_limit)
    _in_flight: dict[str, _InFlight] = field(default_factory=dict)
    """By subject."""
    _failures: dict[str, Failure] = field(default_factory=dict)
    """By command key."""
    _failed_of: dict[RunId, set[str]] = field(default_factory=dict)
    _poked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def active(self) -> int:
        """Count the runs that are not over."""
        return sum(run.state in ACTIVE_RUN_STATES for run in self.journal.state.runs.values())

    async def run(self) -> None:
        """Reconcile until cancelled.

        Cancellation:
            Commands in flight are cancelled; agents go on in their sandboxes.
        """
        try:
            async with asyncio.TaskGroup() as group:
                # from what is known now: an entry that lands before the watcher first runs counts
                watcher = group.create_task(self._watch(self.journal.sequence))
                self.metering.on_change = self._poked.set
                follower = group.create_task(self.metering.follow(), name="gateway")
                try:
                    while True:
                        self._poked.clear()
                        view = self._view()
                        now = self.clock.monotonic()
                        self._reconcile(group, decide(view, now))
                        wake = next_wake(view, now)
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(None if wake is None else wake - now):
                                await self._poked.wait()
                finally:
                    watcher.cancel()
                    follower.cancel()
        finally:
            self._in_flight.clear()

    def forget_failures(self, run: RunId) -> None:
        """Count anew for a run that is over, or begins again."""
        for key in self._failed_of.pop(run, ()):
            self._failures.pop(key, None)

    def _view(self) -> View:
        deadlines: dict[RunId, float] = {}
        for run in self.journal.state.runs.values():
            if run.state not in ACTIVE_RUN_STATES:
                self.deadlines.forget(run.id)
                self.forget_failures(run.id)
                self.metering.forget(run.id)
                continue
            deadline = self.deadlines.of(run)
            if deadline is not None:
                deadlines[run.id] = deadline
        return View(
            state=self.journal.state,
            parallel_limit=self.parallel_limit,
            in_flight=frozenset(flight.command.key for flight in self._in_flight.values()),
            deadlines=deadlines,
            failures=self._failures,
            exhausted=self.metering.exhausted,
            spent=self.metering.spent,
        )

    def _reconcile(self, group: asyncio.TaskGroup, wanted: tuple[Command, ...]) -> None:
        by_subject = {command.subject: command for command in wanted}
        for subject, flight in self._in_flight.items():
            want = by_subject.get(subject)
            if want is not None and want.key == flight.command.key:
                flight.is_unwanted = False
            elif flight.is_unwanted:
                if flight.task.cancelling():
                    continue
                flight.task.cancel()  # its successor starts when it has ended, not before
            else:
                # most often its own last entry made it unwanted: let it end by itself first
                flight.is_unwanted = True
                asyncio.get_running_loop().call_soon(self._poked.set)
        for subject, command in by_subject.items():
            if subject not in self._in_flight:
                task = group.create_task(self._carry_out(command), name=command.key)
                self._in_flight[subject] = _InFlight(command, task)
                # not at the end of its own code: one that is cancelled at once never runs any
                task.add_done_callback(partial(self._landed, subject))

    async def _watch(self, seen: int) -> None:
        while True:
            seen = await self.journal.wait_for_change(seen)
            await asyncio.sleep(TOGETHER_SECONDS)
            self._poked.set()

    async def _carry_out(self, command: Command) -> None:
        try:
            await self._step(command)(command)
        except ConflictError as error:
            # the row changed meanwhile: the next decision sees what it is now
            self._remember(command, error, counts=False)
        except StoreError as error:
            _log.warning("Cannot journal %s: %s", command.key, error)
            self._remember(command, error, counts=False)
        except ForkyardError as error:
            _log.warning("Step %s did not succeed: %s", command.key, error)
            self._remember(command, error, counts=True)
        except Exception as error:  # noqa: BLE001 - one step's bug must not end all runs
            _log.exception("Step %s met a bug of ours", command.key)
            self._remember(command, error, counts=True)
        else:
            self._failures.pop(command.key, None)

    def _landed(self, subject: str, _: asyncio.Task[None]) -> None:
        self._in_flight.pop(subject, None)
        self._poked.set()

    def _remember(self, command: Command, error: Exception, *, counts: bool) -> None:
        before = self._failures.get(command.key)
        tries = (before.count if before else 0) + (1 if counts else 0)
        pause = RETRY_SECONDS[min(tries, len(RETRY_SECONDS)) - 1] if tries else RETRY_SECONDS[0]
        message = error.message if isinstance(error, ForkyardError) else f"a bug of ours: {error!r}"
        self._failed_of.setdefault(command.run, set()).add(command.key)
        self._failures[command.key] = Failure(
            count=tries, retry_at=self.clock.monotonic() + pause, message=message
        )

    def _step(self, command: Command) -> Callable[[Command], Awaitable[None]]:
        steps: dict[CommandKind, Callable[[Command], Awaitable[None]]] = {
            CommandKind.BEGIN: self.tasks.begin,
            CommandKind.SEAL: self.tasks.seal,
            CommandKind.BASELINE: self.tasks.measure_baseline,
            CommandKind.BLOCK: self.tasks.block,
            CommandKind.RANK: self.tasks.rank_task,
            CommandKind.FINISH: self.tasks.finish,
            CommandKind.PREPARE: self.steps.prepare,
            CommandKind.RUN_AGENT: self.agents.run_agent,
            CommandKind.STOP_AGENT: self.agents.stop_agent,
            CommandKind.COLLECT: self.collecting.collect,
            CommandKind.EVALUATE: self.steps.evaluate,
            CommandKind.LEAVE_UNJUDGED: self.steps.evaluate,
            CommandKind.END: self.steps.end,
            CommandKind.CLEAN_UP: self.steps.clean_up,
        }
        return steps[command.kind]
