"""`decide` under any interleaving: each attempt ends exactly once, limits hold, nothing hangs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.coordinator.commands import Command, CommandKind
from forkyard.coordinator.decide import DEADLINE_GRACE_SECONDS, decide, next_wake
from forkyard.coordinator.view import MOST_TRIES, WORKING_STATES, Failure, View
from forkyard.model.ids import (
    AttemptId,
    RunId,
    WorkspaceId,
    new_attempt_id,
    new_candidate_id,
    new_run_id,
    new_snapshot_id,
)
from forkyard.model.run import (
    TERMINAL_ATTEMPT_STATES,
    AgentSpec,
    Attempt,
    AttemptState,
    Run,
    RunLimits,
    RunState,
    Task,
    TaskProgress,
)
from forkyard.model.verdict import Baseline, Ranking
from forkyard.store.projections import State

DEADLINE = 100.0


@dataclass(slots=True)
class Machine:
    """A reconciler in miniature: commands take effect whole, or are lost in a crash."""

    parallel_limit: int
    state: State = field(default_factory=State)
    now: float = 0.0
    in_flight: dict[str, Command] = field(default_factory=dict)
    deadlines: dict[RunId, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    ends: Counter[AttemptId] = field(default_factory=Counter)
    agent_ends: Counter[AttemptId] = field(default_factory=Counter)

    def view(self) -> View:
        """Give what a decision sees."""
        return View(
            state=self.state,
            parallel_limit=self.parallel_limit,
            in_flight=frozenset(command.key for command in self.in_flight.values()),
            deadlines=self.deadlines,
            failures=self.failures,
        )

    def reconcile(self) -> None:
        """Start what is wanted, drop what is not."""
        wanted = decide(self.view(), self.now)
        subjects = [command.subject for command in wanted]
        assert len(subjects) == len(set(subjects))
        by_subject = {command.subject: command for command in wanted}
        for subject, command in list(self.in_flight.items()):
            want = by_subject.get(subject)
            if want is None or want.key != command.key:
                del self.in_flight[subject]
        for subject, command in by_subject.items():
            self.in_flight.setdefault(subject, command)
        self._check_limits()

    def _check_limits(self) -> None:
        held = {
            attempt.id
            for attempt in self.state.attempts.values()
            if attempt.state in WORKING_STATES
        }
        held |= {
            command.attempt
            for command in self.in_flight.values()
            if command.kind in (CommandKind.PREPARE, CommandKind.EVALUATE)
            and command.attempt is not None
        }
        tasks = sum(
            command.kind in (CommandKind.SEAL, CommandKind.BASELINE)
            for command in self.in_flight.values()
        )
        assert len(held) + tasks <= self.parallel_limit
        per_run = Counter(self.state.attempts[attempt].run for attempt in held)
        for run, count in per_run.items():
            assert count <= self.state.runs[run].limits.parallel

    def carry_out(self, command: Command, ending: AttemptState) -> None:
        """Let a command succeed; an agent's end is chosen from outside."""
        self.in_flight.pop(command.subject)
        run = self.state.runs[command.run]
        if command.attempt is None:
            self._for_run(command, run)
            return
        attempt = self.state.attempts[command.attempt]
        match command.kind:
            case CommandKind.PREPARE:
                workspace = WorkspaceId("ws_1")
                self._attempt(attempt, AttemptState.RUNNING, workspace=workspace)
            case CommandKind.RUN_AGENT | CommandKind.STOP_AGENT:
                self.agent_ends[attempt.id] += 1
                self._attempt(attempt, AttemptState.COLLECTING, ending=command.ending or ending)
            case CommandKind.COLLECT:
                assert attempt.ending is not None
                attempt = replace(attempt, candidate=new_candidate_id())
                if attempt.ending in (AttemptState.CANCELLED, AttemptState.INTERRUPTED):
                    self._attempt(attempt, attempt.ending)
                else:
                    self._attempt(attempt, AttemptState.EVALUATING)
            case CommandKind.EVALUATE | CommandKind.LEAVE_UNJUDGED:
                assert attempt.ending is not None
                self._attempt(attempt, attempt.ending)
            case CommandKind.END:
                assert command.ending is not None
                self._attempt(attempt, command.ending)
            case CommandKind.CLEAN_UP:
                self.state.apply(replace(attempt, cleanup="done"))
            case _:
                raise AssertionError(command)

    def _for_run(self, command: Command, run: Run) -> None:
        progress = list(run.progress)
        one = progress[command.task] if progress else TaskProgress()
        match command.kind:
            case CommandKind.SEAL:
                one = replace(one, sealed=new_snapshot_id())
            case CommandKind.BASELINE:
                one = replace(one, baseline=Baseline(checks=()))
            case CommandKind.RANK:
                one = replace(one, ranking=Ranking())
            case CommandKind.BLOCK:
                ranking = Ranking() if one.trouble else one.ranking
                one = replace(one, trouble=one.trouble or command.trouble, ranking=ranking)
            case CommandKind.BEGIN:
                run = replace(run, state=RunState.RUNNING)
            case CommandKind.FINISH:
                run = replace(run, state=RunState.FINISHED)
            case _:
                raise AssertionError(command)
        progress[command.task] = one
        self.state.apply(replace(run, progress=tuple(progress)))

    def _attempt(
        self,
        attempt: Attempt,
        state: AttemptState,
        *,
        ending: AttemptState | None = None,
        workspace: WorkspaceId | None = None,
    ) -> None:
        assert attempt.state not in TERMINAL_ATTEMPT_STATES
        if state in TERMINAL_ATTEMPT_STATES:
            self.ends[attempt.id] += 1
        self.state.apply(
            replace(
                attempt,
                state=state,
                ending=ending or attempt.ending,
                workspace=workspace or attempt.workspace,
            )
        )

    def fail(self, command: Command) -> None:
        """Let a command fail for a reason of ours."""
        self.in_flight.pop(command.subject)
        before = self.failures.get(command.key)
        count = (before.count if before else 0) + 1
        self.failures[command.key] = Failure(count, self.now + 1.0, "trouble")

    def crash(self) -> None:
        """Forget everything but the journal, as a new server does."""
        self.in_flight.clear()
        self.failures.clear()


def _submit(machine: Machine, *, tasks: int, attempts: int, parallel: int, late: bool) -> Run:
    agents = (AgentSpec(name="a", driver="command", command="x", attempts=attempts),)
    task = Task(name="t", prompt="p", snapshot=new_snapshot_id(), agents=agents)
    run = Run(
        id=new_run_id(),
        name="r",
        tasks=(task,) * tasks,
        progress=(TaskProgress(),) * tasks,
        limits=RunLimits(parallel=parallel),
        state=RunState.QUEUED,
        created_at="now",
    )
    machine.state.apply(run)
    if late:
        machine.deadlines[run.id] = DEADLINE
    for index in range(tasks):
        for number in range(attempts):
            machine.state.apply(
                Attempt(
                    id=new_attempt_id(),
                    run=run.id,
                    task=index,
                    agent="a",
                    number=number + 1,
                    epoch=1,
                    state=AttemptState.QUEUED,
                    created_at="now",
                )
            )
    return run


def _drain(machine: Machine) -> None:
    """Let everything succeed from here on; it must come to rest."""
    for _ in range(2000):
        machine.reconcile()
        if not machine.in_flight:
            wake = next_wake(machine.view(), machine.now)
            if wake is None:
                return
            machine.now = wake
            continue
        machine.carry_out(next(iter(machine.in_flight.values())), AttemptState.FINISHED)
    raise AssertionError("it never comes to rest")


ENDINGS = st.sampled_from([AttemptState.FINISHED, AttemptState.TIMED_OUT, AttemptState.INTERRUPTED])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_attempt_ends_once_when_anything_happens(data: st.DataObject) -> None:
    """Successes, failures, crashes, cancels and clock jumps in any order."""
    _anything_happens(data)


@pytest.mark.deep
@settings(max_examples=3000, deadline=None)
@given(data=st.data())
def test_each_attempt_ends_once_when_much_happens(data: st.DataObject) -> None:
    """The same, for longer."""
    _anything_happens(data)


def _anything_happens(data: st.DataObject) -> None:
    machine = Machine(parallel_limit=data.draw(st.integers(1, 6), "machine limit"))
    runs = [
        _submit(
            machine,
            tasks=data.draw(st.integers(1, 2), "tasks"),
            attempts=data.draw(st.integers(1, 4), "attempts"),
            parallel=data.draw(st.integers(1, 3), "parallel"),
            late=data.draw(st.booleans(), "deadline"),
        )
        for _ in range(data.draw(st.integers(1, 2), "runs"))
    ]
    for _ in range(data.draw(st.integers(0, 60), "steps")):
        machine.reconcile()
        event = data.draw(
            st.sampled_from(["do", "do", "do", "fail", "crash", "cancel", "time"]), "event"
        )
        if event == "cancel":
            run = machine.state.runs[data.draw(st.sampled_from(runs), "run").id]
            machine.state.apply(replace(run, cancel_requested=True))
        elif event == "time":
            machine.now += data.draw(st.floats(0.5, 80.0), "seconds")
        elif event == "crash":
            machine.crash()
        elif machine.in_flight:
            command = data.draw(st.sampled_from(list(machine.in_flight.values())), "command")
            if event == "do":
                machine.carry_out(command, data.draw(ENDINGS, "ending"))
            else:
                machine.fail(command)
    _drain(machine)
    for attempt in machine.state.attempts.values():
        assert attempt.state in TERMINAL_ATTEMPT_STATES
        assert machine.ends[attempt.id] == 1
        assert machine.agent_ends[attempt.id] <= 1
    for run in machine.state.runs.values():
        assert run.state is RunState.FINISHED
        assert all(one.ranking is not None for one in run.progress)
    assert decide(machine.view(), machine.now) == ()


def test_decision_is_the_same_when_asked_twice() -> None:
    """Nothing is remembered: the same view gives the same commands."""
    machine = Machine(parallel_limit=4)
    _submit(machine, tasks=2, attempts=5, parallel=3, late=True)
    for _ in range(60):
        assert decide(machine.view(), machine.now) == decide(machine.view(), machine.now)
        machine.reconcile()
        if machine.in_flight:
            machine.carry_out(next(iter(machine.in_flight.values())), AttemptState.FINISHED)


def _with_running_attempt() -> tuple[Machine, Run, Attempt]:
    machine = Machine(parallel_limit=4)
    run = _submit(machine, tasks=1, attempts=1, parallel=1, late=True)
    (attempt,) = machine.state.attempts_of(run.id)
    running = replace(
        attempt, state=AttemptState.RUNNING, workspace=WorkspaceId("ws_1"), exec="exec_1"
    )
    machine.state.apply(running)
    progress = (TaskProgress(sealed=new_snapshot_id(), baseline=Baseline(checks=())),)
    machine.state.apply(replace(run, state=RunState.RUNNING, progress=progress))
    return machine, run, running


def _wanted(machine: Machine, attempt: Attempt) -> Command:
    (command,) = (c for c in decide(machine.view(), machine.now) if c.attempt == attempt.id)
    return command


def test_agent_is_stopped_when_run_is_cancelled() -> None:
    """A wish to cancel turns the running agent's command into an order to stop it."""
    machine, run, attempt = _with_running_attempt()
    assert _wanted(machine, attempt).kind is CommandKind.RUN_AGENT
    machine.state.apply(replace(machine.state.runs[run.id], cancel_requested=True))
    command = _wanted(machine, attempt)
    assert command.kind is CommandKind.STOP_AGENT
    assert command.ending is AttemptState.CANCELLED


def test_agent_is_stopped_when_it_outlives_the_deadline() -> None:
    """The sandbox ends it at the deadline; only past the grace do we."""
    machine, _, attempt = _with_running_attempt()
    machine.now = DEADLINE + 1
    assert _wanted(machine, attempt).kind is CommandKind.RUN_AGENT
    machine.now = DEADLINE + DEADLINE_GRACE_SECONDS
    command = _wanted(machine, attempt)
    assert command.kind is CommandKind.STOP_AGENT
    assert command.ending is AttemptState.TIMED_OUT


def test_checks_end_when_the_deadline_passes() -> None:
    """An evaluation under way becomes a verdict that says why; nothing is run for it any more."""
    machine, _, attempt = _with_running_attempt()
    machine.state.apply(replace(attempt, state=AttemptState.EVALUATING))
    machine.now = DEADLINE - 1
    assert _wanted(machine, attempt).kind is CommandKind.EVALUATE
    machine.now = DEADLINE
    command = _wanted(machine, attempt)
    assert command.kind is CommandKind.LEAVE_UNJUDGED
    assert command.trouble is not None
    assert "deadline passed" in command.trouble


def test_the_base_is_not_checked_when_the_deadline_has_passed() -> None:
    """What waits for the baseline is left unjudged instead of waiting on."""
    machine, run, attempt = _with_running_attempt()
    machine.state.apply(replace(attempt, state=AttemptState.EVALUATING))
    progress = (replace(machine.state.runs[run.id].progress[0], baseline=None),)
    machine.state.apply(replace(machine.state.runs[run.id], progress=progress))
    kinds = [command.kind for command in decide(machine.view(), DEADLINE - 1)]
    assert kinds == [CommandKind.BASELINE]
    kinds = [command.kind for command in decide(machine.view(), DEADLINE)]
    assert kinds == [CommandKind.LEAVE_UNJUDGED]


def test_attempt_is_interrupted_when_its_agent_cannot_be_followed() -> None:
    """Trouble that comes back ends the attempt as ours; what the agent did is still collected."""
    machine, _, attempt = _with_running_attempt()
    for _ in range(MOST_TRIES):
        machine.in_flight.clear()
        machine.now += 10
        command = _wanted(machine, attempt)
        machine.in_flight[command.subject] = command
        machine.fail(command)
    machine.now += 10
    command = _wanted(machine, attempt)
    assert command.kind is CommandKind.STOP_AGENT
    assert command.ending is AttemptState.INTERRUPTED
    assert command.trouble == "trouble"


def test_clock_alone_wakes_when_deadline_or_retry_is_due() -> None:
    """The loop sleeps until the earliest moment that changes the decision."""
    machine, _, attempt = _with_running_attempt()
    assert next_wake(machine.view(), 0.0) == DEADLINE
    assert next_wake(machine.view(), DEADLINE) == DEADLINE + DEADLINE_GRACE_SECONDS
    assert next_wake(machine.view(), DEADLINE + DEADLINE_GRACE_SECONDS) is None
    machine.failures[_wanted(machine, attempt).key] = Failure(1, 5.0)
    assert next_wake(machine.view(), 0.0) == 5.0
    assert [c for c in decide(machine.view(), 4.0) if c.attempt == attempt.id] == []
