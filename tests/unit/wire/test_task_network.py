"""`network` in a task file: the hosts of its attempts, and what is refused."""

from __future__ import annotations

import pytest

from forkyard.errors import ConfigError
from forkyard.wire.quickform import quick_request
from forkyard.wire.taskfile import parse_run

BASE = "name: t\nprompt: p\nstart: {snapshot: s}\nagents: [{name: a, command: x}]\n"


@pytest.mark.parametrize(
    ("network", "allow"),
    [
        ("", None),
        ("network: {policy: gateway}", ()),
        (
            "network: {policy: allowlist, allow: [A.example.org, '*.b.org:8443', a.example.org]}",
            ("a.example.org", "*.b.org:8443"),
        ),
        ("network: {allow: [a.example.org]}", ("a.example.org",)),
    ],
)
def test_the_hosts_reach_the_request(network: str, allow: tuple[str, ...] | None) -> None:
    """None: as the template says; empty: none, whatever it says."""
    assert parse_run(BASE + network).tasks[0].allow == allow


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("network: {policy: open}", "use allowlist"),
        ("network: {policy: none}", "remove the key"),
        ("network: {policy: allowlist}", "needs the names of the hosts"),
        ("network: {policy: gateway, allow: [a.example.org]}", "policy: allowlist only"),
        ("network: {policy: allowlist, allow: [10.0.0.1]}", "is an address"),
        ("network: {policy: allowlist, allow: [a.example.org], ports: [1]}", "ports"),
    ],
)
def test_one_problem_is_told_when_there_is_one(network: str, words: str) -> None:
    """With its key."""
    with pytest.raises(ConfigError) as raised:
        parse_run(BASE + network)

    (problem,) = raised.value.problems
    assert (problem.key or "").startswith("network")
    assert words in str(problem)


def test_the_flag_is_read_alike_in_the_quick_form() -> None:
    """Good hosts reach the request, bad ones are told with the flag."""
    made = quick_request("p", agents=["a=x"], cwd="/", allow=["A.example.org"])
    with pytest.raises(ConfigError) as raised:
        quick_request("p", agents=["a=x"], cwd="/", allow=["localhost"])

    assert made.tasks[0].allow == ("a.example.org",)
    assert [one.key for one in raised.value.problems] == ["--allow"]
