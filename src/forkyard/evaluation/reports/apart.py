"""Reading a report in a process of its own, so that only text comes back to the server."""

from __future__ import annotations

import json
import os
import sys

from forkyard.base import process
from forkyard.errors import EvaluationError, WorkspaceError
from forkyard.evaluation.reports import junit
from forkyard.model.verdict import TestOutcome


async def read_apart(content: bytes) -> dict[str, TestOutcome]:
    """Do the same as `junit.parse` in an unprivileged process, so that only text comes back.

    Raises:
        ReportError: As `junit.parse`; also when reading took too much time or memory.
        EvaluationError: The process could not be started.

    Cancellation:
        The process is killed before the cancellation goes on.
    """
    if len(content) > junit.MAX_BYTES:
        raise junit.ReportError(
            f"the report has {len(content)} bytes, {junit.MAX_BYTES} at most are read"
        )
    argv = [sys.executable, "-P", "-m", "forkyard.evaluation.reports.junit"]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        done = await process.run_async(
            argv,
            variables={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"},
            stdin=content,
            timeout_seconds=junit.PARSE_SECONDS,
        )
    except WorkspaceError as error:
        if "still running" in error.message:
            raise junit.ReportError(
                f"reading the report took more than {junit.PARSE_SECONDS} s"
            ) from error
        raise EvaluationError(error.message, hint=error.hint) from error
    if not done.succeeded:
        raise junit.ReportError("reading the report took too much memory or time")
    answer = json.loads(done.stdout)
    if "problem" in answer:
        raise junit.ReportError(str(answer["problem"]))
    return {str(name): TestOutcome(outcome) for name, outcome in answer["outcomes"].items()}
