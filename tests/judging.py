"""A judge's bench with real parts: journal, sandboxes, collector, evaluator; no server."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from forkyard.base.clock import SystemClock
from forkyard.candidate.collector import Collector
from forkyard.config import Layout
from forkyard.evaluation.evaluator import Evaluator
from forkyard.model.candidate import Candidate
from forkyard.model.ids import new_attempt_id, new_snapshot_id
from forkyard.model.run import HeldOutFile, Task
from forkyard.model.verdict import Baseline, Check, Evaluation
from forkyard.model.workspace import REPOSITORY, Environment, Snapshot, SnapshotState
from forkyard.store.blobs import Blobs
from forkyard.store.journal import Journal
from forkyard.workspace.fleet import LocalFleet
from forkyard.workspace.workspaces import Workspaces
from sandboxes import make_layer, prepare


class JudgeBench:
    """One snapshot with one task; agents are shell scripts run in forks of it."""

    def __init__(self, layout: Layout) -> None:
        """Wire the parts."""
        clock = SystemClock()
        self.layout = layout
        self.journal = Journal.open(layout.database, clock, allow_volatile=True)
        self.fleet = LocalFleet(layout)
        self.collector = Collector(layout, clock)
        self.workspaces = Workspaces(self.journal, self.fleet, layout, clock)
        self.evaluator = Evaluator(self.workspaces, self.collector, layout, clock)
        self.snapshot: Snapshot | None = None

    async def prepare(
        self, files: Mapping[str, str], environment: Environment | None = None
    ) -> Snapshot:
        """Make a ready snapshot whose repository holds these files."""
        self.workspaces.layers.prepare()
        layer = make_layer(self.layout, files)
        base = await self.collector.record((layer,), REPOSITORY)
        self.snapshot = Snapshot(
            id=new_snapshot_id(), name="base", state=SnapshotState.READY, created_at="now",
            layers=(layer,), base=base, environment=environment or Environment(),
        )  # fmt: skip
        await self.journal.append(self.snapshot)
        return self.snapshot

    def task(
        self,
        *checks: Check,
        protected: tuple[str, ...] = (),
        held_out: Mapping[str, str] | None = None,
    ) -> Task:
        """Describe a task on the snapshot; held-out contents go to the blob store."""
        assert self.snapshot is not None
        blobs = Blobs(self.layout.blobs)
        return Task(
            name="t", prompt="p", snapshot=self.snapshot.id, agents=(), checks=checks,
            protected=protected,
            held_out=tuple(
                HeldOutFile(path=path, sha256=blobs.put(text.encode()))
                for path, text in (held_out or {}).items()
            ),
        )  # fmt: skip

    async def attempt(self, script: str, task: Task) -> Candidate:
        """Let an agent work in a fork, and collect what it did."""
        assert self.snapshot is not None
        assert self.snapshot.base is not None
        workspace = await self.workspaces.create(self.snapshot.id)
        try:
            await self.workspaces.exec(
                workspace.id, ("/bin/sh", "-c", script), working_directory=REPOSITORY,
                timeout_seconds=60,
            )  # fmt: skip
            workspace = await self.workspaces.stop(workspace.id)
            attempt = new_attempt_id()
            return await self.collector.collect(
                attempt, workspace, self.snapshot.base, repository=REPOSITORY,
                out=self.layout.runs / attempt, protected=task.protected,
            )  # fmt: skip
        finally:
            await self.workspaces.delete(workspace.id)

    async def baseline(self, task: Task, repeats: int = 1) -> Baseline:
        """Judge the base."""
        assert self.snapshot is not None
        return await self.evaluator.baseline(task, self.snapshot, repeats=repeats)

    async def judge(self, candidate: Candidate, task: Task, baseline: Baseline) -> Evaluation:
        """Judge one candidate."""
        assert self.snapshot is not None
        out = self.layout.runs / candidate.id
        return await self.evaluator.evaluate(task, self.snapshot, candidate, baseline, out=out)

    async def close(self) -> None:
        """End what runs."""
        await self.workspaces.close()
        for sandbox in await self.fleet.running():
            await self.fleet.stop(sandbox.workspace, epoch=sandbox.epoch)
        await self.fleet.close()
        self.journal.close()


@contextmanager
def open_bench() -> Iterator[tuple[JudgeBench, asyncio.Runner]]:
    """Give a bench in a folder of its own, and the loop that all its calls must use."""
    folder = Path(tempfile.mkdtemp(prefix="fy-judge-"))
    folder.chmod(0o755)
    home = folder / "s"
    home.mkdir(mode=0o700)
    with asyncio.Runner() as runner:

        async def make() -> JudgeBench:
            return JudgeBench(prepare(home))

        bench = runner.run(make())
        try:
            yield bench, runner
        finally:
            runner.run(bench.close())
            shutil.rmtree(folder)
