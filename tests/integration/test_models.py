"""Agents that ask models: metered to the token, held to budgets, not blamed for a provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from depth import deep
from forkyard import connect_blocking
from leftovers import processes
from model_yard import ASK_AND_FIX, CANARY, ModelYard, command_agent, model_yard
from projects import FIX, attempts, forkyard, run_result


@pytest.fixture(scope="module")
def yard(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelYard]:
    """Give a yard that the tests share: each looks only at its own run."""
    with model_yard(module_home, tmp_path_factory.mktemp("models")) as made:
        yield made


def test_tokens_equal_the_providers_own_ledger_when_a_run_is_over(yard: ModelYard) -> None:
    """To the token, per attempt and for the run, in the result and in `usage`."""
    before = yard.billed()
    result = yard.run(
        command_agent(f"python3 -B ask.py; python3 -B ask.py default; {FIX}", more=", attempts: 2"),
        limits="budget: {usd: 20, tokens: 5M}",
        code=0,
    )
    requests, tokens = (now - then for now, then in zip(yard.billed(), before, strict=True))

    assert requests == 4
    used = result["usage"]
    assert used["requests"] == requests
    counts = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    assert sum(used[one] for one in counts) == tokens
    for one in result["tasks"][0]["attempts"]:
        assert one["failure"] is None
        assert one["usage"]["input_tokens"] == 2 * 1000
        assert one["usage"]["cache_read_tokens"] == 2 * 500
        assert one["usage"]["cache_write_tokens"] == 2 * 40
        assert one["usage"]["output_tokens"] == 2 * 70
        # (1000 x 3 + 500 x 0.3 + 40 x 3.75 + 70 x 15) micro-dollars
        assert one["usage"]["cost_usd"] == pytest.approx(2 * 0.00435, abs=0)
    for by in ("run", "attempt", "agent", "model", "day"):
        done = forkyard("usage", result["id"], "--by", by, "--json", directory=yard.folder)
        report = run_result(done)
        assert sum(line["output_tokens"] for line in report["lines"]) == used["output_tokens"]
        assert report["total"]["cost_usd"] == used["cost_usd"]
    assert "house-model" in forkyard("usage", "--by", "model", directory=yard.folder).stdout


def test_agent_is_ended_and_its_work_kept_when_its_budget_is_used_up(yard: ModelYard) -> None:
    """The orchestrator ends it, not its own good will; the half-done work is a candidate."""
    command = "echo half > half.txt; while python3 -B ask.py; do :; done; sleep 100"
    result = yard.run(command_agent(command), limits="attempt_budget: {usd: 0.05}", code=13)
    one = attempts(result)["mine"]

    assert one["state"] == "budget-exhausted"
    assert one["failure"] == "budget"
    assert "budget" in one["detail"]
    assert [file["path"] for file in one["candidate"]["files"]] == ["half.txt"]
    assert one["evaluation"]["verdict"] == "failed"
    assert one["usage"]["requests"] >= 1
    assert 0 < one["usage"]["cost_usd"] <= 0.05
    with connect_blocking() as client:
        manifest = client.candidates.manifest(one["candidate"]["id"])
    assert b'"ending": "budget-exhausted"' in manifest


def test_queued_attempts_are_not_started_when_the_runs_budget_is_used_up(yard: ModelYard) -> None:
    """They say so, had no sandbox, and count as what they are in the run's exit status."""
    command = "while python3 -B ask.py; do :; done; sleep 100"
    result = yard.run(
        command_agent(command, more=", attempts: 3"),
        limits="budget: {usd: 0.05}, parallel: 1",
        code=13,
    )
    first, *others = result["tasks"][0]["attempts"]

    assert {one["state"] for one in (first, *others)} == {"budget-exhausted"}
    assert first["usage"]["requests"] > 0
    for one in others:
        assert one["failure"] == "budget"
        assert one["detail"].startswith("not started: the run's budget is used up: 0.0"), one
        assert one["elapsed_seconds"] is None
        assert one["candidate"] is None
        assert one["cleanup"] == "done"
        assert not one["usage"]["requests"]
    shown = forkyard("status", result["id"], directory=yard.folder)
    assert "not started: the run's budget is used up" in shown.stdout


def test_agent_gets_no_more_when_it_has_made_its_requests(yard: ModelYard) -> None:
    """Two are answered; the third is refused in words, and the orchestrator ends the agent."""
    command = f"{FIX}; while python3 -B ask.py; do :; done; sleep 100"
    result = yard.run(command_agent(command), limits="attempt_requests: 2", code=0)
    one = attempts(result)["mine"]

    assert one["usage"]["requests"] == 2
    assert (one["state"], one["failure"]) == ("budget-exhausted", "budget")
    assert one["evaluation"]["verdict"] == "solved"
    assert "has made its 2 requests" in one["detail"]


@pytest.mark.parametrize(
    ("status", "failure", "verdict", "code"),
    [
        (401, "provider", "not-evaluated", 12),
        (403, "provider", "not-evaluated", 12),
        (500, "provider", "not-evaluated", 12),
        (400, "agent", "failed", 1),
        (413, "agent", "failed", 1),
    ],
)
def test_failure_has_its_class_when_the_provider_answers_with_an_error(
    yard: ModelYard, status: int, failure: str, verdict: str, code: int
) -> None:
    """What the provider did is never the agent's loss, what the agent asked for is."""
    result = yard.run(command_agent(f"python3 -B ask.py status-{status}"), code=code)
    one = attempts(result)["mine"]

    assert one["failure"] == failure, one
    assert one["evaluation"]["verdict"] == verdict


def test_nothing_is_solved_when_an_agent_exits_well_without_a_change(yard: ModelYard) -> None:
    """An exit status of 0 is the agent's word."""
    one = attempts(yard.run(command_agent("python3 -B ask.py"), code=1))["mine"]

    assert one["exit_code"] == 0
    assert one["evaluation"]["verdict"] == "failed"


def test_run_is_refused_when_an_agent_could_never_reach_its_model(yard: ModelYard) -> None:
    """Before anything is made: every problem, with file and key."""
    task = yard.task(
        "  - {name: a, command: x, provider: nobody}\n"
        "  - {name: b, command: x, provider: gemini}\n"
        "  - {name: c, command: x, provider: anthropic, model: no-price-is-known}",
        "budget: {usd: 1}",
    )
    done = forkyard("run", task, "--json", directory=yard.folder)

    assert done.returncode == 2
    problems = run_result(done)["error"]["problems"]
    assert [(one["file"], one["key"]) for one in problems] == [
        (str(task), "agents.0.provider"),
        (str(task), "agents.1.provider"),
        (str(task), "agents.2.model"),
    ]
    assert "forkyard secret set NOT_SET" in problems[1]["message"]


def test_agent_has_no_network_when_it_asks_for_no_model(yard: ModelYard) -> None:
    """No grant, no socket; and no usage that would look like nothing spent."""
    command = f"python3 -B ask.py; {FIX}"
    one = attempts(yard.run(f"  - {{name: mine, command: {command!r}}}", code=0))["mine"]

    assert one["usage"]["input_tokens"] is None
    with connect_blocking() as client:
        errors = b"".join(client.runs.log(one["id"], stream="stderr")).decode()
    assert "urlopen error" in errors


def test_agent_goes_on_when_the_server_is_killed_in_mid_run(yard: ModelYard) -> None:
    """It asks while no server is there, and everything is counted once by the next one."""
    command = f"python3 -B ask.py; sleep 3; python3 -B ask.py; echo twice; {FIX}; sleep 2"
    before = yard.billed()
    run = yard.submit(command_agent(command))
    yard.wait_for_output(run, "Hello.")
    yard.kill_server()
    result = yard.result(run)
    one = attempts(result)["mine"]

    assert one["state"] == "finished", one
    assert one["evaluation"]["verdict"] == "solved"
    assert one["usage"]["requests"] == yard.billed()[0] - before[0] == 2
    assert one["usage"]["output_tokens"] == 2 * 70


@pytest.mark.parametrize(
    "failpoint",
    [
        deep("C02", id="workspace-named"),
        deep("C07", id="let-in-and-sandbox-live"),
        pytest.param("C11", id="agent-over"),
        deep("C21", id="account-closed"),
        deep("C12", id="sandbox-stopped"),
    ],
)
def test_everything_is_counted_once_when_the_server_dies_on_the_way(
    yard: ModelYard, failpoint: str
) -> None:
    """One agent, one bill, whatever the journal held at that moment."""
    before = yard.billed()
    run = yard.submit(command_agent(ASK_AND_FIX), failpoint=failpoint)
    holder = int(yard.layout.lock.read_text().split()[1])
    yard.wait_until(lambda: holder not in processes())
    one = attempts(yard.result(run))["mine"]

    assert one["state"] == "finished", one
    assert one["evaluation"]["verdict"] == "solved"
    assert one["usage"]["requests"] == yard.billed()[0] - before[0] == 1
    assert one["usage"]["output_tokens"] == 70


def test_agent_waits_and_goes_on_when_the_gateway_is_killed_in_mid_run(yard: ModelYard) -> None:
    """Its request waits in the socket that the shim keeps, until the next gateway answers it."""
    command = f"python3 -B ask.py; sleep 2; python3 -B ask.py; {FIX}"
    run = yard.submit(command_agent(command))
    yard.wait_for_output(run, "Hello.")
    yard.kill_gateway()
    result = yard.result(run)
    one = attempts(result)["mine"]

    assert one["evaluation"]["verdict"] == "solved", one
    assert one["failure"] is None
    assert one["usage"]["requests"] == 2


def test_spending_is_seen_when_a_run_is_watched(yard: ModelYard) -> None:
    """What the gateway says of an attempt is in its status while it runs, and gone afterwards."""
    run = yard.submit(command_agent(f"{ASK_AND_FIX}; sleep 5"))
    yard.wait_for_output(run, "Hello.")

    def is_seen() -> bool:
        with connect_blocking() as client:
            one = client.runs.get(run).tasks[0].attempts[0]
        return one.live is not None and one.live.spent_tokens == 1610 and one.usage.requests == 1

    yard.wait_until(is_seen)
    one = attempts(yard.result(run))["mine"]
    assert one["live"] is None
    assert one["usage"]["output_tokens"] == 70


def test_no_key_lies_anywhere_when_runs_are_over(yard: ModelYard) -> None:
    """Neither journal, ledger, logs nor results hold what the provider was given."""
    run = yard.run(command_agent(f"env; cat /proc/*/environ; {ASK_AND_FIX}"), code=0)
    assert CANARY not in yard.output_of(attempts(run)["mine"]["id"])

    holding = [
        str(path)
        for path in yard.layout.home.rglob("*")
        if path.is_file() and not path.is_symlink() and CANARY.encode() in path.read_bytes()
    ]
    assert holding == []
