"""What a build keeps of each of its tasks beside their logs: when it ran, and how it ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from forkyard.model.execution import ExecResult
from forkyard.model.workspace import TemplateTask

FILE_NAME = "tasks.json"
RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task of one build."""

    name: str
    type: str
    number: int
    """Its place, from 1; its output is in ``task-NUMBER.stdout`` and ``.stderr``."""
    started_at: str
    background: bool = False
    as_root: bool = False
    outcome: str = RUNNING
    """A clause, such as ``ended with status 0``."""
    is_ok: bool = True
    exit_code: int | None = None
    elapsed_seconds: float = 0.0

    @classmethod
    def begun(cls, task: TemplateTask, number: int, started_at: str) -> TaskRecord:
        """Give the record of a task that starts."""
        return cls(
            name=task.name,
            type=task.type.value,
            number=number,
            started_at=started_at,
            background=task.background,
            as_root=task.run_as_root,
        )

    def ended(self, told: str, result: ExecResult | None, *, is_ok: bool) -> TaskRecord:
        """Give the record of the same task at its end."""
        return replace(
            self,
            outcome=told,
            is_ok=is_ok,
            exit_code=None if result is None else result.exit_code,
            elapsed_seconds=0.0 if result is None else result.elapsed_seconds,
        )


def write_records(folder: Path, records: tuple[TaskRecord, ...]) -> None:
    """Put all of a build's records in place of those before; a reader sees one or the other."""
    new = folder / f".{FILE_NAME}.new"
    new.write_text(json.dumps([asdict(one) for one in records], indent=1), encoding="utf-8")
    new.replace(folder / FILE_NAME)


def read_records(folder: Path) -> tuple[TaskRecord, ...]:
    """Read the records of a template's newest build; none where it has not run."""
    try:
        found = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return ()
    known = {one.name for one in fields(TaskRecord)}
    return tuple(
        TaskRecord(**{key: value for key, value in one.items() if key in known}) for one in found
    )
