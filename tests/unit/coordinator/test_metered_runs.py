"""Attempts at the gateway, over a real journal and a world in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.coordination import World, make_coordinator, make_task, make_world
from forkyard.coordinator.coordinator import Coordinator
from forkyard.errors import ConflictError
from forkyard.gateway.interface import EVERY_AGENT, Outcome
from forkyard.model.budget import Budget
from forkyard.model.run import Attempt, AttemptState, Failure, Run, RunLimits, Task
from forkyard.model.verdict import VerdictKind
from forkyard.model.workspace import NetworkPolicy, ReadOnlyMount

PATIENCE_SECONDS = 30.0
LIMITS = RunLimits(budget=Budget(tokens=1000))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give an empty world."""
    made = make_world(tmp_path)
    yield made
    made.journal.close()


def told(world: World, *stories: Callable[[Coordinator], Awaitable[None]]) -> None:
    """Tell each story with a coordinator of its own, one after another, as servers are."""

    async def telling() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for story in stories:
                coordinator = make_coordinator(world)
                await coordinator.start()
                try:
                    await story(coordinator)
                finally:
                    await coordinator.close()

    asyncio.run(telling())


async def _task(world: World, *commands: str, attempts: int = 1) -> Task:
    task = await make_task(world, *commands, attempts=attempts)
    agents = tuple(replace(one, model="model-1") for one in task.agents)
    return replace(task, agents=agents)


async def _run(
    coordinator: Coordinator, world: World, *commands: str, limits: RunLimits = LIMITS
) -> tuple[Run, tuple[Attempt, ...]]:
    run = await coordinator.submit("run", [await _task(world, *commands)], limits)
    run = await coordinator.wait(run.id)
    return run, world.journal.state.attempts_of(run.id)


def test_attempt_is_let_in_before_it_starts_and_out_when_it_is_over(world: World) -> None:
    """One grant under its workspace's name, with the run's budget; what it spent is journalled."""
    world.gateway.on_grant = [(Outcome.COMPLETE, 200), (Outcome.COMPLETE, 200)]

    async def story(coordinator: Coordinator) -> None:
        run, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.workspace is not None
        row = world.journal.state.workspaces[attempt.workspace]
        assert row.network is NetworkPolicy.GATEWAY
        assert {one.workspace for one in world.gateway.granted} == {attempt.workspace}
        grant = world.gateway.granted[0]
        assert (grant.run, grant.models, grant.run_budget.tokens) == (run.id, ("model-1",), 1000)
        assert world.gateway.grants == {}
        assert attempt.failure is None
        (usage,) = world.journal.state.usage_of(attempt.id)
        assert (usage.requests, usage.tokens.total) == (2, 30)

    told(world, story)


def test_an_attempt_reaches_its_hosts_and_its_model_when_its_task_has_an_allowlist(
    world: World,
) -> None:
    """The list and the gateway's sockets go into one workspace; its connections are journalled."""

    async def story(coordinator: Coordinator) -> None:
        task = replace(await _task(world, "exit 0"), allow=("a.example.org",))
        run = await coordinator.submit("run", [task], LIMITS)
        run = await coordinator.wait(run.id)
        (attempt,) = world.journal.state.attempts_of(run.id)
        assert attempt.workspace is not None
        row = world.journal.state.workspaces[attempt.workspace]
        assert (row.network, row.allow) == (NetworkPolicy.ALLOWLIST, ("a.example.org",))
        assert row.reaches_models
        assert {one.workspace for one in world.gateway.granted} == {attempt.workspace}
        assert attempt.connections is not None
        assert [one.host for one in attempt.connections.listed] == ["a.example.org"]

    told(world, story)


def test_usage_is_journalled_before_the_attempt_is_over(world: World) -> None:
    """Whoever reads an attempt's end can read its bill."""
    world.gateway.on_grant = [(Outcome.COMPLETE, 200)]

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 0")
        events = [
            event
            for event in world.journal.events_after(0, limit=1000)
            if event.entity_kind == "usagerow"
            or (event.entity_kind == "attempt" and event.entity.id == attempt.id)
        ]
        last = max(event.sequence for event in events if event.entity_kind == "usagerow")
        over = next(
            event.sequence
            for event in events
            if isinstance(event.entity, Attempt) and event.entity.ended_at is not None
        )
        assert last < over

    told(world, story)


def test_agent_is_ended_and_judged_when_a_budget_refuses_it(world: World) -> None:
    """It hangs on; the orchestrator ends it, and what it did so far is a candidate."""

    async def story(coordinator: Coordinator) -> None:
        run = await coordinator.submit("run", [await _task(world, "hang")], LIMITS)
        while not world.running:
            await world.journal.wait_for_change(world.journal.sequence)
        world.gateway.refuse(world.gateway.granted[0])
        await coordinator.wait(run.id)
        (attempt,) = world.journal.state.attempts_of(run.id)
        assert attempt.state is AttemptState.BUDGET_EXHAUSTED
        assert attempt.failure is Failure.BUDGET
        assert attempt.detail == "ended by us: the run's budget is used up"
        assert attempt.candidate is not None
        assert attempt.evaluation is not None
        assert world.told[0].ending is AttemptState.BUDGET_EXHAUSTED

    told(world, story)


@pytest.mark.parametrize(("whose", "started"), [(EVERY_AGENT, 1), ("agent-0", 2)])
def test_queued_attempt_is_not_started_when_the_runs_budget_is_spent(
    world: World, whose: str, started: int
) -> None:
    """No sandbox is made for it, and it says why; another agent's goes on if it still may."""

    async def story(coordinator: Coordinator) -> None:
        task = await _task(world, "hang", "exit 0")
        task = replace(task, agents=(replace(task.agents[0], attempts=2), task.agents[1]))
        run = await coordinator.submit("run", [task], replace(LIMITS, parallel=1))
        while not world.running:
            await world.journal.wait_for_change(world.journal.sequence)
        first = world.gateway.granted[0]
        assert first.agent == task.agents[0].name == "agent-0"
        world.gateway.spent[run.id] = {whose: "the run's budget is used up"}
        world.gateway.refuse(first)
        await coordinator.wait(run.id)
        attempts = world.journal.state.attempts_of(run.id)
        assert len({one.workspace for one in world.gateway.granted}) == started
        (waited,) = [one for one in attempts if one.agent == "agent-0" and one.number == 2]
        assert waited.state is AttemptState.BUDGET_EXHAUSTED
        assert waited.failure is Failure.BUDGET
        assert waited.detail == "not started: the run's budget is used up"
        assert waited.workspace is None
        assert waited.cleanup == "done"
        (other,) = [one for one in attempts if one.agent == task.agents[1].name]
        assert (other.workspace is not None) == (started == 2)

    told(world, story)


def test_attempt_is_exhausted_when_its_agent_ended_before_we_came(world: World) -> None:
    """A refusal that the agent took for its end is a budget's all the same."""
    world.gateway.on_grant = [(Outcome.COMPLETE, 200), (Outcome.REFUSED_BUDGET, 402)]

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.state is AttemptState.BUDGET_EXHAUSTED
        assert attempt.failure is Failure.BUDGET

    told(world, story)


@pytest.mark.parametrize("is_idle", [True, False])
def test_provider_is_no_loss_of_the_agent_when_it_broke_off(world: World, *, is_idle: bool) -> None:
    """Nothing done is not judged; something done is."""
    world.gateway.on_grant = [(Outcome.PROVIDER_ERROR, 529)]
    world.are_idle = is_idle

    async def story(coordinator: Coordinator) -> None:
        run, (attempt,) = await _run(coordinator, world, "short 1" if is_idle else "exit 1")
        assert attempt.failure is Failure.PROVIDER
        assert attempt.detail is not None
        assert "529" in attempt.detail
        assert attempt.evaluation is not None
        verdict = world.journal.state.evaluations[attempt.evaluation].verdict
        assert (verdict is VerdictKind.NOT_EVALUATED) is is_idle
        if not is_idle:
            with pytest.raises(ConflictError):
                await coordinator.retry(run.id)
            return
        world.gateway.on_grant = [(Outcome.COMPLETE, 200)]
        world.are_idle = False
        await coordinator.retry(run.id)
        await coordinator.wait(run.id)
        again = world.journal.state.attempts[attempt.id]
        assert (again.epoch, again.failure) == (2, None)
        # what the first try spent is spent
        assert sum(row.requests for row in world.journal.state.usage_of(attempt.id)) == 2

    told(world, story)


def test_running_attempt_is_let_in_again_when_the_server_starts_again(world: World) -> None:
    """A gateway that lost everything hears of it from the next server."""

    async def before(coordinator: Coordinator) -> None:
        await coordinator.submit("run", [await _task(world, "hang")], LIMITS)
        while not world.running:
            await world.journal.wait_for_change(world.journal.sequence)
        world.gateway.grants.clear()

    async def after(coordinator: Coordinator) -> None:
        (run,) = world.journal.state.runs.values()
        while not world.gateway.grants:
            await asyncio.sleep(0.01)
        (attempt,) = world.journal.state.attempts_of(run.id)
        assert list(world.gateway.grants) == [attempt.workspace]
        await coordinator.cancel(run.id)
        await coordinator.wait(run.id)

    told(world, before, after)
    assert len(world.agent_starts) == 1
    assert world.gateway.grants == {}


def test_attempt_cannot_run_when_it_cannot_be_let_in(world: World) -> None:
    """Trouble of ours, in words; nothing was started."""
    world.gateway.trouble = "cannot start the gateway: it does not answer"

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.state is AttemptState.COULD_NOT_RUN
        assert attempt.trouble == "cannot start the gateway: it does not answer"
        assert attempt.failure is Failure.OURS

    told(world, story)
    assert world.agent_starts == []
    assert world.gateway.grants == {}


def test_attempt_is_shown_its_agent_when_that_had_to_be_installed(world: World) -> None:
    """Installed on the way, said so, and mounted read-only."""
    world.agents.missing = {"command"}
    mount = ReadOnlyMount(source="/x", target="/opt/forkyard/agents/command", reason="agent")
    world.agents.shown = (mount,)

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.workspace is not None
        assert world.journal.state.workspaces[attempt.workspace].environment.mounts == (mount,)
        said = [event.note for event in world.journal.history(attempt.id)]
        assert any(note.startswith("installing command") for note in said)
        assert attempt.detail is None

    told(world, story)


def test_attempt_cannot_run_when_its_agent_cannot_be_installed(world: World) -> None:
    """Offline, say."""
    world.agents.missing = {"command"}
    world.agents.trouble = "cannot fetch it"

    async def story(coordinator: Coordinator) -> None:
        _, (attempt,) = await _run(coordinator, world, "exit 0")
        assert attempt.state is AttemptState.COULD_NOT_RUN
        assert attempt.trouble == "cannot fetch it"

    told(world, story)


def test_run_ends_when_the_gateway_is_gone_for_good(world: World) -> None:
    """The candidate is kept and judged; that nobody knows what it spent is said as ours."""
    world.are_idle = True

    async def story(coordinator: Coordinator) -> None:
        run = await coordinator.submit("run", [await _task(world, "short 5")], LIMITS)
        while not world.running:
            await world.journal.wait_for_change(world.journal.sequence)
        world.gateway.trouble = "no gateway can be started"
        await coordinator.wait(run.id)
        (attempt,) = world.journal.state.attempts_of(run.id)
        assert attempt.state is AttemptState.FINISHED
        assert attempt.failure is Failure.OURS
        assert attempt.detail is not None
        assert "no gateway can be started" in attempt.detail

    told(world, story)
