"""What an agent printed, as one trajectory file beside its results; claims kept apart from facts.

On-disk format (version 1): ``trajectory.json`` with `claims` (everything that the agent said of
itself), `observed` (what our side saw), and `steps`. The raw output stays beside it, whole.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from forkyard.agents.interface import AgentDriver, AgentEnding
from forkyard.agents.limitations import known_limitations
from forkyard.agents.trajectory import Trajectory
from forkyard.base.durable import make_directory, write_file
from forkyard.model.execution import ExecResult
from forkyard.model.run import AgentSpec

FORMAT = "forkyard-trajectory/1"
FILE_NAME = "trajectory.json"
MOST_BYTES = 64 * 1024**2
"""Of output that is read; the rest is in the output only."""
_STRANGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
_log = logging.getLogger(__name__)

LONGEST_LINE = 8 * 1024**2
"""A longer one is cut, so no driver can read it: it is counted as skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What an agent's output says."""

    told: AgentEnding | None = None
    trajectory: Trajectory | None = None

    @property
    def limitations(self) -> str | None:
        """Give what the agent states of its work's limits."""
        return known_limitations(self.trajectory)


def read_story(
    driver: AgentDriver,
    agent: AgentSpec,
    result: ExecResult | None,
    stdout: Path,
    *,
    mask: Callable[[bytes], bytes] = bytes,
) -> Story:
    """Read an agent's output.

    Args:
        driver: Of the agent.
        agent: Whose output it is.
        result: How its command ended; None: nobody knows.
        stdout: The file; one that is not there is empty.
        mask: Takes secrets out of a line, since some of what is told goes into the journal.
    """
    try:
        with stdout.open("rb") as file:
            trajectory = driver.trajectory(_lines(file, mask))
    except FileNotFoundError:
        trajectory = None
    except _STRANGE as error:
        # what somebody hostile printed must not cost an attempt its result
        _log.warning("Cannot read the transcript of agent %s: %s", agent.name, type(error).__name__)
        trajectory = None
    told = None if result is None else driver.ending(agent, result, trajectory)
    return Story(told=told, trajectory=trajectory)


def _lines(file: BinaryIO, mask: Callable[[bytes], bytes]) -> Iterator[str]:
    read = 0
    while read < MOST_BYTES:
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        read += len(line)
        yield mask(line).decode("utf-8", "replace")


def keep_story(
    folder: Path,
    story: Story,
    observed: Mapping[str, object],
    *,
    mask: Callable[[bytes], bytes],
) -> None:
    """Write the trajectory beside the attempt's other results; nothing where there is none.

    Durability:
        On disk when this returns.
    """
    found = story.trajectory
    if found is None:
        return
    claims = asdict(found)
    steps = claims.pop("steps")
    skipped = claims.pop("skipped_lines")
    document = {
        "format": FORMAT,
        "claims": {**claims, "known_limitations": story.limitations or "none stated"},
        "observed": dict(observed),
        "steps": [
            {"kind": type(step).__name__.lower(), **fields}
            for step, fields in zip(found.steps, steps, strict=True)
        ],
        "skipped_lines": skipped,
    }
    make_directory(folder)
    content = json.dumps(document, ensure_ascii=True, indent=1).encode("ascii")
    write_file(folder / FILE_NAME, mask(content) + b"\n")
