"""The fault table: what a provider does to Claude Code and Codex, and whose trouble it is called.

All faults are tasks of one run, each with providers of its own: what one provider asks for in
patience is shared by all that ask it, and nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_yard import ModelYard, model_yard
from projects import forkyard, run_result
from real_agents import provide
from scripted_model.shapes import Object

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1500)]

SILENCE = 600.0
FAULTS: dict[str, tuple[Object, str]] = {
    "400": ({"status": 400}, "agent"),
    "401": ({"status": 401}, "provider"),
    "402": ({"status": 402}, "provider"),
    "403": ({"status": 403}, "provider"),
    "404": ({"status": 404}, "provider"),
    "413": ({"status": 413}, "agent"),
    "429": ({"status": 429}, "provider"),
    "429-later": ({"status": 429, "headers": {"retry-after": "1"}}, "provider"),
    "500": ({"status": 500}, "provider"),
    "503": ({"status": 503}, "provider"),
    "529": ({"status": 529}, "provider"),
    "dropped": ({"drop_after": 2}, "provider"),
    "stalled": ({"stall_after": 2, "stall": SILENCE}, "provider"),
    # at Codex the event that holds the tool call: it goes on without it, and calls it a success
    "malformed": (
        {"malformed_after": 2, "api": {"responses": {"malformed_after": 12}}},
        "provider",
    ),
    "slow": ({"first_byte": SILENCE}, "provider"),
}
"""Fault -> class; nothing here is ever a success, whatever the agent says of itself."""
AGENTS = {"claude-code": ("anthropic", "claude-sonnet-4-5"), "codex": ("openai", "gpt-5.5")}
GATEWAY = "providers:\n" + "".join(
    f"  - {{{{name: {api}-{fault}, api: {api}, url: '{{url}}', secret: MODEL_KEY,"
    " idle_timeout: 25s}}\n"
    for api, _ in AGENTS.values()
    for fault in FAULTS
)


def scenarios() -> Object:
    """Give a scenario for each fault; it fires always."""
    turn: Object = {
        "text": "I will mend it.",
        "actions": [
            {"edit": {"path": "adder.py", "old": "    return a - b", "new": "    return a + b"}}
        ],
        "usage": {"input": 100, "output": 50},
    }
    done: Object = {"text": "Done.", "usage": {"input": 100, "output": 5}}
    return {
        "scenarios": {
            "default": {"turns": [turn, done]},
            **{
                name: {"turns": [{**turn, "fault": fault}, done]}
                for name, (fault, _) in FAULTS.items()
            },
        }
    }


@pytest.fixture(scope="module")
def yard(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelYard]:
    """Give a yard with both agents installed."""
    folder = tmp_path_factory.mktemp("faults")
    with model_yard(module_home, folder, scenarios(), GATEWAY) as made:
        provide(module_home, *AGENTS)
        yield made


@pytest.fixture(scope="module")
def results(yard: ModelYard) -> dict[tuple[str, str], dict[str, Any]]:
    """Run every fault at both agents; give the attempts by fault and agent."""
    tasks = "\n".join(
        f"  - name: '{name}'\n    prompt: '[[scenario:{name}]] Make the check pass.'\n    agents:\n"
        + "\n".join(
            f"      - {{name: {one}, driver: {one}, model: {model}, provider: {api}-{name}}}"
            for one, (api, model) in AGENTS.items()
        )
        for name in FAULTS
    )
    file = yard.folder / "faults.yaml"
    file.write_text(
        "name: faults\nstart: {repository: {path: repo}}\n"
        f"limits: {{parallel: 8, attempt_timeout: 3m}}\ntasks:\n{tasks}\n"
    )
    started = forkyard("run", file, "--detach", directory=yard.folder)
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip().splitlines()[-1]
    for _ in range(6):
        state = run_result(forkyard("status", run, "--json", directory=yard.folder))["state"]
        if state == "finished":
            break
        yard.wait_for_end(run)
    result = run_result(forkyard("status", run, "--json", directory=yard.folder))
    (yard.folder / "faults.json").write_text(json.dumps(result, indent=1))
    return {
        (task["name"], one["agent"]): one for task in result["tasks"] for one in task["attempts"]
    }


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_attempt_ends_with_its_class_when_the_provider_has_a_fault(
    results: dict[tuple[str, str], dict[str, Any]], fault: str, agent: str
) -> None:
    """Within two minutes, with the class of the table, and never as a success."""
    one = results[fault, agent]

    assert one["failure"] == FAULTS[fault][1], one
    assert one["state"] == "finished", one
    assert one["elapsed_seconds"] <= 120
    assert one["candidate"]["files"] == []
    assert one["evaluation"]["verdict"] not in {"solved", "no-regression-shown"}
