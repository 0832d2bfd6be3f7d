"""An answer that a budget cut short makes an agent fail: it is the budget's, not the agent's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from depth import first
from forkyard.gateway.interface import Finish
from forkyard.gateway.supervisor import LEDGER_FILE
from model_yard import ModelYard, model_yard
from projects import forkyard
from real_agents import provide
from scripted_model.shapes import Object

AGENTS = {"claude-code": ("anthropic", "claude-sonnet-4-5"), "codex": ("openai", "gpt-5.5")}
MORE = {"claude-code": ", env: {MAX_THINKING_TOKENS: '0'}", "codex": ""}
"""A request that names a budget for its thinking is never cut below that: it would be refused."""
GATEWAY = """\
providers:
  - {{name: anthropic, api: anthropic, url: "{url}", secret: MODEL_KEY}}
  - {{name: openai, api: openai, url: "{url}", secret: MODEL_KEY}}
prices:
""" + "".join(
    f"  - {{{{model: {model}, input: 0, output: 15, cache_read: 0, cache_write: 0}}}}\n"
    for _, model in AGENTS.values()
)
"""Only output costs, so that what a budget allows does not hang on the size of a prompt."""
TALKS: Object = {
    "scenarios": {
        "default": {
            "turns": [
                {"text": "I would say far more than this.", "usage": {"input": 9, "output": 25_000}}
            ]
        }
    }
}


@pytest.fixture(scope="module")
def yard(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelYard]:
    """Give a yard with both agents installed."""
    with model_yard(module_home, tmp_path_factory.mktemp("cuts"), TALKS, GATEWAY) as made:
        provide(module_home, *AGENTS)
        yield made


@pytest.mark.deep
@pytest.mark.parametrize("driver", first(*AGENTS))
def test_failure_is_the_budgets_when_its_limit_cut_the_agents_answer(
    yard: ModelYard, driver: str
) -> None:
    """20,000 tokens of output are affordable; the model writes 25,000."""
    model = AGENTS[driver][1]
    result = yard.run(
        f"  - {{name: one, driver: {driver}, model: {model}{MORE[driver]}}}",
        limits="budget: {usd: 0.3}",
    )
    (one,) = result["tasks"][0]["attempts"]

    assert one["failure"] == "budget", one
    assert one["state"] == "budget-exhausted", one
    with closing(sqlite3.connect(yard.layout.gateway / LEDGER_FILE)) as ledger:
        cuts = ledger.execute(
            "SELECT finish, output FROM entries WHERE attempt = ? AND is_clamped", (one["id"],)
        ).fetchall()
    assert (Finish.LENGTH.value, 20_000) in cuts
    shown = forkyard("status", result["id"], directory=yard.folder)
    assert "budget" in shown.stdout
