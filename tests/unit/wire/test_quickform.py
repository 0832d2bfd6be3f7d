"""The quick form builds what a task file would."""

from __future__ import annotations

import pytest

from forkyard.errors import ConfigError
from forkyard.wire.fields import MOST_ARGUMENT_BYTES
from forkyard.wire.quickform import quick_request
from forkyard.wire.taskfile import StartRequest, parse_run


def test_quick_form_equals_the_task_file_that_says_the_same() -> None:
    """Both doors lead to the same request."""
    quick = quick_request(
        "Fix the bug", agents=["mine=run x=1"], attempts=2, checks=["pytest -q"], cwd="/home/me"
    )
    text = """\
name: fix-the-bug
prompt: Fix the bug
start: {repository: {path: ., include_uncommitted: true}}
agents: [{name: mine, driver: command, command: run x=1, attempts: 2}]
checks: [{name: pytest, run: pytest -q}]
"""
    assert quick == parse_run(text, folder="/home/me")


def test_checks_get_names_of_their_own_when_commands_begin_alike() -> None:
    """Names are unique and fit for a file."""
    request = quick_request(
        "x", agents=["a=b"], checks=["/usr/bin/pytest a", "pytest b", "./; x"], cwd="/"
    )

    assert [check.name for check in request.tasks[0].checks] == ["pytest", "pytest-2", "check"]


def test_snapshot_takes_the_place_of_the_repository_when_given() -> None:
    """The start is one thing."""
    request = quick_request("x", agents=["a=b"], cwd="/", snapshot="s")

    assert request.tasks[0].start == StartRequest(snapshot="s")


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        (["aider"], "driver aider is not supported yet"),
        (["codex:"], "is no name of a model"),
        (["codex:a b"], "is no name of a model"),
        (["codex:x", "codex:x"], "codex-x is the name of two agents"),
        (["mine"], "names no driver"),
        (["mine="], "has no command"),
        (["a b=c"], "is no name"),
        (["a=b", "a=c"], "name of two agents"),
        ([], "is missing"),
    ],
)
def test_agent_is_refused_when_it_cannot_be_run(agents: list[str], words: str) -> None:
    """A word without = names a driver, and its model after a colon."""
    with pytest.raises(ConfigError) as raised:
        quick_request("x", agents=agents, cwd="/")

    assert words in raised.value.problems[0].message


def test_agent_has_its_driver_and_model_when_named_by_them() -> None:
    """Two models of one driver are two agents."""
    request = quick_request("x", agents=["claude-code", "codex:gpt-5.5", "codex:a/b"], cwd="/")

    assert [(a.name, a.driver, a.model, a.command) for a in request.tasks[0].agents] == [
        ("claude-code", "claude-code", "", ""),
        ("codex-gpt-5.5", "codex", "gpt-5.5", ""),
        ("codex-a-b", "codex", "a/b", ""),
    ]


def test_all_problems_are_told_at_once() -> None:
    """Every flag that is wrong is named."""
    with pytest.raises(ConfigError) as raised:
        quick_request(
            " ", agents=["x"], attempts=0, checks=[""], cwd="/", protected=["/x"],
            snapshot="a", template="b", name="a b",
        )  # fmt: skip

    assert [problem.key for problem in raised.value.problems] == [
        "PROMPT", "-n", "--template", "--name", "--protected", "-a", "--check",
    ]  # fmt: skip


def test_what_no_program_can_be_given_is_refused_when_it_is_too_long() -> None:
    """As in a task file."""
    long = "x" * (MOST_ARGUMENT_BYTES + 1)
    with pytest.raises(ConfigError) as raised:
        quick_request(long, agents=[f"a={long}"], checks=[long], cwd="/")

    assert [problem.key for problem in raised.value.problems] == ["PROMPT", "-a", "--check"]
