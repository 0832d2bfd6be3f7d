"""Following a run: a live table on a terminal, one line per change elsewhere. All on stderr."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, Self

from forkyard.cli.output import clean, is_terminal, progress, seconds, short, tokens, usd
from forkyard.wire.results import FINAL_RUN_STATES, AttemptInfo, RunInfo, TaskInfo, UsageInfo

if TYPE_CHECKING:
    from rich.table import Table


class Follower(Protocol):
    """Shows a run as it changes."""

    def show(self, run: RunInfo) -> None:
        """Show the newest state."""
        ...


class Lines:
    """One line per change: for files, pipes and build servers."""

    def __init__(self) -> None:
        """Have seen nothing yet."""
        self._seen: dict[str, str] = {}

    def show(self, run: RunInfo) -> None:
        """Write what differs from the last time."""
        about_run = f"run {short(run.id)} ({run.name}): {run.state}"
        is_over = run.state in FINAL_RUN_STATES
        if not is_over:
            self._tell(run.id, about_run)
        for task in run.tasks:
            if task.trouble is not None:
                self._tell(f"{run.id}/{task.name}", f"task {task.name}: {task.trouble}")
            for attempt in task.attempts:
                self._tell(attempt.id, _attempt_line(run, task, attempt))
        if is_over:
            self._tell(run.id, about_run)

    def _tell(self, key: str, text: str) -> None:
        if self._seen.get(key) != text:
            self._seen[key] = text
            progress(text)


def _attempt_line(run: RunInfo, task: TaskInfo, attempt: AttemptInfo) -> str:
    name = agent_name(task, attempt)
    where = f"{task.name}: {name}" if len(run.tasks) > 1 else name
    parts = [f"{where}: {attempt.state}"]
    if attempt.exit_code is not None:
        parts.append(f"exit {attempt.exit_code} in {seconds(attempt.elapsed_seconds)}")
    if attempt.evaluation is not None:
        parts.append(attempt.evaluation.verdict)
    if attempt.live is not None and attempt.live.refusal is not None:
        parts.append(f"refused: {attempt.live.refusal}")
    reason = attempt.trouble or attempt.detail
    if reason is not None:
        parts.append(reason)
    return ", ".join(parts)


def spent(attempt: AttemptInfo) -> tuple[str, str]:
    """Write the tokens and dollars an attempt spent, as they are known now."""
    used, live = attempt.usage, attempt.live
    if used.input_tokens is None and live is None:
        return "-", "-"
    total = sum(
        one or 0
        for one in (
            used.input_tokens,
            used.cache_read_tokens,
            used.cache_write_tokens,
            used.output_tokens,
        )
    )
    cost = used.cost_usd
    if live is not None:
        total = max(total, live.spent_tokens)
        cost = None if cost is None else max(cost, live.spent_usd)
    about = most(used)
    return about + tokens(total), about + usd(cost)


def most(used: UsageInfo) -> str:
    """Mark a sum as the most that it can be, where a request was cut and nobody knows its end."""
    return "~" if used.estimated_requests else ""


def standing(attempt: AttemptInfo) -> str:
    """Say what an attempt does at the gateway now; empty where there is nothing to say."""
    live = attempt.live
    if live is None:
        return ""
    if live.refusal is not None:
        return f"refused: {live.refusal}"
    if live.waiting:
        place = "" if live.queue_position is None else f", number {live.queue_position} in line"
        return f"{live.waiting} {'request waits' if live.waiting == 1 else 'requests wait'}{place}"
    return "" if live.fault is None else live.fault


class Live:
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        """Take the terminal's stderr."""
        from rich.console import Console  # noqa: PLC0415 - only on a terminal
        from rich.live import Live as RichLive  # noqa: PLC0415 - heavy: only where a person watches

        self._live = RichLive(
            console=Console(stderr=True, highlight=False, markup=False), refresh_per_second=8
        )

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        """Leave the last state standing."""
        self._live.stop()

    def show(self, run: RunInfo) -> None:
        """Draw the newest state."""
        self._live.update(_table(run))


def _table(run: RunInfo) -> Table:
    from rich.table import Table  # noqa: PLC0415 - only on a terminal
    from rich.text import Text  # noqa: PLC0415 - heavy: only where a person watches

    title = Text(f"{clean(run.name)}  {short(run.id)}  {run.state}{budget_of(run)}", "bold")
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("TASK", "AGENT", "STATE", "EXIT", "TIME", "TOKENS", "USD", "VERDICT", ""):
        drawn.add_column(head)
    for task in run.tasks:
        if task.trouble is not None:
            drawn.add_row(Text(clean(task.name)), *([""] * 7), Text(clean(task.trouble)))
        for attempt in task.attempts:
            used_tokens, used_usd = spent(attempt)
            drawn.add_row(
                Text(clean(task.name)),
                Text(clean(agent_name(task, attempt))),
                Text(attempt.state),
                Text("-" if attempt.exit_code is None else str(attempt.exit_code)),
                Text(seconds(attempt.elapsed_seconds)),
                Text(used_tokens),
                Text(used_usd),
                Text("-" if attempt.evaluation is None else attempt.evaluation.verdict),
                Text(clean(attempt.trouble or attempt.detail or standing(attempt))),
            )
    return drawn


def budget_of(run: RunInfo) -> str:
    """Say what of a run's budget is spent; empty where there is none."""
    if run.budget is None:
        return ""
    used = run.usage
    parts = []
    if run.budget.usd is not None:
        parts.append(f"{most(used)}{usd(used.cost_usd)} of {usd(run.budget.usd)} USD")
    if run.budget.tokens is not None:
        counts = (used.input_tokens, used.cache_read_tokens, used.cache_write_tokens)
        total = sum(one or 0 for one in (*counts, used.output_tokens))
        parts.append(f"{most(used)}{tokens(total)} of {tokens(run.budget.tokens)} tokens")
    return f"  spent {', '.join(parts)}"


def agent_name(task: TaskInfo, attempt: AttemptInfo) -> str:
    """Name an attempt by its agent, with its number where there are several of it."""
    several = sum(one.agent == attempt.agent for one in task.attempts) > 1
    return f"{attempt.agent}#{attempt.number}" if several else attempt.agent


def follower(*, quiet: bool) -> AbstractContextManager[Follower]:
    """Choose how a run is followed."""
    if quiet or not is_terminal(sys.stderr):
        return nullcontext(Lines())
    return Live()
