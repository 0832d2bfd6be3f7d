"""What keeps a run from being submitted, and the order in which its attempts queue: pure."""

from __future__ import annotations

from collections.abc import Sequence

from forkyard.agents.registry import driver_named
from forkyard.errors import ConfigError, Problem
from forkyard.model.run import AgentSpec, RunLimits, Task
from forkyard.model.workspace import SnapshotState
from forkyard.store.projections import State


def submission_problems(tasks: Sequence[Task], limits: RunLimits, state: State) -> list[Problem]:
    """List everything that keeps a run from being submitted."""
    problems: list[Problem] = []
    if not tasks:
        problems.append(Problem(message="there must be at least one task", key="tasks"))
    if limits.parallel < 1:
        problems.append(Problem(message="must be at least 1", key="limits.parallel"))
    for index, task in enumerate(tasks):
        where = f"tasks.{index}"
        problems.extend(_start_problems(task, where, state))
        if not task.agents:
            problems.append(Problem(message="names no agent", key=f"{where}.agents"))
        names = [agent.name for agent in task.agents]
        problems.extend(
            Problem(message=f"two agents are named {name!r}", key=f"{where}.agents")
            for name in sorted({name for name in names if names.count(name) > 1})
        )
        for place, agent in enumerate(task.agents):
            key = f"{where}.agents.{place}"
            try:
                problem = driver_named(agent.driver).check(agent)
            except ConfigError as error:
                problem = error
            if problem is not None:
                problems.append(Problem(message=problem.message, key=key))
            if agent.attempts < 1:
                message = f"attempts is {agent.attempts}, must be at least 1"
                problems.append(Problem(message=message, key=key))
    return problems


def _start_problems(task: Task, where: str, state: State) -> list[Problem]:
    snapshot = state.snapshots.get(task.snapshot)
    key = f"{where}.start"
    if snapshot is None or snapshot.state is not SnapshotState.READY:
        now = "not there" if snapshot is None else snapshot.state.value
        return [Problem(message=f"snapshot {task.snapshot} is {now}, not ready", key=key)]
    if snapshot.base is None:
        message = f"snapshot {snapshot.name} holds no repository that could be judged"
        return [Problem(message=message, key=key)]
    if snapshot.base.repository != task.repository:
        message = f"snapshot {snapshot.name} has its repository at {snapshot.base.repository}"
        return [Problem(message=message, key=f"{where}.repository")]
    return []


def in_turns(task: Task) -> list[tuple[int, AgentSpec]]:
    """Order a task's attempts: every agent's first one before any agent's second."""
    most = max((agent.attempts for agent in task.agents), default=0)
    return [
        (number, agent)
        for number in range(1, most + 1)
        for agent in task.agents
        if number <= agent.attempts
    ]
