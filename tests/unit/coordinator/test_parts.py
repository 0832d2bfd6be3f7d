"""Small parts of the coordinator: deadlines, the disk's floor, places, log files, the reaper."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fakes.coordination import World, make_coordinator, make_world
from forkyard.base.masking import Masker
from forkyard.config import Layout
from forkyard.coordinator import coordinator as module
from forkyard.coordinator.commands import Command, CommandKind
from forkyard.coordinator.disk import DiskFloor
from forkyard.coordinator.ending import ending_of
from forkyard.coordinator.logs import keep_logs, log_files, set_aside
from forkyard.coordinator.reconciler import Deadlines
from forkyard.coordinator.scheduler import Wanted, admit
from forkyard.coordinator.view import View
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.ids import (
    ExecId,
    RunId,
    WorkspaceId,
    new_attempt_id,
    new_exec_id,
    new_run_id,
    new_workspace_id,
)
from forkyard.model.run import AgentSpec, Attempt, AttemptState, Run, RunLimits, RunState
from forkyard.store.projections import State


@dataclass(slots=True)
class FakeClock:
    """Time that a test sets."""

    wall: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    seconds: float = 0.0

    def now(self) -> str:
        """Give the wall time."""
        return self.wall.isoformat(timespec="milliseconds")

    def monotonic(self) -> float:
        """Give the steady time."""
        return self.seconds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give an empty world."""
    made = make_world(tmp_path)
    yield made
    made.journal.close()


def _run(deadline_at: datetime | None, seconds: float | None = 60.0) -> Run:
    return Run(
        id=new_run_id(),
        name="r",
        tasks=(),
        progress=(),
        limits=RunLimits(deadline_seconds=seconds),
        state=RunState.RUNNING,
        created_at="now",
        deadline_at=None if deadline_at is None else deadline_at.isoformat(),
    )


def _attempt(**changes: str) -> Attempt:
    made = Attempt(
        id=new_attempt_id(),
        run=new_run_id(),
        task=0,
        agent="a",
        number=1,
        epoch=1,
        state=AttemptState.QUEUED,
        created_at="now",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(days=3650), timedelta()])
def test_deadline_stays_when_wall_clock_jumps(jump: timedelta) -> None:
    """Wall time is read once; afterwards only the steady clock counts."""
    clock = FakeClock()
    deadlines = Deadlines(clock)
    run = _run(clock.wall + timedelta(seconds=60))
    assert deadlines.of(run) == 60.0
    clock.wall += jump
    clock.seconds = 20.0
    assert deadlines.of(run) == 60.0
    assert deadlines.remaining_seconds(run) == 40.0
    clock.seconds = 99.0
    assert deadlines.remaining_seconds(run) == 0.0


@pytest.mark.parametrize(("jump", "left"), [(-7200, 60.0), (7200, 0.0), (45, 15.0)])
def test_deadline_is_clamped_when_server_starts_again(jump: int, left: float) -> None:
    """A clock that was set back gives no more time than the run had; set forward, none."""
    clock = FakeClock()
    run = _run(clock.wall + timedelta(seconds=60))
    clock.wall += timedelta(seconds=jump)
    assert Deadlines(clock).remaining_seconds(run) == left


def test_there_is_no_deadline_when_none_was_given() -> None:
    """A run without a deadline waits for ever."""
    assert Deadlines(FakeClock()).remaining_seconds(_run(None, None)) is None


def test_deadline_is_new_when_run_is_retried() -> None:
    """Another deadline in the row replaces the remembered one."""
    clock = FakeClock()
    deadlines = Deadlines(clock)
    run = _run(clock.wall + timedelta(seconds=60))
    deadlines.of(run)
    clock.seconds = 100.0
    again = replace(run, deadline_at=(clock.wall + timedelta(seconds=30)).isoformat())
    assert deadlines.of(again) == 130.0


def test_floor_names_what_is_short(tmp_path: Path) -> None:
    """Bytes and inodes are told apart; a directory that is gone is trouble, too."""
    enough = DiskFloor(directory=tmp_path, free_bytes=0, free_inodes=0)
    assert enough.trouble() is None
    bytes_short = replace(enough, free_bytes=1 << 62).trouble()
    assert bytes_short is not None
    assert bytes_short.startswith("disk full (bytes): ")
    inodes_short = replace(enough, free_inodes=1 << 62).trouble()
    assert inodes_short is not None
    assert inodes_short.startswith("disk full (inodes): ")
    assert replace(enough, directory=tmp_path / "gone").trouble() is not None


def _wanted(kind: CommandKind, run: RunId, task: int, *, busy: int = 0, limit: int = 9) -> Wanted:
    return Wanted(Command(kind=kind, run=run, task=task), busy=busy, limit=limit)


def test_places_are_shared_when_runs_compete() -> None:
    """The run with fewer places taken goes first; what ends something goes before what begins."""
    one, other = new_run_id(), new_run_id()
    wanted = [_wanted(CommandKind.EVALUATE, one, n, busy=1) for n in range(4)]
    wanted += [_wanted(CommandKind.EVALUATE, other, n) for n in range(4)]
    wanted += [_wanted(CommandKind.SEAL, one, 9, busy=1), _wanted(CommandKind.FINISH, other, 9)]
    admitted = admit(wanted, View(state=State(), parallel_limit=6))
    kinds = [(command.kind, command.run) for command in admitted]
    assert kinds[0] == (CommandKind.FINISH, other)
    assert kinds[1] == (CommandKind.SEAL, one)
    assert [run for _, run in kinds[2:]] == [other, one, other, one]


def test_place_is_kept_when_command_is_in_flight() -> None:
    """What was begun is never displaced by what is more urgent."""
    run = new_run_id()
    begun = _wanted(CommandKind.EVALUATE, run, 7)
    wanted = [_wanted(CommandKind.SEAL, run, 1), begun]
    in_flight = frozenset({begun.command.key})
    admitted = admit(wanted, View(state=State(), parallel_limit=1, in_flight=in_flight))
    assert admitted == [begun.command]


def _result(reason: StopReason, seconds: float = 1.0) -> ExecResult:
    return ExecResult(
        id=new_exec_id(),
        stop_reason=reason,
        exit_code=0,
        elapsed_seconds=seconds,
        stdout_bytes=0,
        stderr_bytes=0,
    )


@pytest.mark.parametrize(
    ("reason", "is_cancelled", "state", "is_ours"),
    [
        (StopReason.EXITED, False, AttemptState.FINISHED, False),
        (StopReason.COULD_NOT_START, False, AttemptState.FINISHED, False),
        (StopReason.MEMORY, False, AttemptState.FINISHED, False),
        (StopReason.DISK, False, AttemptState.FINISHED, False),
        (StopReason.TIMED_OUT, False, AttemptState.TIMED_OUT, False),
        (StopReason.KILLED, True, AttemptState.CANCELLED, False),
        (StopReason.KILLED, False, AttemptState.INTERRUPTED, True),
        (StopReason.INTERRUPTED, False, AttemptState.INTERRUPTED, True),
    ],
)
def test_end_is_told_from_trouble_of_ours(
    reason: StopReason, *, is_cancelled: bool, state: AttemptState, is_ours: bool
) -> None:
    """Each way in which a command may end has its terminal state, and its side to blame."""
    agent = AgentSpec(name="a", driver="command", command="x")
    ending = ending_of(_result(reason), agent, RunLimits(), is_cancelled=is_cancelled)
    assert ending.state is state
    assert (ending.trouble is not None) is is_ours


def test_reason_names_the_limit_that_ended_an_agent() -> None:
    """Its own time limit and the run's deadline are told apart."""
    agent = AgentSpec(name="a", driver="command", command="x")
    limits = RunLimits(attempt_timeout_seconds=10)
    own = ending_of(_result(StopReason.TIMED_OUT, 10.1), agent, limits, is_cancelled=False)
    shared = ending_of(_result(StopReason.TIMED_OUT, 4.0), agent, limits, is_cancelled=False)
    assert own.detail == "still running at its time limit of 10 s"
    assert shared.detail == "still running at the run's deadline"


def test_logs_are_found_when_they_move(tmp_path: Path) -> None:
    """Before, while and after the workspace goes, and apart for each epoch."""
    layout = Layout(tmp_path)
    attempt = _attempt(workspace=new_workspace_id(), exec=new_exec_id())
    assert attempt.workspace is not None
    live = layout.exec(attempt.workspace, ExecId(attempt.exec or ""))
    live.mkdir(parents=True)
    (live / "stdout").write_text("said")
    assert log_files(layout, attempt) == (live / "stdout", live / "stderr")
    kept = layout.attempt(attempt.run, attempt.id)
    for _ in range(2):
        keep_logs(layout, attempt, Masker())
        assert (kept / "stdout").read_text() == "said"
        assert log_files(layout, attempt)[0] == kept / "stdout"
    for _ in range(2):
        set_aside(layout, attempt)
        assert (kept / "epoch-1" / "stdout").read_text() == "said"
        assert [path.name for path in kept.iterdir()] == ["epoch-1"]
    set_aside(layout, _attempt())


def test_stray_sandbox_is_ended_when_seen_twice(world: World) -> None:
    """One pass may cross a start or a stop; two may not."""

    async def story() -> None:
        reaper = make_coordinator(world).reaper
        stray = WorkspaceId("ws_00000000abcd")
        world.sandboxes[stray] = 3
        assert await reaper.sweep() == ()
        assert world.sandboxes == {stray: 3}
        assert await reaper.sweep() == ("sandbox of ws_00000000abcd, epoch 3",)
        assert world.sandboxes == {}
        assert await reaper.sweep() == ()

    asyncio.run(story())


def test_loop_begins_again_when_a_bug_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not hang because one pass of a loop broke."""
    monkeypatch.setattr(module, "RESTART_SECONDS", 0.0)
    passes = 0

    async def broken_once() -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise ValueError("a bug")
        await asyncio.Event().wait()

    async def story() -> None:
        loop = asyncio.create_task(module._for_ever(broken_once))
        while passes < 2:
            await asyncio.sleep(0)
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    asyncio.run(story())
