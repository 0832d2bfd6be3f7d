"""The comparison of a run's candidates, in words; and what it means as an exit code."""

from __future__ import annotations

from collections import Counter

from forkyard.cli.output import clean, say, seconds, short, style, table
from forkyard.cli.progress import agent_name, budget_of, spent, standing
from forkyard.errors import (
    AgentError,
    EvaluationError,
    GatewayError,
    StoreError,
    WorkspaceError,
)
from forkyard.wire.results import AttemptInfo, EvaluationInfo, RankedInfo, RunInfo, TaskInfo

SOLVED = "solved"
NO_REGRESSION = "no-regression-shown"
BUDGET = 13
_CUT_OFF = frozenset({"provider", "budget", "ours"})
CANNOT_START = frozenset({126, 127})
"""What a shell says of a command that it cannot run or find."""

_GOOD = frozenset({"fail-to-pass", "pass-to-pass", "new-passed"})
_BAD = frozenset({"still-failing", "regressed", "missing", "new-failed"})
_BEST_SHOWN = 3
_REASON_SHOWN = 400


def exit_code_of(run: RunInfo) -> int:
    """Say how a run ended as an exit code: trouble of ours counts only where it hid the result."""
    if run.tasks and all(_is_solved(task) for task in run.tasks):
        return 0
    unsolved = [task for task in run.tasks if not _is_solved(task)]
    if any(task.trouble is not None for task in unsolved):
        return EvaluationError.exit_code
    if run.state == "interrupted":
        return StoreError.exit_code
    attempts = [one for task in unsolved for one in task.attempts]
    return _of_unsolved(attempts) if attempts else 1


def _of_unsolved(attempts: list[AttemptInfo]) -> int:
    if all(one.candidate is None for one in attempts):
        if all(one.state == "could-not-run" for one in attempts):
            if all(one.failure == "ours" for one in attempts):
                return GatewayError.exit_code
            ours = any(one.trouble is not None for one in attempts)
            return WorkspaceError.exit_code if ours else AgentError.exit_code
        if all(one.state in {"could-not-run", "interrupted"} for one in attempts):
            return WorkspaceError.exit_code
    if all(_was_cut_off(one) for one in attempts):
        # nobody came to an ordinary end, so nothing says that it cannot be solved
        has_budget_ended_it = any(one.failure == "budget" for one in attempts)
        return BUDGET if has_budget_ended_it else GatewayError.exit_code
    if all(_never_started(one) for one in attempts):
        return AgentError.exit_code
    judged = [one.evaluation for one in attempts if one.evaluation is not None]
    if judged and all(one.verdict == "not-evaluated" for one in judged):
        return EvaluationError.exit_code
    return 1


def _was_cut_off(attempt: AttemptInfo) -> bool:
    return attempt.failure in _CUT_OFF and attempt.state != "interrupted"


def _never_started(attempt: AttemptInfo) -> bool:
    changed = attempt.candidate is not None and bool(attempt.candidate.files)
    return attempt.exit_code in CANNOT_START and not changed


def _is_solved(task: TaskInfo) -> bool:
    return any(
        one.evaluation is not None and one.evaluation.verdict == SOLVED for one in task.attempts
    )


def show_comparison(run: RunInfo) -> None:
    """Write the table, the reasons and the command to type next."""
    say(f"{style(clean(run.name), bold=True)}  {run.id}  {run.state}{budget_of(run)}")
    for task in run.tasks:
        say()
        _show_task(run, task)
    _show_next(run)


def _show_task(run: RunInfo, task: TaskInfo) -> None:
    if len(run.tasks) > 1:
        say(style(f"Task {clean(task.name)}", bold=True))
    base = "unknown" if task.base.commit is None else task.base.commit[:12]
    uncommitted = ", uncommitted work included" if task.base.uncommitted else ""
    say(f"From commit {clean(base)}{uncommitted} (snapshot {short(task.base.snapshot)})")
    if task.trouble is not None:
        say(style(f"Not judged: {clean(task.trouble)}", fg="yellow"))
    places = {place.candidate: place for place in task.ranking}
    ordered = sorted(
        task.attempts,
        key=lambda one: _order(one, places),
    )
    is_metered = any(one.usage.input_tokens is not None for one in ordered)
    spending = ("TOKENS", "USD") if is_metered else ()
    table(
        (
            *("RANK", "AGENT", "VERDICT", "ASSURANCE", "TESTS", "FILES", "TIME"),
            *spending,
            *("STATE", "CANDIDATE"),
        ),
        [_row(task, one, places, is_metered=is_metered) for one in ordered],
    )
    for one in ordered:
        reasons = _reasons(one, places)
        if reasons:
            say(f"  {clean(agent_name(task, one))}: {'; '.join(clean(text) for text in reasons)}")
        if one.known_limitations is not None:
            stated = _shortened(clean(one.known_limitations))
            say(f"  {clean(agent_name(task, one))} says of its limits: {stated}")
    if task.summary:
        say(clean(task.summary))


def _order(attempt: AttemptInfo, places: dict[str, RankedInfo]) -> tuple[int, str, int]:
    place = None if attempt.candidate is None else places.get(attempt.candidate.id)
    return (10**6 if place is None else place.rank, attempt.agent, attempt.number)


def _row(
    task: TaskInfo, attempt: AttemptInfo, places: dict[str, RankedInfo], *, is_metered: bool
) -> tuple[str, ...]:
    candidate = attempt.candidate
    evaluation = attempt.evaluation
    place = None if candidate is None else places.get(candidate.id)
    return (
        "-" if place is None or not place.rank else str(place.rank),
        agent_name(task, attempt),
        "-" if evaluation is None else evaluation.verdict,
        "-" if evaluation is None else evaluation.assurance,
        "-" if evaluation is None else count_tests(evaluation),
        "-" if candidate is None else _files(attempt),
        seconds(attempt.elapsed_seconds),
        *(spent(attempt) if is_metered else ()),
        attempt.state,
        "-" if candidate is None else short(candidate.id),
    )


def count_tests(evaluation: EvaluationInfo) -> str:
    """Count tests: passed of all, and what was fixed or broken."""
    counts = Counter(state for check in evaluation.checks for state in check.tests.values())
    total = sum(count for state, count in counts.items() if state in _GOOD | _BAD)
    if not total:
        return "none"
    parts = [f"{sum(counts[state] for state in _GOOD)}/{total}"]
    words = (("fail-to-pass", "fixed"), ("regressed", "broken"), ("missing", "missing"))
    parts += [f"{counts[state]} {word}" for state, word in words if counts[state]]
    return ", ".join(parts)


def _files(attempt: AttemptInfo) -> str:
    if attempt.candidate is None:
        return "-"
    files = attempt.candidate.files
    if not files:
        return "none"
    added = sum(one.added_lines or 0 for one in files)
    deleted = sum(one.deleted_lines or 0 for one in files)
    return f"{len(files)} (+{added} -{deleted})"


def _reasons(attempt: AttemptInfo, places: dict[str, RankedInfo]) -> list[str]:
    reasons: list[str] = []
    candidate = attempt.candidate
    if candidate is not None and candidate.id in places:
        reasons += places[candidate.id].reasons
    elif attempt.evaluation is not None:
        reasons += attempt.evaluation.reasons
    if candidate is not None:
        reasons += candidate.problems
    trouble = None if attempt.evaluation is None else attempt.evaluation.trouble
    for text in (trouble, attempt.trouble, attempt.detail, standing(attempt)):
        if text and not any(text in told for told in reasons):
            reasons.append(text)
    return [_shortened(text) for text in dict.fromkeys(reasons)]


def _shortened(text: str) -> str:
    """Cut what would fill the screen; `--json` has it whole."""
    return text if len(text) <= _REASON_SHOWN else f"{text[: _REASON_SHOWN - 3]}..."


def _show_next(run: RunInfo) -> None:
    best = [one for task in run.tasks for one in _best(task) or _unharmful(task)]
    say()
    if best:
        for index, candidate in enumerate(best[:_BEST_SHOWN]):
            say(f"{'     ' if index else 'Next:'} forkyard diff {short(candidate)}")
        say(f"      forkyard apply {short(best[0]) if len(best) == 1 else 'CANDIDATE'}")
    elif run.state in {"queued", "running"}:
        say(f"Next: forkyard watch {short(run.id)}")
    elif any(_may_be_retried(one) for task in run.tasks for one in task.attempts) or any(
        task.trouble is not None for task in run.tasks
    ):
        say(f"Next: forkyard retry {short(run.id)}")
    elif any(
        one.evaluation is not None and one.evaluation.verdict == "not-evaluated"
        for task in run.tasks
        for one in task.attempts
    ):
        _show_unjudged(run)
    else:
        attempts = [one for task in run.tasks for one in task.attempts]
        if attempts:
            say(f"Next: forkyard logs {short(attempts[0].id)}")


def _unharmful(task: TaskInfo) -> list[str]:
    """Give the first of those that broke nothing where nothing was there to be fixed."""
    harmless = {
        one.candidate.id
        for one in task.attempts
        if one.candidate is not None
        and one.candidate.files
        and one.evaluation is not None
        and one.evaluation.verdict == NO_REGRESSION
    }
    return [one.candidate for one in task.ranking if one.rank == 1 and one.candidate in harmless]


def _may_be_retried(attempt: AttemptInfo) -> bool:
    did_nothing = attempt.candidate is not None and not attempt.candidate.files
    return attempt.trouble is not None or (attempt.failure in {"provider", "ours"} and did_nothing)


def _show_unjudged(run: RunInfo) -> None:
    """Judging again helps only where there is a check; otherwise the eye must judge."""
    evaluations = [
        (one.candidate, one.evaluation)
        for task in run.tasks
        for one in task.attempts
        if one.evaluation is not None and one.candidate is not None
    ]
    changed = [
        candidate.id
        for candidate, evaluation in evaluations
        if candidate.files and not evaluation.checks and evaluation.trouble is None
    ]
    if changed:
        for index, candidate in enumerate(changed[:_BEST_SHOWN]):
            say(f"{'     ' if index else 'Next:'} forkyard diff {short(candidate)}")
    elif any(evaluation.checks or evaluation.trouble for _, evaluation in evaluations):
        say(f"Next: forkyard regrade {short(run.id)}")
    else:
        say(f"Next: forkyard logs {short(run.tasks[0].attempts[0].id)}")


def _best(task: TaskInfo) -> list[str]:
    """Give the winner, or those that solve the task and are tied."""
    if task.winner is not None:
        return [task.winner]
    solving = {
        one.candidate.id
        for one in task.attempts
        if one.candidate is not None
        and one.evaluation is not None
        and one.evaluation.verdict == SOLVED
    }
    return [one.candidate for one in task.ranking if one.rank == 1 and one.candidate in solving]
