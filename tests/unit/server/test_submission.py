"""From a request to tasks: names looked up, folders read, and every mistake told before work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.errors import ConfigError, ConflictError, NotFoundError
from forkyard.model.ids import new_run_id, new_snapshot_id, new_template_id
from forkyard.model.provider import Api, GatewaySettings, Provider
from forkyard.model.run import AgentSpec, Run, RunLimits, RunState, Task, TaskProgress
from forkyard.model.workspace import (
    Limits,
    Snapshot,
    SnapshotState,
    Template,
    TemplateSpec,
    TemplateState,
)
from forkyard.server.access import ModelAccess
from forkyard.server.submission import Submission
from forkyard.store.blobs import Blobs
from forkyard.store.journal import Journal
from forkyard.wire.taskfile import RunRequest, StartRequest, TaskRequest, parse_run

pytestmark = pytest.mark.anyio


@dataclass(slots=True)
class FakeBuilder:
    """Builds at once, and remembers what it was asked."""

    journal: Journal
    specs: dict[str, TemplateSpec] = field(default_factory=dict)
    builds: list[str] = field(default_factory=list)
    of_values: dict[tuple[tuple[str, str], ...], Snapshot] = field(default_factory=dict)

    async def apply(self, name: str, spec: TemplateSpec) -> Template:
        """Keep a recipe."""
        self.specs[name] = spec
        template = self.journal.state.template_named(name) or Template(
            id=new_template_id(),
            name=name,
            spec=spec,
            state=TemplateState.APPLIED,
            created_at="",
        )
        await self.journal.append(template)
        return template

    def built(self, name: str, values: Mapping[str, str]) -> Snapshot | None:
        """Give what was built with these values before."""
        return self.of_values.get((("", name), *sorted(values.items())))

    async def build(self, name: str, values: Mapping[str, str] | None = None) -> Template:
        """Make a snapshot."""
        self.builds.append(name)
        template = self.journal.state.template_named(name)
        assert template is not None
        snapshot = await add_snapshot(self.journal, f"{name}@{len(self.builds)}")
        if values:
            self.of_values[(("", name), *sorted(values.items()))] = snapshot
            return replace(template, last_build=snapshot.id)
        ready = replace(template, state=TemplateState.READY, snapshot=snapshot.id)
        await self.journal.append(ready)
        return ready


@dataclass(slots=True)
class FakeQueue:
    """Takes runs and keeps them."""

    runs: list[Run] = field(default_factory=list)

    async def submit(self, name: str, tasks: Sequence[Task], limits: RunLimits) -> Run:
        """Queue a run."""
        run = Run(
            id=new_run_id(),
            name=name,
            tasks=tuple(tasks),
            progress=tuple(TaskProgress() for _ in tasks),
            limits=limits,
            state=RunState.QUEUED,
            created_at="",
        )
        self.runs.append(run)
        return run


@dataclass(slots=True, kw_only=True)
class Desk:
    """A submission over fakes."""

    submission: Submission
    journal: Journal
    builder: FakeBuilder
    queue: FakeQueue
    blobs: Blobs


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """Open a journal and put the submission before it."""
    journal = Journal.open(tmp_path / "j" / "state.db", SystemClock(), allow_volatile=True)
    builder, queue, blobs = FakeBuilder(journal), FakeQueue(), Blobs(tmp_path / "blobs")
    access = ModelAccess(
        settings=lambda: GatewaySettings(
            providers=(
                Provider(name="anthropic", api=Api.ANTHROPIC, base_url="http://x", secret="KEY"),  # noqa: S106 - its name
                Provider(name="openai", api=Api.OPENAI, base_url="http://y", secret="OTHER"),  # noqa: S106 - its name
            )
        ),
        secrets=lambda: {"KEY"},
    )
    submission = Submission(
        journal=journal, templates=builder, blobs=blobs, queue=queue, access=access
    )
    yield Desk(submission=submission, journal=journal, builder=builder, queue=queue, blobs=blobs)
    journal.close()


async def add_snapshot(
    journal: Journal, name: str, state: SnapshotState = SnapshotState.READY
) -> Snapshot:
    """Journal a snapshot."""
    snapshot = Snapshot(
        id=new_snapshot_id(), name=name, state=state, created_at="", limits=Limits(processes=99)
    )
    await journal.append(snapshot)
    return snapshot


def request(folder: Path, *starts: StartRequest, held_out: tuple[str, ...] = ()) -> RunRequest:
    """Ask for one task per start."""
    agent = AgentSpec(name="a", driver="command", command="true")
    tasks = tuple(
        TaskRequest(name=f"t{index}", prompt="p", start=start, agents=(agent,), held_out=held_out)
        for index, start in enumerate(starts)
    )
    return RunRequest(name="r", tasks=tasks, folder=str(folder))


async def test_a_snapshot_is_found_by_name_and_gives_its_limits(desk: Desk, tmp_path: Path) -> None:
    """Nothing is built for it."""
    snapshot = await add_snapshot(desk.journal, "base")
    run = await desk.submission.submit(request(tmp_path, StartRequest(snapshot="base")))

    assert [task.snapshot for task in run.tasks] == [snapshot.id]
    assert run.tasks[0].limits.processes == 99
    assert desk.builder.builds == []


async def test_a_template_is_built_once_and_then_used_as_it_is(desk: Desk, tmp_path: Path) -> None:
    """The second run starts from the same snapshot."""
    await desk.builder.apply("tools", TemplateSpec())
    first = await desk.submission.submit(request(tmp_path, StartRequest(template="tools")))
    second = await desk.submission.submit(request(tmp_path, StartRequest(template="tools")))

    assert first.tasks[0].snapshot == second.tasks[0].snapshot
    assert desk.builder.builds == ["tools"]


async def test_a_template_is_built_once_for_each_set_of_values(desk: Desk, tmp_path: Path) -> None:
    """The same values share a snapshot, others get their own, the template's own stays."""
    await desk.builder.apply("tools", TemplateSpec())
    high = StartRequest(template="tools", values=(("LEVEL", "high"),))
    low = StartRequest(template="tools", values=(("LEVEL", "low"),))
    runs = [await desk.submission.submit(request(tmp_path, one)) for one in (high, low, high)]
    snapshots = [run.tasks[0].snapshot for run in runs]
    assert snapshots[0] == snapshots[2] != snapshots[1]
    assert desk.builder.builds == ["tools", "tools"]


async def test_a_repository_is_taken_in_once_for_all_tasks_that_start_there(
    desk: Desk, tmp_path: Path
) -> None:
    """By its absolute path; a later run takes it in again, as it is then."""
    (tmp_path / "repo").mkdir()
    start = StartRequest(repository_path="repo", include_uncommitted=True)
    run = await desk.submission.submit(request(tmp_path, start, start))
    await desk.submission.submit(request(tmp_path, start))

    assert run.tasks[0].snapshot == run.tasks[1].snapshot
    ((name, spec),) = desk.builder.specs.items()
    assert desk.builder.builds == [name, name]
    assert spec.repository is not None
    assert (spec.repository.path, spec.repository.include_uncommitted) == (
        str(tmp_path / "repo"),
        True,
    )


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (StartRequest(snapshot="none"), NotFoundError),
        (StartRequest(template="none"), NotFoundError),
        (StartRequest(snapshot="pending"), ConflictError),
    ],
)
async def test_a_start_that_is_not_there_stops_before_anything_is_built(
    desk: Desk, tmp_path: Path, start: StartRequest, kind: type[Exception]
) -> None:
    """Also when it is the second task's."""
    await add_snapshot(desk.journal, "pending", SnapshotState.PENDING)
    asked = request(tmp_path, StartRequest(repository_path="."), start)
    with pytest.raises(kind, match="cannot start from"):
        await desk.submission.submit(asked)

    assert desk.builder.builds == []
    assert desk.queue.runs == []


async def test_held_out_files_are_kept_as_blobs_under_their_relative_paths(
    desk: Desk, tmp_path: Path
) -> None:
    """With their execute bit; later edits of the folder change nothing."""
    await add_snapshot(desk.journal, "base")
    folder = tmp_path / "hidden"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_x.py").write_text("assert 1")
    (folder / "run").write_text("#!/bin/sh")
    (folder / "run").chmod(0o755)
    asked = request(tmp_path, StartRequest(snapshot="base"), held_out=("hidden",))
    run = await desk.submission.submit(asked)
    kept = {one.path: one for one in run.tasks[0].held_out}

    assert set(kept) == {"run", "tests/test_x.py"}
    assert (kept["run"].executable, kept["tests/test_x.py"].executable) == (True, False)
    assert desk.blobs.read(kept["tests/test_x.py"].sha256) == b"assert 1"


async def test_every_wrong_folder_is_told_at_once(desk: Desk, tmp_path: Path) -> None:
    """With the key that names it; nothing is built."""
    (tmp_path / "empty").mkdir()
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "passwd").symlink_to("/etc/passwd")
    git = tmp_path / "git" / ".git" / "hooks"
    git.mkdir(parents=True)
    (git / "post-checkout").write_text("x")
    asked = request(
        tmp_path,
        StartRequest(repository_path="nowhere"),
        held_out=("missing", "empty", "linked", "git"),
    )
    with pytest.raises(ConfigError) as told:
        await desk.submission.submit(asked)

    reasons = {one.key: one.message for one in told.value.problems}
    assert set(reasons) == {"start.repository", *(f"held_out.{place}" for place in range(4))}
    assert "is no ordinary file" in reasons["held_out.2"]
    assert ".git folder" in reasons["held_out.3"]
    assert desk.builder.builds == []


async def test_a_run_that_nobody_waits_for_any_more_is_not_queued(
    desk: Desk, tmp_path: Path
) -> None:
    """Whoever asked may leave while the repository is taken in."""
    asked = request(tmp_path, StartRequest(repository_path="."))

    async def left() -> bool:
        return desk.builder.builds == []

    with pytest.raises(ConflictError, match="went away"):
        await desk.submission.submit(asked, is_wanted=left)
    assert desk.queue.runs == []


LATE = """\
name: late
start: {template: nowhere}
held_out: [gone/]
agents:
  - {name: a, driver: codex}
prompt: p
"""
LATE_TASKS = """\
name: late
held_out: [gone/]
agents:
  - {name: a, driver: codex}
tasks:
  - {name: one, prompt: p, start: {repository: {path: .}}}
  - name: two
    prompt: p
    start:
      repository: {path: nowhere}
"""


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (LATE, [(3, "held_out.0"), (5, "agents.0.provider")]),
        (
            LATE_TASKS,
            [
                (2, "tasks.0.held_out.0"),
                (4, "tasks.0.agents.0.provider"),
                (10, "tasks.1.start.repository"),
                (2, "tasks.1.held_out.0"),
                (4, "tasks.1.agents.0.provider"),
            ],
        ),
    ],
)
async def test_late_problems_have_their_line_when_a_file_was_written(
    desk: Desk, tmp_path: Path, text: str, places: list[tuple[int, str]]
) -> None:
    """Also where the key is shared by all tasks."""
    with pytest.raises(ConfigError) as told:
        await desk.submission.submit(parse_run(text, str(tmp_path / "late.yaml")))

    found = [(one.line, one.key) for one in told.value.problems]
    assert sorted(found, key=str) == sorted(places, key=str)
    assert {one.file for one in told.value.problems} == {str(tmp_path / "late.yaml")}


async def test_unknown_start_has_its_line_when_a_file_was_written(
    desk: Desk, tmp_path: Path
) -> None:
    """It stays an error of what is not found."""
    text = LATE.replace("held_out: [gone/]", "").replace("driver: codex", "command: 'true'")

    with pytest.raises(NotFoundError, match=r"late\.yaml:2: start\.template: cannot start from"):
        await desk.submission.submit(parse_run(text, str(tmp_path / "late.yaml")))
