"""Following a run: a live table on a terminal, one line per change elsewhere. All on stderr."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, Self

from forkyard.cli.output import clean, is_terminal, progress, seconds, short
from forkyard.wire.results import FINAL_RUN_STATES, AttemptInfo, RunInfo, TaskInfo

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
    reason = attempt.trouble or attempt.detail
    if reason is not None:
        parts.append(reason)
    return ", ".join(parts)


class Live:
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        """Take the terminal's stderr."""
        from rich.console import Console  # noqa: PLC0415 - only on a terminal
        from rich.live import Live as RichLive  # noqa: PLC0415

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
    from rich.text import Text  # noqa: PLC0415

    title = Text(f"{clean(run.name)}  {short(run.id)}  {run.state}", "bold")
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("TASK", "AGENT", "STATE", "EXIT", "TIME", "VERDICT", ""):
        drawn.add_column(head)
    for task in run.tasks:
        if task.trouble is not None:
            drawn.add_row(Text(clean(task.name)), "", "", "", "", "", Text(clean(task.trouble)))
        for attempt in task.attempts:
            drawn.add_row(
                Text(clean(task.name)),
                Text(clean(agent_name(task, attempt))),
                Text(attempt.state),
                Text("-" if attempt.exit_code is None else str(attempt.exit_code)),
                Text(seconds(attempt.elapsed_seconds)),
                Text("-" if attempt.evaluation is None else attempt.evaluation.verdict),
                Text(clean(attempt.trouble or attempt.detail or "")),
            )
    return drawn


def agent_name(task: TaskInfo, attempt: AttemptInfo) -> str:
    """Name an attempt by its agent, with its number where there are several of it."""
    several = sum(one.agent == attempt.agent for one in task.attempts) > 1
    return f"{attempt.agent}#{attempt.number}" if several else attempt.agent


def follower(*, quiet: bool) -> AbstractContextManager[Follower]:
    """Choose how a run is followed."""
    if quiet or not is_terminal(sys.stderr):
        return nullcontext(Lines())
    return Live()
