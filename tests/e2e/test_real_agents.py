"""The agents that people use, unchanged, against the scripted model: they mend a bug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from depth import deep
from forkyard import connect_blocking
from model_yard import CANARY, MEND, TABLE_PRICES, ModelYard, model_yard
from projects import forkyard
from real_agents import provide

MODELS = {
    "claude-code": "claude-sonnet-4-5",
    "codex": "gpt-5.5",
    "opencode": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
    "mini-swe-agent": "gpt-4o",
}


@pytest.fixture(scope="module")
def yard(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelYard]:
    """Give a yard with every agent installed."""
    with model_yard(module_home, tmp_path_factory.mktemp("real"), MEND, TABLE_PRICES) as made:
        provide(module_home, *MODELS)
        yield made


def agents(*drivers: str, attempts: int = 1) -> str:
    """Write agents as lines of a task file."""
    return "\n".join(
        f"  - {{name: {one}, driver: {one}, model: {MODELS[one]}, attempts: {attempts}}}"
        for one in drivers
    )


def assert_agrees_with_the_provider(yard: ModelYard, result: object, skip: int) -> None:
    """Compare what each model was billed with what the attempts say they spent, to the token."""
    billed: Counter[str] = Counter()
    for bill in yard.model.billed()[skip:]:
        billed["input_tokens"] += bill.usage.input
        billed["cache_read_tokens"] += bill.usage.cache_read
        billed["cache_write_tokens"] += bill.usage.cache_write
        billed["output_tokens"] += bill.usage.output
    assert isinstance(result, dict)
    assert {key: result["usage"][key] for key in billed} == dict(billed)
    assert result["usage"]["estimated_requests"] == 0
    whole: Counter[str] = Counter()
    for one in result["tasks"][0]["attempts"]:
        whole.update({key: one["usage"][key] for key in billed})
    assert whole == billed


def test_three_attempts_of_claude_code_and_codex_mend_a_bug_in_one_run(yard: ModelYard) -> None:
    """Collected, evaluated, ranked; and every token is the provider's own count."""
    skip = len(yard.model.billed())
    result = yard.run(
        agents("claude-code", "codex", attempts=3),
        limits="budget: {usd: 20, tokens: 5M}, parallel: 6",
        code=0,
    )
    found = result["tasks"][0]["attempts"]

    assert [one["evaluation"]["verdict"] for one in found] == ["solved"] * 6, found
    assert [one["failure"] for one in found] == [None] * 6
    assert len(result["tasks"][0]["ranking"]) == 6
    assert {one["usage"]["requests"] for one in found} == {4}
    assert len({one["usage"]["output_tokens"] for one in found}) == 1
    assert all("only integers" in one["known_limitations"] for one in found)
    assert all(one["usage"]["cost_usd"] > 0 for one in found)
    assert_agrees_with_the_provider(yard, result, skip)
    with connect_blocking() as client:
        for one in found:
            story = client.runs.trajectory(one["id"])
            assert b"check.py" in story
            assert CANARY.encode() not in story
    shown = forkyard("logs", found[0]["id"], "--trajectory", directory=yard.folder)
    assert "The agent claims" in shown.stdout


@pytest.mark.parametrize("driver", [deep("opencode"), deep("gemini"), deep("mini-swe-agent")])
def test_agent_mends_a_bug_and_is_metered(yard: ModelYard, driver: str) -> None:
    """One smoke run of each other agent."""
    skip = len(yard.model.billed())
    result = yard.run(agents(driver), limits="budget: {usd: 20}", code=0)

    assert result["tasks"][0]["attempts"][0]["evaluation"]["verdict"] == "solved"
    assert_agrees_with_the_provider(yard, result, skip)


@pytest.mark.parametrize("driver", ["claude-code", "codex"])
def test_agent_is_ended_when_it_has_made_its_requests(yard: ModelYard, driver: str) -> None:
    """It would need four to mend the bug and say so; the second's edit is there, and is judged."""
    skip = len(yard.model.billed())
    result = yard.run(agents(driver), limits="attempt_requests: 2", code=0)
    (one,) = result["tasks"][0]["attempts"]

    assert (one["state"], one["failure"]) == ("budget-exhausted", "budget"), one
    assert "has made its 2 requests" in one["detail"]
    assert one["usage"]["requests"] == 2
    assert one["evaluation"]["verdict"] == "solved"
    assert_agrees_with_the_provider(yard, result, skip)
