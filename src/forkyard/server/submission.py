"""From what a task file asks for to tasks that can run: names looked up, folders read, bases built.

Everything that can be wrong is told before anything is made. A repository to start from becomes a
snapshot of its own: later edits of the user's tree change nothing about a run.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from forkyard.coordinator.keeping import automatic_name
from forkyard.errors import ConfigError, ConflictError, NotFoundError, Problem, WorkspaceError
from forkyard.model.run import HeldOutFile, Run, RunLimits, Task
from forkyard.model.workspace import (
    REPOSITORY,
    NetworkPolicy,
    RepositorySource,
    Snapshot,
    SnapshotState,
    Template,
    TemplateSpec,
    TemplateTask,
)
from forkyard.store.blobs import Blobs
from forkyard.store.journal import Journal
from forkyard.wire.taskfile import RunRequest, StartRequest, TaskRequest

MOST_HELD_OUT_FILES = 10_000
MOST_HELD_OUT_BYTES = 256 * 1024**2


class Builder(Protocol):
    """Keeps and builds templates."""

    async def apply(self, name: str, spec: TemplateSpec) -> Template:
        """Keep a recipe under a name."""
        ...

    async def build(self, name: str, values: Mapping[str, str] | None = None) -> Template:
        """Build it to its end."""
        ...

    def built(self, name: str, values: Mapping[str, str]) -> Snapshot | None:
        """Give the newest ready snapshot that a build with these values made."""
        ...


class Queue(Protocol):
    """Takes runs."""

    async def submit(self, name: str, tasks: Sequence[Task], limits: RunLimits) -> Run:
        """Queue a run with all its attempts."""
        ...


class Access(Protocol):
    """Knows what agents need of the gateway."""

    async def problems(self, request: RunRequest) -> list[Problem]:
        """List what would keep an agent from its model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Turns requests into runs."""

    journal: Journal
    templates: Builder
    blobs: Blobs
    queue: Queue
    access: Access
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Taking repositories in is bound by the disk; two builds of one template are a conflict."""

    async def submit(
        self, request: RunRequest, *, is_wanted: Callable[[], Awaitable[bool]] | None = None
    ) -> Run:
        """Look everything up, build what must be built, and queue the run.

        Args:
            request: What is asked for.
            is_wanted: Asked last: whether whoever asked is still there. Taking a repository in
                may take minutes, and a run that nobody knows of would work for nobody.

        Raises:
            ConfigError: Folders that are missing, held-out paths that cannot be laid: all at once.
            NotFoundError: No such snapshot or template.
            ConflictError: The snapshot is not ready.
            WorkspaceError: The repository could not be taken in.

        Durability:
            The run and its attempts are on disk when this returns.
        """
        problems = await asyncio.to_thread(self._problems, request)
        problems += await self.access.problems(request)
        problems = [request.located(one) for one in problems]
        if problems:
            count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise ConfigError(
                f"cannot submit run {request.name}: {count}: {problems[0]}",
                hint="Correct them, then submit it again.",
                problems=tuple(problems),
            )
        for index, task in enumerate(request.tasks):
            self._look_up_first(request, index, task.start)
        made: dict[StartRequest, Snapshot] = {}
        tasks: list[Task] = []
        for asked in request.tasks:
            if asked.start not in made:
                made[asked.start] = await self._start(request, asked)
            snapshot = made[asked.start]
            tasks.append(
                Task(
                    name=asked.name,
                    prompt=asked.prompt,
                    snapshot=snapshot.id,
                    agents=asked.agents,
                    checks=asked.checks,
                    repository=asked.repository,
                    scope=asked.scope,
                    protected=asked.protected,
                    held_out=await asyncio.to_thread(self._held_out, request, asked),
                    limits=snapshot.limits,
                    allow=_allowed(asked, snapshot),
                )
            )
        if is_wanted is not None and not await is_wanted():
            raise ConflictError(
                f"cannot submit run {request.name}: whoever asked for it went away meanwhile"
            )
        return await self.queue.submit(request.name, tasks, request.limits)

    # -- where it starts -----------------------------------------------------------------------

    def _look_up_first(self, request: RunRequest, index: int, start: StartRequest) -> None:
        """Look a start up; whoever wrote a file is told where it names what is not there."""
        try:
            self._look_up(start)
        except (NotFoundError, ConflictError) as error:
            kind = "snapshot" if start.snapshot is not None else "template"
            where = f"tasks.{index}." if len(request.tasks) > 1 else ""
            problem = request.located(Problem(message=error.message, key=f"{where}start.{kind}"))
            if problem.line is None:
                raise
            raise type(error)(str(problem), hint=error.hint) from None

    def _look_up(self, start: StartRequest) -> Snapshot | Template | None:
        state = self.journal.state
        if start.snapshot is not None:
            snapshot = state.snapshot_named(start.snapshot)
            if snapshot is None or snapshot.state is SnapshotState.DELETED:
                raise NotFoundError(
                    f"cannot start from snapshot {start.snapshot}: no such snapshot",
                    hint="List them with `forkyard snapshot list`.",
                )
            if snapshot.state is not SnapshotState.READY:
                raise ConflictError(
                    f"cannot start from snapshot {start.snapshot}: it is {snapshot.state}, and"
                    " only a ready one can be forked",
                    hint=f"Look at it with `forkyard snapshot show {snapshot.id}`.",
                )
            return snapshot
        if start.template is not None:
            template = state.template_named(start.template)
            if template is None:
                raise NotFoundError(
                    f"cannot start from template {start.template}: no such template",
                    hint="List them with `forkyard template list`.",
                )
            return template
        return None

    async def _start(self, request: RunRequest, asked: TaskRequest) -> Snapshot:
        found = self._look_up(asked.start)
        if isinstance(found, Snapshot):
            return found
        if isinstance(found, Template) and asked.start.values:
            return await self._with_values(found, dict(asked.start.values))
        if isinstance(found, Template):
            built = None if found.snapshot is None else self.journal.state.snapshots[found.snapshot]
            if built is not None and built.state is SnapshotState.READY:
                return built
            return self._snapshot_of(await self.templates.build(found.name))
        path = request.resolve(asked.start.repository_path or ".")
        source = RepositorySource(path=path, include_uncommitted=asked.start.include_uncommitted)
        setup = tuple(
            TemplateTask(name=f"setup-{number}", run=command, working_directory=REPOSITORY)
            for number, command in enumerate(asked.start.setup, start=1)
        )
        # One template for one folder: runs from it add snapshots, not templates.
        name = automatic_name(request.name, path)
        async with self.one_at_a_time:
            await self.templates.apply(name, TemplateSpec(repository=source, tasks=setup))
            return self._snapshot_of(await self.templates.build(name))

    async def _with_values(self, template: Template, values: dict[str, str]) -> Snapshot:
        """Give the snapshot of other values of a template's vars; built once for the same ones."""
        async with self.one_at_a_time:
            found = self.templates.built(template.name, values)
            if found is not None:
                return found
            built = await self.templates.build(template.name, values)
        assert built.last_build is not None  # noqa: S101 - or it would have raised
        return self.journal.state.snapshots[built.last_build]

    def _snapshot_of(self, template: Template) -> Snapshot:
        if template.snapshot is None:
            raise WorkspaceError(
                template.trouble or f"cannot use template {template.name}: it has no snapshot",
                hint=f"Build it with `forkyard template build {template.name}`.",
            )
        return self.journal.state.snapshots[template.snapshot]

    # -- folders of the host --------------------------------------------------------------------

    def _problems(self, request: RunRequest) -> list[Problem]:
        problems: list[Problem] = []
        for index, task in enumerate(request.tasks):
            where = f"tasks.{index}." if len(request.tasks) > 1 else ""
            if task.start.repository_path is not None:
                path = request.resolve(task.start.repository_path)
                if not os.path.isdir(path):  # noqa: PTH112 - text in, text out
                    problems.append(
                        Problem(key=f"{where}start.repository", message=f"{path} is no folder")
                    )
            for place, folder in enumerate(task.held_out):
                key = f"{where}held_out.{place}"
                problems.extend(
                    Problem(key=key, message=reason)
                    for reason in _folder_problems(Path(request.resolve(folder)))
                )
        return problems

    def _held_out(self, request: RunRequest, asked: TaskRequest) -> tuple[HeldOutFile, ...]:
        files: dict[str, HeldOutFile] = {}
        for folder in asked.held_out:
            root = Path(request.resolve(folder))
            for path in _files(root):
                relative = path.relative_to(root).as_posix()
                try:
                    digest, _ = self.blobs.put_file(path)
                except OSError as error:
                    raise WorkspaceError(
                        f"cannot keep held-out file {path}: {error.strerror}"
                    ) from error
                mode = path.stat().st_mode
                files[relative] = HeldOutFile(
                    path=relative, sha256=digest, executable=bool(mode & stat.S_IXUSR)
                )
        return tuple(files.values())


def _files(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        found += [Path(folder, name) for name in sorted(names)]
    return found


def _folder_problems(root: Path) -> list[str]:
    if not root.is_dir():
        return [f"{root} is no folder"]
    files = _files(root)
    if not files:
        return [f"{root} holds no file"]
    if len(files) > MOST_HELD_OUT_FILES:
        return [f"{root} holds {len(files)} files, at most {MOST_HELD_OUT_FILES} are taken"]
    problems = [
        f"{path} is no ordinary file" for path in files if not stat.S_ISREG(path.lstat().st_mode)
    ]
    problems += [
        f"{path} lies in a .git folder" for path in files if ".git" in path.relative_to(root).parts
    ]
    size = sum(path.lstat().st_size for path in files)
    if size > MOST_HELD_OUT_BYTES:
        problems.append(f"{root} holds {size} bytes, at most {MOST_HELD_OUT_BYTES} are taken")
    return problems


def _allowed(asked: TaskRequest, snapshot: Snapshot) -> tuple[str, ...]:
    """Give the hosts that a task's attempts may reach: its own, else the template's allowlist."""
    if asked.allow is not None:
        return asked.allow
    plan = snapshot.environment.network
    if plan is None or plan.workspace is not NetworkPolicy.ALLOWLIST:
        return ()
    return plan.allow
