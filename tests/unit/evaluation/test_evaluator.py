"""The evaluator: order of hands, what is never run, and that no fork is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes.judging import FakeYard, Files, Ran
from forkyard.base.clock import SystemClock
from forkyard.config import Layout
from forkyard.errors import StoreError, WorkspaceError
from forkyard.evaluation.evaluator import Evaluator
from forkyard.model.candidate import Candidate, CandidateStatus
from forkyard.model.execution import StopReason
from forkyard.model.ids import AttemptId, CandidateId, EvaluationId, SnapshotId
from forkyard.model.run import HeldOutFile, Task
from forkyard.model.verdict import (
    Assurance,
    Baseline,
    Check,
    CheckRun,
    CheckState,
    Evaluation,
    TestOutcome,
    TestState,
    VerdictKind,
)
from forkyard.model.workspace import NetworkPolicy, RecordedBase, Snapshot, SnapshotState

SNAPSHOT = Snapshot(
    id=SnapshotId("snap_1"), name="s", state=SnapshotState.READY, created_at="",
    base=RecordedBase(repository="/workspace/repo", commit=None, tree="0" * 40),
)  # fmt: skip
BASE = {"app.py": "bad", "tests/test_app.py": "asserts"}
CHECK = Check(name="tests", run="run")
TASK = Task(
    name="t", prompt="p", snapshot=SNAPSHOT.id, agents=(), checks=(CHECK,), protected=("tests/**",)
)


def runner(_: str, files: Files) -> Ran:
    """Pass when the code is good, or when the test does not look."""
    good = files.get("app.py") == "good" or files.get("tests/test_app.py") == "looks away"
    return Ran(exit_code=0 if good else 1, stdout="log of it")


def candidate(name: str = "a", status: CandidateStatus = CandidateStatus.COMPLETE) -> Candidate:
    """Make a candidate."""
    return Candidate(
        id=CandidateId(f"cand_{name}"), attempt=AttemptId("att_1"), status=status, base_tree="0",
        result_tree="1", patch_sha256="", patch_bytes=0, manifest_sha256="", created_at="",
        problems=("path '.GIT/x' is refused",) if status is CandidateStatus.INVALID else (),
    )  # fmt: skip


class Bench:
    """An evaluator on a fake yard."""

    def __init__(self, folder: Path) -> None:
        """Make both."""
        self.layout = Layout(folder)
        self.yard = FakeYard(self.layout, dict(BASE), runner)
        self.out = folder / "runs" / "r" / "a"
        self.evaluator = Evaluator(self.yard, self.yard, self.layout, SystemClock())

    async def baseline(self, task: Task = TASK, repeats: int = 2) -> Baseline:
        """Judge the base."""
        return await self.evaluator.baseline(task, SNAPSHOT, repeats=repeats)

    async def judge(self, changes: Files, task: Task = TASK) -> Evaluation:
        """Judge the base and a candidate with these changes."""
        base = await self.baseline(task)
        self.yard.calls.clear()
        self.yard.created.clear()
        self.yard.candidates["cand_a"] = changes
        return await self.evaluator.evaluate(task, SNAPSHOT, candidate(), base, out=self.out)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Give a fresh bench."""
    return Bench(tmp_path)


def test_candidate_comes_first_then_protected_paths_then_held_out_files(bench: Bench) -> None:
    """The order decides who has the last word; before each check it is laid again."""
    task = Task(
        name="t", prompt="p", snapshot=SNAPSHOT.id, agents=(), protected=("tests/**",),
        checks=(CHECK, Check(name="lint", run="run")),
        held_out=(HeldOutFile(path="tests/test_app.py", sha256="hidden"),),
    )  # fmt: skip
    evaluation = asyncio.run(bench.judge({"app.py": "good"}, task))

    assert bench.yard.calls == [
        "create", "materialise", "restore", "add_files", "exec", "stop", "restore", "add_files",
        "exec", "stop", "delete",
    ]  # fmt: skip
    assert evaluation.verdict is VerdictKind.SOLVED
    assert evaluation.assurance is Assurance.IN_PROCESS


def test_fork_has_no_network_and_belongs_to_the_evaluation(bench: Bench) -> None:
    """The reaper can tell whose it is."""
    evaluation = asyncio.run(bench.judge({"app.py": "good"}))

    assert bench.yard.created == [(evaluation.id, NetworkPolicy.NONE)]


def test_edited_test_has_no_effect_when_it_is_protected(bench: Bench) -> None:
    """The protected path is the base's own when the check runs."""
    evaluation = asyncio.run(bench.judge({"tests/test_app.py": "looks away"}))

    assert evaluation.verdict is VerdictKind.FAILED
    assert evaluation.checks[0].tests == {"tests": TestState.STILL_FAILING}


def test_logs_are_kept_below_the_given_folder(bench: Bench) -> None:
    """What a check printed outlives its fork; the path is relative to the state directory."""
    evaluation = asyncio.run(bench.judge({"app.py": "good"}))

    (result,) = evaluation.checks
    assert result.log == "runs/r/a/tests.log"
    assert (bench.layout.home / result.log).read_text() == "log of it"


def test_each_check_gets_a_report_path_of_its_own_outside_the_repository(bench: Bench) -> None:
    """Nobody can know it before the check starts."""
    asyncio.run(bench.judge({"app.py": "good"}))

    assert len(set(bench.yard.reports)) == len(bench.yard.reports) == 3
    assert all(path.startswith("/workspace/.report-") for path in bench.yard.reports)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (CandidateStatus.INVALID, VerdictKind.INVALID),
        (CandidateStatus.INCOMPLETE, VerdictKind.INCOMPLETE),
    ],
)
def test_candidate_is_not_run_when_it_cannot_be_carried(
    bench: Bench, status: CandidateStatus, kind: VerdictKind
) -> None:
    """It has a verdict of its own, with the reason, even when the base has trouble."""
    for trouble in (None, "no sandbox"):
        evaluation = asyncio.run(
            bench.evaluator.evaluate(
                TASK,
                SNAPSHOT,
                candidate(status=status),
                Baseline(checks=(), trouble=trouble),
                out=bench.out,
            )
        )
        assert evaluation.verdict is kind
        assert evaluation.reasons
    assert bench.yard.calls == []


def test_nothing_is_run_when_the_base_has_trouble(bench: Bench) -> None:
    """All candidates are told at once."""
    evaluation = asyncio.run(
        bench.evaluator.evaluate(
            TASK,
            SNAPSHOT,
            candidate(),
            Baseline(checks=(), trouble="no sandbox"),
            out=bench.out,
            evaluation_id=EvaluationId("eval_x"),
        )
    )

    assert (evaluation.id, evaluation.verdict, evaluation.trouble) == (
        "eval_x", VerdictKind.NOT_EVALUATED, "no sandbox",
    )  # fmt: skip
    assert bench.yard.calls == []


@pytest.mark.parametrize("step", ["create", "materialise", "restore", "exec", "stop"])
def test_trouble_of_ours_is_a_verdict_and_leaves_no_fork(bench: Bench, step: str) -> None:
    """A sandbox that fails is not the candidate's defeat."""
    base = asyncio.run(bench.baseline())
    bench.yard.fails[step] = WorkspaceError("cannot do it: the disk is full")
    evaluation = asyncio.run(
        bench.evaluator.evaluate(TASK, SNAPSHOT, candidate(), base, out=bench.out)
    )

    assert evaluation.verdict is VerdictKind.NOT_EVALUATED
    assert evaluation.trouble == "cannot do it: the disk is full"
    assert bench.yard.files == {}
    if step != "materialise":
        assert asyncio.run(bench.baseline()).trouble == "cannot do it: the disk is full"


def test_verdict_stands_when_the_fork_cannot_be_deleted(bench: Bench) -> None:
    """The reaper's work is no reason to lose a result."""
    base = asyncio.run(bench.baseline())
    bench.yard.candidates["cand_a"] = {"app.py": "good"}
    bench.yard.fails["delete"] = WorkspaceError("cannot delete: busy")
    evaluation = asyncio.run(
        bench.evaluator.evaluate(TASK, SNAPSHOT, candidate(), base, out=bench.out)
    )

    assert evaluation.verdict is VerdictKind.SOLVED


def test_broken_journal_ends_the_evaluation_and_is_no_verdict(bench: Bench) -> None:
    """Nothing can be told to anybody without the journal."""
    bench.yard.fails["create"] = StoreError("cannot write the journal: disk full")
    with pytest.raises(StoreError):
        asyncio.run(bench.baseline())
    with pytest.raises(StoreError):
        asyncio.run(
            bench.evaluator.evaluate(
                TASK,
                SNAPSHOT,
                candidate(),
                Baseline(checks=(_failed_run(),)),
                out=bench.out,
            )
        )


def _failed_run() -> CheckRun:
    return CheckRun(
        name="tests", state=CheckState.FAILED, exit_code=1, elapsed_seconds=0.0,
        outcomes={"tests": TestOutcome.FAILED},
    )  # fmt: skip


def test_fork_is_deleted_when_the_evaluation_is_cancelled(bench: Bench) -> None:
    """Cancelling a run leaves no workspace of its judges."""

    async def cancel_midway() -> None:
        bench.yard.hangs = asyncio.Event()
        task = asyncio.create_task(bench.baseline())
        await bench.yard.hangs.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_midway())
    assert bench.yard.calls[-1] == "delete"
    assert bench.yard.files == {}


def test_base_is_run_in_a_fresh_fork_each_time(bench: Bench) -> None:
    """What one repeat leaves behind cannot reach the next."""
    baseline = asyncio.run(bench.baseline(repeats=3))

    assert [run.state for run in baseline.checks] == [CheckState.FAILED] * 3
    assert bench.yard.calls.count("create") == bench.yard.calls.count("delete") == 3


def test_base_is_not_repeated_once_it_has_trouble(bench: Bench) -> None:
    """A check that ran into its limit would only run into it again."""
    bench.yard.command = lambda *_: Ran(exit_code=None, stop_reason=StopReason.TIMED_OUT)
    baseline = asyncio.run(bench.baseline(repeats=3))

    assert baseline.trouble is not None
    assert "still running on the base" in baseline.trouble
    assert bench.yard.calls.count("create") == 1


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (StopReason.TIMED_OUT, VerdictKind.FAILED),
        (StopReason.MEMORY, VerdictKind.FAILED),
        (StopReason.DISK, VerdictKind.FAILED),
        (StopReason.INTERRUPTED, VerdictKind.NOT_EVALUATED),
        (StopReason.KILLED, VerdictKind.NOT_EVALUATED),
        (StopReason.COULD_NOT_START, VerdictKind.NOT_EVALUATED),
    ],
)
def test_end_of_a_check_is_the_candidates_or_ours(
    bench: Bench, reason: StopReason, kind: VerdictKind
) -> None:
    """Limits are the candidate's to keep; a dead sandbox is not."""
    base = asyncio.run(bench.baseline())
    bench.yard.command = lambda *_: Ran(exit_code=137, stop_reason=reason)
    evaluation = asyncio.run(
        bench.evaluator.evaluate(TASK, SNAPSHOT, candidate(), base, out=bench.out)
    )

    assert evaluation.verdict is kind


def test_snapshot_without_a_recorded_base_cannot_be_judged(bench: Bench) -> None:
    """There would be nothing to compare with."""
    bare = Snapshot(id=SnapshotId("snap_2"), name="s", state=SnapshotState.READY, created_at="")
    baseline = asyncio.run(bench.evaluator.baseline(TASK, bare))

    assert baseline.trouble is not None
    assert "has no recorded base" in baseline.trouble


def test_task_without_checks_is_not_judged_and_nothing_is_run(bench: Bench) -> None:
    """No check, no verdict."""
    task = Task(name="t", prompt="p", snapshot=SNAPSHOT.id, agents=())
    evaluation = asyncio.run(bench.judge({"app.py": "good"}, task))

    assert evaluation.verdict is VerdictKind.NOT_EVALUATED
    assert evaluation.reasons == ("not judged: the task has no checks",)
    assert bench.yard.calls == []
