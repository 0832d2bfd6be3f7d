"""What should be in flight, given the state: pure, and the same answer however we came here.

Nothing here remembers. So recovery after a crash is no special case: the state that the journal
gives back is decided upon like any other, and work that was under way is simply wanted again.
What is wanted for an attempt follows from its state alone:

    queued -> preparing -> running -> collecting -> evaluating -> its ending -> cleaned up

with shortcuts where the run is cancelled, past its deadline or its budget, or something of ours is
broken.
"""

from __future__ import annotations

from collections.abc import Iterator

from forkyard.coordinator.commands import Command, CommandKind, for_attempt
from forkyard.coordinator.scheduler import Wanted, admit
from forkyard.coordinator.view import (
    CLEANUP_PENDING,
    WORKING_STATES,
    View,
    is_terminal,
)
from forkyard.model.run import Attempt, AttemptState, Run, RunState, TaskProgress

DEADLINE_GRACE_SECONDS = 15.0
"""The sandbox itself ends an agent at the deadline; past this it did not, so we do."""

LATE = "the run's deadline passed before it could start"
UNJUDGED = (
    "cannot judge it: the run's deadline passed before its checks had ended; `forkyard regrade`"
    " judges it with a deadline of its own"
)


def decide(view: View, now: float) -> tuple[Command, ...]:
    """Say everything that should be in flight now, most urgent first.

    Args:
        view: The journal's state and this process's facts.
        now: Monotonic seconds.

    Returns:
        Commands with distinct subjects. What is in flight and not among them should be
        cancelled; what is among them and not in flight should begin.
    """
    wanted: list[Wanted] = []
    for run in view.active_runs():
        wanted.extend(_for_run(view, run, now))
    admitted = admit(wanted, view)
    return tuple(command for command in admitted if not view.is_waiting(command.key, now))


def next_wake(view: View, now: float) -> float | None:
    """Say when the passing of time alone can change the decision; None: never."""
    moments: list[float] = []
    for run in view.active_runs():
        deadline = view.deadlines.get(run.id)
        if deadline is not None:
            moments.extend((deadline, deadline + DEADLINE_GRACE_SECONDS))
    moments.extend(failure.retry_at for failure in view.failures.values())
    return min((moment for moment in moments if moment > now), default=None)


def _for_run(view: View, run: Run, now: float) -> Iterator[Wanted]:
    attempts = view.state.attempts_of(run.id)
    busy = sum(attempt.state in WORKING_STATES for attempt in attempts)
    if run.state is RunState.QUEUED:
        yield Wanted(Command(kind=CommandKind.BEGIN, run=run.id), busy=busy)
    deadline = view.deadlines.get(run.id)
    is_late = deadline is not None and now >= deadline
    is_overdue = deadline is not None and now >= deadline + DEADLINE_GRACE_SECONDS
    is_over = True
    for index, progress in enumerate(run.progress):
        mine = [attempt for attempt in attempts if attempt.task == index]
        yield from _for_task(view, run, index, mine, is_late=is_late, busy=busy)
        for attempt in mine:
            if is_terminal(attempt):
                wanted = _clean_up(view, attempt)
            else:
                wanted = _for_attempt(
                    view, run, progress, attempt, is_late=is_late, is_overdue=is_overdue
                )
            if wanted is not None:
                yield Wanted(wanted, busy=busy, limit=run.limits.parallel)
            is_over = is_over and is_terminal(attempt) and wanted is None
        is_over = is_over and progress.ranking is not None
    if is_over and not _is_winding_down(view, run):
        yield Wanted(Command(kind=CommandKind.FINISH, run=run.id), busy=busy)


def _is_winding_down(view: View, run: Run) -> bool:
    """Say whether a task's step still has something to put away."""
    return any(
        Command(kind=kind, run=run.id, task=index).key in view.in_flight
        for kind in (CommandKind.SEAL, CommandKind.BASELINE)
        for index in range(len(run.tasks))
    )


def _for_task(
    view: View, run: Run, index: int, attempts: list[Attempt], *, is_late: bool, busy: int
) -> Iterator[Wanted]:
    kind = _next_for_task(run, run.progress[index], attempts, is_late=is_late)
    if kind is None:
        return
    command = Command(kind=kind, run=run.id, task=index)
    failed = _given_up(view, command)
    if failed is not None:
        command = Command(kind=CommandKind.BLOCK, run=run.id, task=index, trouble=failed)
    yield Wanted(command, busy=busy)


def _next_for_task(
    run: Run, progress: TaskProgress, attempts: list[Attempt], *, is_late: bool
) -> CommandKind | None:
    if all(is_terminal(attempt) for attempt in attempts):
        return CommandKind.RANK if progress.ranking is None else None
    if run.cancel_requested or progress.trouble is not None:
        return None
    if is_late:
        return None  # checks end at the deadline, too
    if progress.sealed is None:
        # without it no attempt can begin, and no candidate can exist to be judged
        return CommandKind.SEAL
    return CommandKind.BASELINE if progress.baseline is None else None


def _for_attempt(
    view: View,
    run: Run,
    progress: TaskProgress,
    attempt: Attempt,
    *,
    is_late: bool,
    is_overdue: bool,
) -> Command | None:
    match attempt.state:
        case AttemptState.QUEUED | AttemptState.PREPARING:
            return _before_running(view, run, progress, attempt, is_late=is_late)
        case AttemptState.RUNNING:
            return _while_running(view, run, attempt, is_overdue=is_overdue)
        case AttemptState.COLLECTING:
            collect = for_attempt(CommandKind.COLLECT, attempt)
            failed = _given_up(view, collect)
            if failed is None:
                return collect
            ending = attempt.ending
            if ending not in (AttemptState.CANCELLED, AttemptState.INTERRUPTED):
                ending = AttemptState.COULD_NOT_RUN
            return for_attempt(CommandKind.END, attempt, ending=ending, trouble=failed)
        case AttemptState.EVALUATING:
            return _before_verdict(view, run, progress, attempt, is_late=is_late)
        case _:
            return None


def _before_running(
    view: View, run: Run, progress: TaskProgress, attempt: Attempt, *, is_late: bool
) -> Command | None:
    if run.cancel_requested:
        return for_attempt(
            CommandKind.END,
            attempt,
            ending=AttemptState.CANCELLED,
            detail="the run was cancelled before it started",
        )
    if is_late:
        return for_attempt(CommandKind.END, attempt, ending=AttemptState.TIMED_OUT, detail=LATE)
    status = view.spent.get(run.id)
    spent = None if status is None else status.spent_for(attempt.agent)
    if spent is not None:
        return for_attempt(
            CommandKind.END,
            attempt,
            ending=AttemptState.BUDGET_EXHAUSTED,
            detail=f"not started: {spent}",
        )
    prepare = for_attempt(CommandKind.PREPARE, attempt)
    trouble = progress.trouble or _given_up(view, prepare)
    if trouble is not None:
        return for_attempt(
            CommandKind.END, attempt, ending=AttemptState.COULD_NOT_RUN, trouble=trouble
        )
    return prepare if progress.sealed is not None else None


def _while_running(view: View, run: Run, attempt: Attempt, *, is_overdue: bool) -> Command:
    stop = for_attempt(CommandKind.STOP_AGENT, attempt)
    failed = _given_up(view, stop)
    if failed is not None:
        return for_attempt(
            CommandKind.END, attempt, ending=AttemptState.INTERRUPTED, trouble=failed
        )
    if run.cancel_requested:
        return for_attempt(
            CommandKind.STOP_AGENT,
            attempt,
            ending=AttemptState.CANCELLED,
            detail="the run was cancelled",
        )
    if is_overdue:
        return for_attempt(
            CommandKind.STOP_AGENT,
            attempt,
            ending=AttemptState.TIMED_OUT,
            detail="the run's deadline passed",
        )
    if attempt.workspace is not None and attempt.workspace in view.exhausted:
        return for_attempt(
            CommandKind.STOP_AGENT,
            attempt,
            ending=AttemptState.BUDGET_EXHAUSTED,
            detail=f"ended by us: {view.exhausted[attempt.workspace]}",
        )
    run_agent = for_attempt(CommandKind.RUN_AGENT, attempt)
    failed = _given_up(view, run_agent)
    if failed is not None:
        return for_attempt(
            CommandKind.STOP_AGENT, attempt, ending=AttemptState.INTERRUPTED, trouble=failed
        )
    return run_agent


def _before_verdict(
    view: View, run: Run, progress: TaskProgress, attempt: Attempt, *, is_late: bool
) -> Command | None:
    if run.cancel_requested:
        return for_attempt(
            CommandKind.END,
            attempt,
            ending=AttemptState.CANCELLED,
            detail="the run was cancelled before its evaluation",
        )
    evaluate = for_attempt(CommandKind.EVALUATE, attempt)
    unjudged = for_attempt(CommandKind.LEAVE_UNJUDGED, attempt, trouble=UNJUDGED)
    failed = progress.trouble or _given_up(view, evaluate) or _given_up(view, unjudged)
    if failed is not None:
        return for_attempt(
            CommandKind.END,
            attempt,
            ending=attempt.ending or AttemptState.FINISHED,
            trouble=failed,
        )
    if is_late:
        return unjudged
    return evaluate if progress.baseline is not None else None


def _clean_up(view: View, attempt: Attempt) -> Command | None:
    if attempt.cleanup != CLEANUP_PENDING:
        return None
    clean_up = for_attempt(CommandKind.CLEAN_UP, attempt)
    # the reaper goes on trying; a run does not hang because of a leftover
    return None if view.has_given_up(clean_up.key) else clean_up


def _given_up(view: View, command: Command) -> str | None:
    if not view.has_given_up(command.key):
        return None
    return view.failures[command.key].message or f"cannot {command.kind}"
