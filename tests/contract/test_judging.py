"""What the evaluation may rely on: the judge's hands and the evaluator, real ones and fakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.coordination import FakeEvaluator, make_world
from fakes.judging import FakeYard, Files, Ran
from forkyard.base.clock import SystemClock
from forkyard.config import Layout
from forkyard.coordinator.interface import EvaluatorPort
from forkyard.evaluation.evaluator import Evaluator
from forkyard.evaluation.interface import JudgeWorkspaces, TreeKeeper
from forkyard.model.candidate import Candidate, CandidateStatus
from forkyard.model.ids import AttemptId, CandidateId, SnapshotId, new_evaluation_id
from forkyard.model.run import HeldOutFile, Task
from forkyard.model.verdict import Assurance, Baseline, Check, VerdictKind
from forkyard.model.workspace import RecordedBase, Snapshot, SnapshotState
from judging import JudgeBench
from sandboxes import prepare

pytestmark = pytest.mark.anyio

BASE = {"app.py": "bad", "tests/test_app.py": "asserts", "conftest.py": "the base's"}
CHANGED = {"app.py": "good", "tests/test_app.py": "looks away", "conftest.py": "forges"}
SHOW = "cat app.py tests/test_app.py conftest.py"


@dataclass(slots=True)
class Hands:
    """A snapshot, its base, and a candidate whose files are `CHANGED`."""

    workspaces: JudgeWorkspaces
    keeper: TreeKeeper
    snapshot: SnapshotId
    base: RecordedBase
    candidate: Candidate
    held_out: HeldOutFile
    layout: Layout

    async def seen(self, *, restore: bool, held_out: bool = False) -> str:
        """Lay the candidate as asked; give what a command sees."""
        workspace = await self.workspaces.create(self.snapshot, ephemeral=True)
        try:
            await self.keeper.materialise(workspace, self.base, self.candidate)
            if restore:
                await self.keeper.restore(workspace, self.base, ("tests/**",))
            if held_out:
                await self.keeper.add_files(workspace, (self.held_out,), self.base.repository)
            done = await self.workspaces.exec(
                workspace.id,
                ("/bin/sh", "-c", SHOW),
                working_directory=self.base.repository,
                variables={"REPORT": "/workspace/.report"},
                timeout_seconds=60.0,
                keep_background=False,
            )
            await self.workspaces.stop(workspace.id)
            return (self.layout.exec(workspace.id, done.id) / "stdout").read_text()
        finally:
            await self.workspaces.delete(workspace.id)
            await self.workspaces.delete(workspace.id)


def _cat(_: str, files: Files) -> Ran:
    return Ran(stdout="".join(files[name] for name in BASE))


@asynccontextmanager
async def fake_hands(home: Path) -> AsyncIterator[Hands]:
    """Give the fake."""
    layout = prepare(home)
    yard = FakeYard(layout, dict(BASE), _cat)
    candidate = _candidate()
    yard.candidates[candidate.id] = CHANGED
    base = RecordedBase(repository="/workspace/repo", commit=None, tree="0" * 40)
    held = HeldOutFile(path="tests/test_app.py", sha256="hidden")
    yield Hands(yard, yard, SnapshotId("snap_1"), base, candidate, held, layout)


@asynccontextmanager
async def real_hands(home: Path) -> AsyncIterator[Hands]:
    """Give the collector and real sandboxes."""
    bench = JudgeBench(prepare(home))
    try:
        snapshot = await bench.prepare(BASE)
        assert snapshot.base is not None
        task = bench.task(held_out={"tests/test_app.py": "hidden"})
        script = "; ".join(f"printf '{text}' > {name}" for name, text in CHANGED.items())
        candidate = await bench.attempt(script, task)
        (held,) = task.held_out
        yield Hands(
            bench.workspaces, bench.collector, snapshot.id, snapshot.base, candidate, held,
            bench.layout,
        )  # fmt: skip
    finally:
        await bench.close()


@pytest.fixture(params=[fake_hands, real_hands], ids=["fake", "real"])
async def hands(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Hands]:
    """Give each of them in turn."""
    async with request.param(home) as made:
        yield made


async def test_a_candidates_files_are_seen_when_they_are_laid(hands: Hands) -> None:
    """Over the base's."""
    assert await hands.seen(restore=False) == "goodlooks awayforges"


async def test_protected_files_and_settings_are_the_bases_when_restored(hands: Hands) -> None:
    """The task's and the built-in ones; everything else is the candidate's."""
    assert await hands.seen(restore=True) == "goodassertsthe base's"


async def test_held_out_files_have_the_last_word(hands: Hands) -> None:
    """Laid after everything else."""
    assert await hands.seen(restore=True, held_out=True) == "goodhiddenthe base's"


# -- the evaluator, as the coordinator sees it ---------------------------------------------------

SNAPSHOT = Snapshot(
    id=SnapshotId("snap_1"), name="s", state=SnapshotState.READY, created_at="",
    base=RecordedBase(repository="/workspace/repo", commit=None, tree="0" * 40),
)  # fmt: skip
TASK = Task(
    name="t", prompt="p", snapshot=SNAPSHOT.id, agents=(), checks=(Check(name="c", run="good?"),)
)


def _candidate() -> Candidate:
    return Candidate(
        id=CandidateId("cand_1"), attempt=AttemptId("att_1"), status=CandidateStatus.COMPLETE,
        base_tree="0" * 40, result_tree="1" * 40, patch_sha256="", patch_bytes=0,
        manifest_sha256="", created_at="",
    )  # fmt: skip


@pytest.fixture(params=["fake", "real"])
def evaluator(request: pytest.FixtureRequest, tmp_path: Path) -> EvaluatorPort:
    """Give the coordinator's fake, and the real one over fake hands."""
    if request.param == "fake":
        return FakeEvaluator(make_world(tmp_path / "s"))
    layout = Layout(tmp_path / "s")
    yard = FakeYard(
        layout, dict(BASE), lambda _, files: Ran(exit_code=0 if files["app.py"] == "good" else 1)
    )
    yard.candidates["cand_1"] = CHANGED
    return Evaluator(yard, yard, layout, SystemClock())


async def test_a_good_candidate_is_solved_under_the_name_that_was_given(
    evaluator: EvaluatorPort, tmp_path: Path
) -> None:
    """The evaluation's id is also the owner of its fork."""
    baseline = await evaluator.baseline(TASK, SNAPSHOT, owner="run_1", out=tmp_path / "b")
    assert baseline.trouble is None
    name = new_evaluation_id()
    judged = await evaluator.evaluate(
        TASK, SNAPSHOT, _candidate(), baseline, out=tmp_path / "e", evaluation_id=name
    )
    assert (judged.id, judged.candidate, judged.result_tree) == (name, "cand_1", "1" * 40)
    assert (judged.verdict, judged.assurance) == (VerdictKind.SOLVED, Assurance.IN_PROCESS)
    assert judged.reasons
    assert judged.trouble is None


async def test_nobody_is_judged_when_the_base_could_not_be(
    evaluator: EvaluatorPort, tmp_path: Path
) -> None:
    """Trouble of ours is a verdict of its own, with the trouble in words."""
    baseline = Baseline(checks=(), trouble="the deadline passed")
    judged = await evaluator.evaluate(TASK, SNAPSHOT, _candidate(), baseline, out=tmp_path / "e")
    assert (judged.verdict, judged.assurance) == (VerdictKind.NOT_EVALUATED, Assurance.NONE)
    assert judged.trouble == "the deadline passed"
    assert judged.reasons


async def test_two_are_judged_at_once(evaluator: EvaluatorPort, tmp_path: Path) -> None:
    """Neither waits for nor knows of the other."""
    baseline = await evaluator.baseline(TASK, SNAPSHOT, owner="run_1", out=tmp_path / "b")
    first, second = await asyncio.gather(
        evaluator.evaluate(TASK, SNAPSHOT, _candidate(), baseline, out=tmp_path / "1"),
        evaluator.evaluate(TASK, SNAPSHOT, _candidate(), baseline, out=tmp_path / "2"),
    )
    assert first.id != second.id
    assert first.verdict is second.verdict is VerdictKind.SOLVED
