"""The life of runs over a real journal and a world in memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.coordination import FakeWorkspaces, World, make_coordinator, make_task, make_world
from forkyard.coordinator.coordinator import Coordinator
from forkyard.coordinator.disk import DiskFloor
from forkyard.errors import ConfigError, ConflictError, NotFoundError
from forkyard.model.ids import RunId
from forkyard.model.run import (
    TERMINAL_ATTEMPT_STATES,
    Attempt,
    AttemptState,
    Run,
    RunLimits,
    RunState,
)
from forkyard.model.verdict import VerdictKind
from forkyard.model.workspace import WorkspaceState

PATIENCE_SECONDS = 30.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give an empty world."""
    made = make_world(tmp_path)
    yield made
    made.journal.close()


def in_world(
    world: World,
    story: Callable[[Coordinator], Awaitable[None]],
    *,
    parallel_limit: int = 8,
    floor: DiskFloor | None = None,
) -> None:
    """Tell a story with a started coordinator, and check at the end that nothing is left."""

    async def told() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            coordinator = make_coordinator(world, parallel_limit=parallel_limit, floor=floor)
            await coordinator.start()
            try:
                await story(coordinator)
            finally:
                await coordinator.close()

    asyncio.run(told())


async def _run(
    coordinator: Coordinator, world: World, *commands: str, limits: RunLimits | None = None
) -> tuple[Run, tuple[Attempt, ...]]:
    task = await make_task(world, *commands)
    run = await coordinator.submit("run", [task], limits or RunLimits())
    run = await coordinator.wait(run.id)
    return run, world.journal.state.attempts_of(run.id)


def _assert_nothing_left(world: World) -> None:
    assert world.sandboxes == {}
    assert world.directories == set()
    assert world.running == {}


def _ends(world: World) -> Counter[str]:
    """Count how often each attempt entered a terminal state."""
    ends: Counter[str] = Counter()
    last: dict[str, AttemptState] = {}
    for event in world.journal.events_after(0, limit=1_000_000):
        entity = event.entity
        if not isinstance(entity, Attempt):
            continue
        was_over = last.get(entity.id) in TERMINAL_ATTEMPT_STATES
        if entity.state in TERMINAL_ATTEMPT_STATES and not was_over:
            ends[entity.id] += 1
        last[entity.id] = entity.state
    return ends


def test_every_attempt_is_judged_when_agents_exit(world: World) -> None:
    """A plain run ends finished, ranked, cleaned up, with logs and patches kept."""

    async def story(coordinator: Coordinator) -> None:
        run, attempts = await _run(coordinator, world, "exit 0", "exit 3")
        assert run.state is RunState.FINISHED
        assert run.progress[0].ranking is not None
        assert len(run.progress[0].ranking.places) == 2
        assert [a.exit_code for a in attempts] == [0, 3]
        for attempt in attempts:
            assert attempt.state is AttemptState.FINISHED
            assert attempt.cleanup == "done"
            assert attempt.candidate is not None
            assert attempt.evaluation is not None
            stdout, stderr = coordinator.logs(attempt.id)
            assert stdout.read_text() == f"output of {attempt.exec}"
            assert stderr.exists()
            assert (world.layout.attempt(run.id, attempt.id) / "patch").exists()

    in_world(world, story)
    _assert_nothing_left(world)
    assert set(_ends(world).values()) == {1}


def test_all_end_when_64_attempts_queue(world: World) -> None:
    """More attempts than room queue, never more at once than allowed, and all end once."""

    async def story(coordinator: Coordinator) -> None:
        task = await make_task(world, "short 1", "exit 1", attempts=32)
        run = await coordinator.submit("many", [task], RunLimits(parallel=5))
        await coordinator.wait(run.id)
        attempts = world.journal.state.attempts_of(run.id)
        assert Counter(a.state for a in attempts) == {AttemptState.FINISHED: 64}

    in_world(world, story, parallel_limit=16)
    _assert_nothing_left(world)
    assert 1 < world.most_at_once <= 5
    assert len(world.agent_starts) == len(set(world.agent_starts)) == 64


def test_machine_limit_holds_when_several_runs_compete(world: World) -> None:
    """Two runs share the machine's room, and both end."""

    async def story(coordinator: Coordinator) -> None:
        task = await make_task(world, "short 1", attempts=8)
        runs = [
            await coordinator.submit(f"run-{n}", [task], RunLimits(parallel=8)) for n in range(2)
        ]
        for run in runs:
            assert (await coordinator.wait(run.id)).state is RunState.FINISHED

    in_world(world, story, parallel_limit=3)
    assert world.most_at_once <= 3


def test_agent_is_blamed_when_it_cannot_start(world: World) -> None:
    """Exit 127 is the agent's: finished, with a detail that says so, and no trouble of ours."""

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 127")
        assert attempt.state is AttemptState.FINISHED
        assert attempt.trouble is None
        assert attempt.detail is not None
        assert "could not start" in attempt.detail

    in_world(world, story)


def test_candidate_is_kept_when_attempt_times_out(world: World) -> None:
    """Its time limit ends an agent; what it did is collected and judged all the same."""

    async def story(coordinator: Coordinator) -> None:
        limits = RunLimits(attempt_timeout_seconds=0.05)
        _, (attempt,) = await _run(coordinator, world, "hang", limits=limits)
        assert attempt.state is AttemptState.TIMED_OUT
        assert attempt.candidate is not None
        assert attempt.evaluation is not None
        assert attempt.detail is not None

    in_world(world, story)
    _assert_nothing_left(world)


def test_queued_attempts_end_when_deadline_passes(world: World) -> None:
    """Past the deadline the running one is stopped and kept, the waiting one never starts."""

    async def story(coordinator: Coordinator) -> None:
        limits = RunLimits(parallel=1, deadline_seconds=0.3)
        run, attempts = await _run(coordinator, world, "hang", "hang", limits=limits)
        assert run.state is RunState.FINISHED
        assert [a.state for a in attempts] == [AttemptState.TIMED_OUT] * 2
        assert attempts[0].candidate is not None
        assert attempts[0].evaluation is not None
        evaluation = world.journal.state.evaluations[attempts[0].evaluation]
        assert evaluation.verdict is VerdictKind.NOT_EVALUATED
        assert attempts[1].candidate is None
        assert attempts[1].detail is not None

    in_world(world, story)
    _assert_nothing_left(world)


def test_everything_ends_when_run_is_cancelled(world: World) -> None:
    """Cancelling kills what runs, keeps its candidate and log, and starts nothing more."""

    async def story(coordinator: Coordinator) -> None:
        task = await make_task(world, "hang", attempts=4)
        run = await coordinator.submit("run", [task], RunLimits(parallel=2))
        while len(world.running) < 2:
            await world.journal.wait_for_change(world.journal.sequence)
        await coordinator.cancel(run.id)
        run = await coordinator.wait(run.id)
        assert run.state is RunState.CANCELLED
        attempts = world.journal.state.attempts_of(run.id)
        assert {a.state for a in attempts} == {AttemptState.CANCELLED}
        begun = [a for a in attempts if a.exec is not None and a.started_at is not None]
        assert len(begun) == 2
        for attempt in begun:
            assert attempt.candidate is not None
            assert attempt.evaluation is None
            assert coordinator.logs(attempt.id)[0].exists()
        with pytest.raises(ConflictError):
            await coordinator.cancel(run.id)

    in_world(world, story)
    _assert_nothing_left(world)
    assert set(_ends(world).values()) == {1}


def test_attempt_is_interrupted_when_its_sandbox_dies(world: World) -> None:
    """A lost sandbox is trouble of ours; what it had written is kept; `retry` runs it again."""

    async def story(coordinator: Coordinator) -> None:
        run, (attempt,) = await _run(coordinator, world, "lose")
        assert run.state is RunState.INTERRUPTED
        assert attempt.state is AttemptState.INTERRUPTED
        assert attempt.trouble is not None
        assert attempt.candidate is not None
        assert attempt.evaluation is None
        assert len(world.agent_starts) == 1
        await coordinator.retry(run.id)
        await coordinator.wait(run.id)
        again = world.journal.state.attempts[attempt.id]
        assert again.epoch == 2
        assert again.exec != attempt.exec
        assert len(world.agent_starts) == 2
        kept = world.layout.attempt(run.id, attempt.id) / "epoch-1"
        assert (kept / "stdout").exists()

    in_world(world, story)
    _assert_nothing_left(world)


@pytest.mark.parametrize("call", ["create", "start"])
def test_trouble_is_ours_when_workspace_cannot_be_made(world: World, call: str) -> None:
    """No agent is blamed for what it never saw."""
    world.troubles[call] = "cannot fork: no room"

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.state is AttemptState.COULD_NOT_RUN
        assert attempt.trouble == "cannot fork: no room"

    in_world(world, story)
    _assert_nothing_left(world)


def test_task_cannot_run_when_sealing_fails(world: World) -> None:
    """Every attempt of the task says why, and the run ends."""
    world.troubles["sealed"] = "cannot seal: objects are damaged"

    async def story(coordinator: Coordinator) -> None:
        run, attempts = await _run(coordinator, world, "exit 0", "exit 0")
        assert run.state is RunState.FINISHED
        assert {a.state for a in attempts} == {AttemptState.COULD_NOT_RUN}
        assert {a.trouble for a in attempts} == {"cannot seal: objects are damaged"}

    in_world(world, story)


def test_attempt_cannot_run_when_disk_is_below_its_floor(world: World) -> None:
    """Nothing is started on a full disk, and the trouble names bytes or inodes."""
    floor = DiskFloor(directory=world.layout.home, free_bytes=1 << 62)

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.state is AttemptState.COULD_NOT_RUN
        assert attempt.trouble is not None
        assert attempt.trouble.startswith("disk full (bytes)")

    in_world(world, story, floor=floor)
    assert world.agent_starts == []


def test_verdict_is_not_evaluated_when_evaluation_breaks(world: World) -> None:
    """The candidate stays, unjudged; `regrade` judges it without running the agent again."""
    world.troubles["evaluate"] = "cannot fork"

    async def story(coordinator: Coordinator) -> None:
        run, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.state is AttemptState.FINISHED
        assert attempt.evaluation is not None
        evaluation = world.journal.state.evaluations[attempt.evaluation]
        assert evaluation.verdict.value == "not-evaluated"
        world.troubles.clear()
        await coordinator.regrade(run.id)
        run = await coordinator.wait(run.id)
        attempt = world.journal.state.attempts[attempt.id]
        assert attempt.evaluation is not None
        assert world.journal.state.evaluations[attempt.evaluation].verdict.value == "solved"
        assert run.progress[0].ranking is not None
        assert run.progress[0].ranking.winner == attempt.candidate
        assert len(world.agent_starts) == 1

    in_world(world, story)


def test_workspace_is_kept_when_its_work_cannot_be_collected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncollected work is never deleted; `retry` collects it, without a new agent."""
    monkeypatch.setattr("forkyard.coordinator.reconciler.RETRY_SECONDS", (0.01,))
    world.troubles["collect"] = "cannot collect: disk full"

    async def story(coordinator: Coordinator) -> None:
        run, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.state is AttemptState.COULD_NOT_RUN
        assert attempt.trouble == "cannot collect: disk full"
        assert attempt.cleanup == "kept"
        assert attempt.workspace in world.directories
        await coordinator.reaper.at_start()
        assert attempt.workspace in world.directories
        world.troubles.clear()
        await coordinator.retry(run.id)
        await coordinator.wait(run.id)
        again = world.journal.state.attempts[attempt.id]
        assert again.state is AttemptState.FINISHED
        assert again.candidate is not None
        assert again.evaluation is not None
        assert len(world.agent_starts) == 1

    in_world(world, story)
    _assert_nothing_left(world)


def test_run_ends_when_workspace_cannot_be_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leftover does not hold up the run; the reaper takes it later."""
    monkeypatch.setattr("forkyard.coordinator.reconciler.RETRY_SECONDS", (0.01,))
    world.troubles["delete"] = "cannot delete: busy"

    async def story(coordinator: Coordinator) -> None:
        run, (attempt,) = await _run(coordinator, world, "exit 0")
        assert run.state is RunState.FINISHED
        assert attempt.cleanup == "pending"
        world.troubles.clear()
        await coordinator.reaper.sweep()
        assert world.journal.state.attempts[attempt.id].cleanup == "done"
        assert await coordinator.reaper.sweep() == ()

    in_world(world, story)
    _assert_nothing_left(world)


def test_problems_are_told_at_once_when_submission_is_wrong(world: World) -> None:
    """Driver, command and snapshot problems come together, and nothing is journalled."""

    async def story(coordinator: Coordinator) -> None:
        task = await make_task(world, "")
        agent = replace(task.agents[0], name="other", driver="no-such")
        wrong = replace(task, agents=(*task.agents, agent))
        with pytest.raises(ConfigError) as caught:
            await coordinator.submit("run", [wrong, replace(wrong, agents=())], RunLimits())
        assert len(caught.value.problems) == 3
        assert world.journal.state.runs == {}
        with pytest.raises(NotFoundError):
            await coordinator.wait(RunId("run_000000"))

    in_world(world, story)


def test_reaper_removes_what_nobody_owns_when_started(world: World) -> None:
    """Sandboxes, workspaces and directories without a live owner go; a person's own stays."""

    async def story(coordinator: Coordinator) -> None:
        task = await make_task(world, "exit 0")
        workspaces = FakeWorkspaces(world)
        mine = await workspaces.create(task.snapshot)
        judge = await workspaces.create(task.snapshot, ephemeral=True, owner="eval_123456")
        stray = world.layout.workspaces / "ws_000000000000"
        for path in (stray, world.layout.workspace(mine.id)):
            path.mkdir(parents=True)
        told = await coordinator.reaper.at_start()
        assert len(told) == 2
        assert world.journal.state.workspaces[judge.id].state is WorkspaceState.DELETED
        assert world.directories == {mine.id}
        assert list(world.layout.workspaces.iterdir()) == [world.layout.workspace(mine.id)]
        assert await coordinator.reaper.at_start() == ()

    world.layout.layers.mkdir(parents=True)
    in_world(world, story)


def test_run_is_taken_up_when_it_lands_while_the_loop_starts(world: World) -> None:
    """An entry that becomes visible after the first decision still wakes the loop."""

    async def story() -> None:
        coordinator = make_coordinator(world)
        task = await make_task(world, "exit 0")
        submission = asyncio.create_task(coordinator.submit("run", [task], RunLimits()))
        await asyncio.sleep(0)
        loop = asyncio.create_task(coordinator.reconciler.run())
        # the writer answers meanwhile: its answer is taken in right after the first decision
        time.sleep(0.2)  # noqa: ASYNC251 - the event loop must not run before it
        async with asyncio.timeout(PATIENCE_SECONDS):
            run = await submission
            assert (await coordinator.wait(run.id)).state is RunState.FINISHED
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    asyncio.run(story())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_nothing_is_lost_or_doubled_when_server_ends_after_any_event(
    tmp_path: Path, *, is_cancelled: bool
) -> None:
    """The coordinator is stopped after each journal entry in turn; the next one finishes."""
    commands = ("exit 0", "hang")
    limits = RunLimits(parallel=1, attempt_timeout_seconds=0.02)
    stop_after = 1
    while True:
        world = make_world(tmp_path / f"{is_cancelled}-{stop_after}")
        crossed = asyncio.run(
            _stopped_and_continued(world, commands, limits, stop_after, is_cancelled=is_cancelled)
        )
        _assert_nothing_left(world)
        assert set(_ends(world).values()) == {1}
        assert len(world.agent_starts) == len(set(world.agent_starts))
        world.journal.close()
        if not crossed:
            return
        stop_after += 1


async def _stopped_and_continued(
    world: World,
    commands: tuple[str, ...],
    limits: RunLimits,
    stop_after: int,
    *,
    is_cancelled: bool,
) -> bool:
    """Run, stop the coordinator after so many entries, and let another finish."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        task = await make_task(world, *commands)
        first = make_coordinator(world)
        await first.start()
        run = await first.submit("run", [task], limits)
        submitted = world.journal.sequence
        over = asyncio.create_task(first.wait(run.id))
        reached = asyncio.create_task(world.journal.wait_for_change(submitted + stop_after - 1))
        await asyncio.wait({over, reached}, return_when=asyncio.FIRST_COMPLETED)
        crossed = not over.done()
        over.cancel()
        reached.cancel()
        await first.close()
        await FakeWorkspaces(world).recover()
        second = make_coordinator(world)
        await second.start()
        if crossed and is_cancelled and world.journal.state.runs[run.id].ended_at is None:
            await second.cancel(run.id)
        await second.wait(run.id)
        attempts = world.journal.state.attempts_of(run.id)
        assert all(a.state in TERMINAL_ATTEMPT_STATES for a in attempts)
        assert all(a.cleanup == "done" for a in attempts)
        if not is_cancelled:
            assert [a for a in attempts if a.candidate is None] == []
        before = world.journal.sequence
        await second.close()
        third = make_coordinator(world)
        await third.start()
        await asyncio.sleep(0)
        await third.close()
        assert [event.note for event in world.journal.events_after(before)] == []
        return crossed
