"""Starting the helper processes that look at hostile trees or write into them.

Whatever a hostile tree does to a helper, it is a process of its own: its crash is trouble of ours,
told in one sentence, and never a crash of the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import forkyard
from forkyard.base import process
from forkyard.errors import WorkspaceError

READER = "forkyard.candidate.walker_main"
WRITER = "forkyard.candidate.writer_main"
TIMEOUT_SECONDS = 1800.0
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C",
    "PYTHONUTF8": "1",
    "PYTHONPATH": str(Path(forkyard.__file__).resolve().parent.parent),
}


async def ask(
    module: str,
    job: Mapping[str, object],
    *,
    descriptors: Sequence[int] = (),
    what: str,
) -> dict[str, object]:
    """Run one helper on one job.

    Args:
        module: `READER` or `WRITER`.
        job: What it is asked, as JSON.
        descriptors: Open files that the job names.
        what: Verb and thing for the error message, such as ``collect ws_1``.

    Returns:
        Its answer.

    Raises:
        WorkspaceError: It crashed, was stopped by a limit, or answered nothing.

    Cancellation:
        The helper is killed, and its mounts with it, before the cancellation goes on.
    """
    finished = await process.run_async(
        # -S: neither site packages nor their start-up files; -P: nothing from the directory
        [sys.executable, "-S", "-s", "-P", "-B", "-m", module],
        variables=_VARIABLES,
        stdin=json.dumps(dict(job)).encode(),
        timeout_seconds=TIMEOUT_SECONDS,
        pass_descriptors=descriptors,
    )
    answer: object = None
    if finished.succeeded:
        try:
            answer = json.loads(finished.stdout)
        except ValueError:
            answer = None
    if not isinstance(answer, dict):
        said = finished.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1] if said else f"its helper ended with {finished.exit_code}"
        msg = f"cannot {what}: {reason[:300]}"
        raise WorkspaceError(msg, hint="Retry; if it happens again, report it with this sentence.")
    return answer
