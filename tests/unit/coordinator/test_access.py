"""Who is let in at the gateway, and what is wrong with that beforehand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forkyard.coordinator.access import access_problems, grant_of, is_let_in
from forkyard.model.budget import Budget
from forkyard.model.ids import AttemptId, RunId, WorkspaceId
from forkyard.model.provider import Api, GatewaySettings, Provider
from forkyard.model.run import AgentSpec, Attempt, AttemptState, RunLimits

COMMAND = AgentSpec(name="a", driver="command", command="x")
CLAUDE = AgentSpec(name="a", driver="claude-code", command="")
FREE = RunLimits()
IN_MONEY = RunLimits(budget=Budget(micro_usd=1))
SETTINGS = GatewaySettings(
    providers=(
        Provider(name="anthropic", api=Api.ANTHROPIC, base_url="http://a", secret="A"),  # noqa: S106 - its name
        Provider(name="openai", api=Api.OPENAI, base_url="http://o", secret="O", models=("gpt-*",)),  # noqa: S106 - its name
        Provider(name="house", api=Api.OPENAI, base_url="http://h"),
    )
)


@pytest.mark.parametrize(
    ("agent", "limits", "is_in"),
    [
        (COMMAND, FREE, False),
        (CLAUDE, FREE, True),
        (replace(COMMAND, gateway=True), FREE, True),
        (replace(COMMAND, model="m"), FREE, True),
        (replace(COMMAND, provider="openai"), FREE, True),
        (COMMAND, IN_MONEY, True),
        (COMMAND, RunLimits(attempt_budget=Budget(tokens=1)), True),
        (COMMAND, RunLimits(attempt_requests=1), True),
    ],
)
def test_agent_is_let_in_when_it_asks_for_a_model(
    agent: AgentSpec, limits: RunLimits, *, is_in: bool
) -> None:
    """By its driver, its keys, or a limit that means spending."""
    assert is_let_in(agent, limits) is is_in


@pytest.mark.parametrize(
    ("agent", "limits", "secrets", "found"),
    [
        (CLAUDE, FREE, {"A"}, []),
        (CLAUDE, IN_MONEY, {"A"}, []),
        (CLAUDE, FREE, {"O"}, [("provider", "secret A is not set")]),
        (replace(CLAUDE, provider="x"), FREE, {"A"}, [("provider", "is not configured")]),
        (replace(COMMAND, provider="house", model="m"), FREE, set(), []),
        (
            replace(COMMAND, provider="house", model="m"),
            IN_MONEY,
            set(),
            [("model", "has no known price")],
        ),
        (
            replace(COMMAND, provider="openai", model="m"),
            FREE,
            {"O"},
            [("model", "not among those that provider openai allows")],
        ),
        (replace(COMMAND, provider="openai", model="gpt-5"), FREE, {"O"}, []),
        (replace(COMMAND, gateway=True), FREE, set(), []),
    ],
)
def test_problem_is_told_when_an_agent_cannot_reach_its_model(
    agent: AgentSpec, limits: RunLimits, secrets: set[str], found: list[tuple[str, str]]
) -> None:
    """Before anything is spent, each with its key and what to do."""
    problems = list(
        access_problems(
            agent,
            limits,
            settings=SETTINGS,
            secrets=secrets,
            is_priced=lambda _, provider: provider.name != "house",
        )
    )

    assert [one.key for one in problems] == [key for key, _ in found]
    for problem, (_, words) in zip(problems, found, strict=True):
        assert words in problem.message


def test_no_provider_is_enough_when_none_has_its_key() -> None:
    """An agent that names none may use any, and there is none."""
    settings = GatewaySettings(providers=SETTINGS.providers[:2])
    (problem,) = access_problems(
        replace(COMMAND, gateway=True),
        FREE,
        settings=settings,
        secrets=set(),
        is_priced=lambda *_: True,
    )

    assert "forkyard secret set A" in problem.message


def test_grant_carries_budgets_and_the_one_model() -> None:
    """An agent is let in for the model it is compared by."""
    attempt = Attempt(
        id=AttemptId("att_000000"),
        run=RunId("run_000000"),
        task=0,
        agent="a",
        number=1,
        epoch=1,
        state=AttemptState.PREPARING,
        created_at="",
        workspace=WorkspaceId("ws_000000"),
        exec="exec_000000",
    )
    limits = RunLimits(
        budget=Budget(tokens=5), attempt_budget=Budget(micro_usd=6), attempt_requests=7
    )
    grant = grant_of(attempt, replace(CLAUDE, model="m"), limits)

    assert (grant.models, grant.run_budget, grant.attempt_budget, grant.most_requests) == (
        ("m",), Budget(tokens=5), Budget(micro_usd=6), 7,
    )  # fmt: skip
    assert grant_of(attempt, COMMAND, limits).models == ()
    assert len(grant_of(attempt, CLAUDE, limits).models) == 1
