"""One check in one workspace: run, stop, and only then look at what it left.

The report's path is fresh and random, outside the repository, and told to the check as
``$REPORT``; the sandbox is dead before the trusted side opens the file, past no link.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forkyard.base.durable import failpoint, make_directory, write_file
from forkyard.base.masking import Masker
from forkyard.config import Layout
from forkyard.evaluation.interface import JudgeWorkspaces
from forkyard.evaluation.reports import apart, junit
from forkyard.model.execution import Exec, ExecResult, StopReason
from forkyard.model.ids import WorkspaceId, new_exec_id
from forkyard.model.verdict import Check, CheckRun, CheckState, ReportFormat, TestOutcome
from forkyard.model.workspace import WORKSPACE_ROOT
from forkyard.shim import kernel

OUTPUT_BYTES = 16 * 1024**2
"""Of one check, per stream: enough to read, not enough to fill the disk from a loop."""
KEPT_REPORT_BYTES = 8 * 1024**2
"""A larger report is read but not kept: a candidate must not fill the state directory with them."""
REPORT_VARIABLE = "REPORT"
_LAST_BYTES = 4096
_LAST_CHARACTERS = 200
_VISIBLE_SECONDS = 0.2
"""After this an exec is surely journalled, so a crash test strikes while the check runs."""


async def run_check(
    check: Check,
    workspace: WorkspaceId,
    repository: str,
    *,
    workspaces: JudgeWorkspaces,
    layout: Layout,
    out: Path,
    masker: Masker,
) -> CheckRun:
    """Run one check and stop the workspace.

    Args:
        check: What to run.
        workspace: Stopped; stopped again when this returns.
        repository: Working directory inside.
        workspaces: Where it runs.
        layout: Where its files lie.
        out: Folder on the trusted side that keeps the log and the report.
        masker: For what is kept of them.

    Raises:
        ForkyardError: The sandbox could not be had; a check that fails is a result.

    Cancellation:
        The exec goes on until the caller deletes the workspace.
    """
    name = f".report-{secrets.token_hex(16)}.xml"
    ended = await _exec(check, workspace, repository, name, workspaces)
    await workspaces.stop(workspace)
    result = ended.result
    if result is None:
        return _could_not_run(check, "its exec has no result")
    source = layout.exec(workspace, result.id)
    kept = out / f"{check.name}.log"
    log = await asyncio.to_thread(_keep_log, source, kept, layout.home, masker)
    run = CheckRun(
        name=check.name,
        state=CheckState.COULD_NOT_RUN,
        exit_code=result.exit_code,
        elapsed_seconds=result.elapsed_seconds,
        log=log,
    )
    unfinished = _unfinished(check, result, run)
    if unfinished is not None:
        return unfinished
    if check.report is ReportFormat.EXIT:
        return by_exit(run, result)
    content: bytes | str = await asyncio.to_thread(
        read_report, layout.upper(workspace), f"{WORKSPACE_ROOT}/{name}"
    )
    if isinstance(content, str):
        return replace(run, state=CheckState.NO_REPORT, detail=content)
    # Before anybody reads it: the names of tests go into the journal.
    content = await asyncio.to_thread(masker.mask, content)
    if len(content) <= KEPT_REPORT_BYTES:
        await asyncio.to_thread(write_file, out / f"{check.name}.report.xml", content)
    try:
        outcomes = await apart.read_apart(content)
    except junit.ReportError as error:
        return replace(run, state=CheckState.NO_REPORT, detail=str(error))
    return by_report(run, result, outcomes, must_fail=check.must_fail)


def by_exit(run: CheckRun, result: ExecResult) -> CheckRun:
    """Judge a check without a report: one test, passed when it exits 0."""
    passed = result.exit_code == 0
    outcome = TestOutcome.PASSED if passed else TestOutcome.FAILED
    return replace(
        run,
        state=CheckState.PASSED if passed else CheckState.FAILED,
        outcomes={run.name: outcome},
        detail=_detail(result),
    )


def by_report(
    run: CheckRun,
    result: ExecResult,
    outcomes: dict[str, TestOutcome],
    *,
    must_fail: Sequence[str] = (),
) -> CheckRun:
    """Judge a check by report and exit status: it passes only when both say so.

    A test that must fail is no failure, and excuses the exit status.
    """
    if not outcomes:
        return replace(run, state=CheckState.NO_REPORT, detail="the report names no test")
    failing = {test for test, outcome in outcomes.items() if outcome is TestOutcome.FAILED}
    excused = bool(failing.intersection(must_fail))
    passed = not failing.difference(must_fail) and (result.exit_code == 0 or excused)
    return replace(
        run,
        state=CheckState.PASSED if passed else CheckState.FAILED,
        outcomes=outcomes,
        detail=_detail(result),
    )


def read_report(upper: Path, path: str) -> bytes | str:
    """Read a report from a stopped workspace's upper directory, past no link and no device.

    Returns:
        Its bytes, or why there are none, as a clause.
    """
    try:
        root = os.open(upper, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"the workspace's files cannot be opened: {error.strerror}"
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
        descriptor = kernel.open_beneath(root, os.fsencode(path.lstrip("/")), flags)
    except FileNotFoundError:
        return f"nothing was written to ${REPORT_VARIABLE}"
    except OSError as error:
        return f"${REPORT_VARIABLE} is no plain file: {error.strerror}"
    finally:
        os.close(root)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return f"${REPORT_VARIABLE} is no plain file"
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(junit.MAX_BYTES + 1)
    if len(content) > junit.MAX_BYTES:
        return f"the report is larger than {junit.MAX_BYTES} bytes"
    return content


async def _exec(
    check: Check, workspace: WorkspaceId, repository: str, report: str, workspaces: JudgeWorkspaces
) -> Exec:
    exec_id = new_exec_id()
    running = asyncio.ensure_future(
        workspaces.exec(
            workspace,
            ("/bin/sh", "-c", check.run),
            working_directory=repository,
            variables={REPORT_VARIABLE: f"{WORKSPACE_ROOT}/{report}"},
            timeout_seconds=check.timeout_seconds,
            exec_id=exec_id,
            keep_background=False,
            output_bytes=OUTPUT_BYTES,
        )
    )
    try:
        await asyncio.wait({running}, timeout=_VISIBLE_SECONDS)
        failpoint("C17")
        return await running
    except asyncio.CancelledError:
        running.cancel()
        raise


def _unfinished(check: Check, result: ExecResult, run: CheckRun) -> CheckRun | None:
    match result.stop_reason:
        case StopReason.TIMED_OUT:
            outcomes = {}
            if check.report is ReportFormat.EXIT:
                outcomes = {check.name: TestOutcome.FAILED}
            detail = f"still running after {check.timeout_seconds:g} s"
            return replace(run, state=CheckState.TIMED_OUT, outcomes=outcomes, detail=detail)
        case StopReason.COULD_NOT_START | StopReason.INTERRUPTED | StopReason.KILLED:
            return replace(run, detail=result.detail or f"it was {result.stop_reason}")
        case StopReason.EXITED | StopReason.MEMORY | StopReason.DISK:
            return None


def _could_not_run(check: Check, detail: str) -> CheckRun:
    return CheckRun(
        name=check.name,
        state=CheckState.COULD_NOT_RUN,
        exit_code=None,
        elapsed_seconds=0.0,
        detail=detail,
    )


def _detail(result: ExecResult) -> str | None:
    parts = [result.detail] if result.detail else []
    if result.stop_reason in {StopReason.MEMORY, StopReason.DISK} and not parts:
        parts.append(f"the {result.stop_reason.replace('-', ' ')} struck")
    if result.truncated:
        parts.append(f"output past {OUTPUT_BYTES} bytes was dropped")
    return "; ".join(parts) or None


def with_last_words(run: CheckRun, out: Path) -> CheckRun:
    """Tell of a run without a report also the last line that it printed, masked as it was kept."""
    if run.state is not CheckState.NO_REPORT:
        return run
    try:
        with (out / f"{run.name}.log").open("rb") as kept:
            kept.seek(max(0, kept.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = kept.read(_LAST_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return run
    words = [" ".join(line.split()) for line in lines]
    last = next((line for line in reversed(words) if line), "")
    last = "".join(char if char.isprintable() else "?" for char in last)[:_LAST_CHARACTERS]
    return replace(run, detail=f"{run.detail}; it last printed: {last}") if last else run


def _keep_log(source: Path, kept: Path, home: Path, masker: Masker) -> str | None:
    """Keep what a check printed, masked; name the file below the state directory, if any."""
    parts: list[bytes] = []
    for stream in ("stdout", "stderr"):
        file = source / stream
        if file.is_file():
            with file.open("rb") as opened:
                parts.append(masker.mask(opened.read(OUTPUT_BYTES)))
    if not parts:
        return None
    content = parts[0]
    if len(parts) > 1 and parts[1]:
        content = b"".join((content, b"\n--- stderr ---\n" if content else b"", parts[1]))
    make_directory(kept.parent)
    write_file(kept, content)
    return os.path.relpath(kept, home)
