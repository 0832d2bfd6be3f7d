"""The task file: one request, shared keys, and every problem at once."""

from __future__ import annotations

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError, Problem
from forkyard.model.budget import Budget
from forkyard.model.run import AgentSpec, RunLimits
from forkyard.model.verdict import Check, ReportFormat
from forkyard.wire.fields import MOST_ARGUMENT_BYTES
from forkyard.wire.taskfile import RunRequest, StartRequest, TaskRequest, parse_run

WHOLE = """\
name: issue-1842
prompt: |
  Fix it.
start:
  snapshot: issue-1842
repository: /workspace/repo
agents:
  - {name: mine, driver: command, command: 'my-agent "$PROMPT"', env: {LEVEL: high}, attempts: 3}
  - {name: opus, driver: claude-code, model: claude-opus-5-5, provider: house}
  - {name: own, command: x, gateway: true}
limits:
  {parallel: 4, attempt_timeout: 45m, deadline: 90m, budget: {tokens: 5M, usd: 20},
   attempt_budget: {usd: 2.500001}, attempt_requests: 1.5k}
scope: ["internal/**"]
checks:
  - {name: tests, run: 'pytest -q --junitxml="$REPORT"', report: junit, timeout: 20m}
  - {name: lint, run: make lint}
held_out: [hidden/]
protected: ["tests/**"]
"""
SHORT = """\
name: run
prompt: shared
start: {repository: {path: ., include_uncommitted: true}}
agents: [{name: a, command: x}]
"""


def problems(text: str) -> list[Problem]:
    """Read a bad file and give what is wrong with it."""
    with pytest.raises(ConfigError) as raised:
        parse_run(text, "task.yaml")
    return list(raised.value.problems)


def test_every_accepted_key_reaches_the_request() -> None:
    """Nothing that is accepted is dropped."""
    assert parse_run(WHOLE, "/home/me/task.yaml") == RunRequest(
        name="issue-1842",
        folder="/home/me",
        file="/home/me/task.yaml",
        limits=RunLimits(
            parallel=4,
            attempt_timeout_seconds=2700,
            deadline_seconds=5400,
            budget=Budget(tokens=5_000_000, micro_usd=20_000_000),
            attempt_budget=Budget(micro_usd=2_500_001),
            attempt_requests=1500,
        ),
        tasks=(
            TaskRequest(
                name="issue-1842",
                prompt="Fix it.\n",
                start=StartRequest(snapshot="issue-1842"),
                agents=(
                    AgentSpec(
                        name="mine",
                        driver="command",
                        command='my-agent "$PROMPT"',
                        variables={"LEVEL": "high"},
                        attempts=3,
                    ),
                    AgentSpec(
                        name="opus",
                        driver="claude-code",
                        command="",
                        model="claude-opus-5-5",
                        provider="house",
                    ),
                    AgentSpec(name="own", driver="command", command="x", gateway=True),
                ),
                scope=("internal/**",),
                checks=(
                    Check(
                        name="tests",
                        run='pytest -q --junitxml="$REPORT"',
                        report=ReportFormat.JUNIT,
                        timeout_seconds=1200,
                    ),
                    Check(name="lint", run="make lint"),
                ),
                held_out=("hidden/",),
                protected=("tests/**",),
            ),
        ),
    )


def test_several_tasks_share_what_they_do_not_replace() -> None:
    """A key in a task replaces the shared one whole."""
    text = SHORT + "tasks:\n  - {name: one}\n  - {name: two, prompt: own, protected: [t/]}\n"
    request = parse_run(text)

    assert [(t.name, t.prompt, t.protected) for t in request.tasks] == [
        ("one", "shared", ()),
        ("two", "own", ("t/",)),
    ]
    assert request.tasks[0].agents == request.tasks[1].agents
    assert request.tasks[0].start == StartRequest(repository_path=".", include_uncommitted=True)


def test_relative_paths_start_at_the_files_folder() -> None:
    """The request records where its paths start."""
    request = parse_run(SHORT, "sub/task.yaml", folder="/home/me/sub")

    assert request.resolve("../x") == "/home/me/x"
    assert request.resolve("/abs") == "/abs"


def test_all_problems_are_told_at_once_in_the_files_order() -> None:
    """One round trip is enough to mend a file."""
    text = """\
name: bad name
prompt: ""
start: {snapshot: a, template: b}
agents:
  - {name: opus, driver: aider, model: "b i g", provider: "http://x"}
  - {name: mine, driver: comand, attempts: 65}
  - {name: mine, command: x, env: {PROMPT: y, N: 1}}
limits: {parallel: 0, deadline: 90, budget: {usd: 0.0000001, eur: 1}}
checks:
  - {name: t, run: x, report: xml, timeout: 0s}
  - {name: t, rn: x}
scope: ["../x"]
held-out: [x]
"""
    assert [(p.line, p.key) for p in problems(text)] == [
        (1, "name"),
        (2, "prompt"),
        (3, "start"),
        (5, "agents.0.driver"),
        (5, "agents.0.model"),
        (5, "agents.0.provider"),
        (6, "agents.1.driver"),
        (6, "agents.1.attempts"),
        (7, "agents.2.env.PROMPT"),
        (7, "agents.2.env.N"),
        (7, "agents.2.name"),
        (8, "limits.parallel"),
        (8, "limits.deadline"),
        (8, "limits.budget.usd"),
        (8, "limits.budget.eur"),
        (10, "checks.0.report"),
        (10, "checks.0.timeout"),
        (11, "checks.1.run"),
        (11, "checks.1.rn"),
        (11, "checks.1.name"),
        (12, "scope.0"),
        (13, "held-out"),
    ]


def test_shared_problem_is_told_once_when_several_tasks_share_it() -> None:
    """Two tasks with one bad shared check are one problem, not two."""
    text = SHORT + "checks: [{name: t}]\ntasks: [{name: one}, {name: two}]\n"

    assert [p.key for p in problems(text)] == ["checks.0.run"]


@pytest.mark.parametrize("key", ["start: 3", "agents: 3", "checks: 3", "scope: 3", "repository: x"])
def test_shared_key_is_still_checked_when_every_task_replaces_it(key: str) -> None:
    """A wrong key is never ignored because nobody happens to use it."""
    good = {
        "start": "start: {snapshot: s}",
        "agents": "agents: [{name: b, command: y}]",
        "checks": "checks: []",
        "scope": "scope: []",
        "repository": "repository: /workspace/other",
    }[key.partition(":")[0]]
    lines = [line for line in SHORT.splitlines() if not line.startswith(key.partition(":")[0])]
    text = "\n".join([*lines, key, "tasks:", "  - name: one", f"    {good}"])

    assert problems(text)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("budget: {usd: 1}", "not supported yet"),
        ("model: x", "not supported yet"),
        ("tasks: []", "at least one task"),
        ("tasks: [{name: a}, {name: a}]", "two tasks"),
        ("tasks: [{name: a, limits: {parallel: 2}}]", "shared by the whole run"),
        ("repository: relative", "absolute path"),
        ("repository: /workspace/../etc", "absolute path"),
        ("protected: [/etc/passwd]", "relative to the repository"),
        ("held_out: [~/x]", "not expanded"),
        ("held_out: hidden", "must be a list"),
        ("limits: {attempt_timeout: 1.5}", "must be a duration"),
        ("limits: {parallel: 65}", "must be from 1 to 64"),
        ("checks: [{name: t, run: x, report: tap}]", "not supported yet"),
        ("checks: [{name: ../t, run: x}]", "is no name"),
        ("protectd: [x]", "did you mean protected?"),
    ],
)
def test_one_problem_is_told_in_words_when_there_is_one(extra: str, words: str) -> None:
    """Each rule has a sentence of its own."""
    assert any(words in problem.message for problem in problems(SHORT + extra + "\n"))


@pytest.mark.parametrize("key", ["name", "prompt", "start", "agents"])
def test_missing_key_is_named_when_it_is_needed(key: str) -> None:
    """A request needs a name, a prompt, a start and an agent."""
    text = "\n".join(line for line in SHORT.splitlines() if not line.startswith(key))

    assert [(p.key, p.message) for p in problems(text)] == [(key, "is missing")]


NAMES = st.lists(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    unique=True,
    min_size=1,
    max_size=4,
)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1).filter(
    lambda text: text.strip() != ""
)


@given(agents=NAMES, checks=NAMES, prompt=TEXT, command=TEXT, minutes=st.integers(1, 600))
def test_request_comes_back_when_written_as_yaml(
    agents: list[str], checks: list[str], prompt: str, command: str, minutes: int
) -> None:
    """Whatever text a prompt or command holds, it arrives as it was written."""
    text = pyyaml.safe_dump(
        {
            "name": "n",
            "prompt": prompt,
            "start": {"snapshot": "s"},
            "agents": [{"name": name, "command": command} for name in agents],
            "checks": [{"name": name, "run": command, "timeout": f"{minutes}m"} for name in checks],
        }
    )
    (task,) = parse_run(text).tasks

    assert task.prompt == prompt
    assert [(a.name, a.command) for a in task.agents] == [(name, command) for name in agents]
    assert [(c.name, c.run, c.timeout_seconds) for c in task.checks] == [
        (name, command, minutes * 60) for name in checks
    ]


def test_what_no_program_can_be_given_is_refused_when_it_is_too_long() -> None:
    """Prompt, commands and variables travel as one argument each, and the kernel bounds them."""
    long = "x" * (MOST_ARGUMENT_BYTES + 1)
    told = problems(
        f"name: x\nprompt: {long}\nstart: {{snapshot: s}}\n"
        f"agents: [{{name: a, command: {long}, env: {{A: {long}}}}}]\n"
        f"checks: [{{name: c, run: {long}}}]\n"
    )

    assert {one.key for one in told} == {
        "prompt", "agents.0.command", "agents.0.env.A", "checks.0.run",
    }  # fmt: skip
    assert all("a program takes" in one.message for one in told)


@pytest.mark.parametrize(
    ("agent", "key", "words"),
    [
        ("{name: a, driver: codex, command: x}", "command", "has no meaning with driver codex"),
        ("{name: a, driver: codex, gateway: true}", "gateway", "always has it"),
        ("{name: a, driver: gemini, model: 5}", "model", "must be text"),
        ("{name: a, driver: aider}", "driver", "not supported yet"),
    ],
)
def test_agent_key_is_refused_when_its_driver_gives_it_no_meaning(
    agent: str, key: str, words: str
) -> None:
    """Nothing that is written is ignored."""
    found = problems(SHORT.replace("{name: a, command: x}", agent))

    assert [(one.key, words in one.message) for one in found] == [(f"agents.0.{key}", True)]


@pytest.mark.parametrize(
    ("limit", "key"),
    [
        ("budget: {}", "limits.budget"),
        ("budget: 20", "limits.budget"),
        ("attempt_budget: {tokens: 0}", "limits.attempt_budget.tokens"),
        ("attempt_budget: {usd: -1}", "limits.attempt_budget.usd"),
        ("attempt_requests: 1.5", "limits.attempt_requests"),
        ("attempt_requests: true", "limits.attempt_requests"),
    ],
)
def test_limit_is_refused_when_it_limits_nothing(limit: str, key: str) -> None:
    """A budget that could be read two ways, or not at all, is none."""
    assert [one.key for one in problems(SHORT + f"limits: {{{limit}}}\n")] == [key]
