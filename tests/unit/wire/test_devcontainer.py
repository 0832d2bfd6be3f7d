"""devcontainer.json: what maps, what is left out, and that every key is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError
from forkyard.wire.devcontainer import Fate, Imported, import_devcontainer

WHOLE = """\
// For format details, see the specification.
{
  "name": "Payments API (dev)",
  "build": {"dockerfile": "Dockerfile", "context": "..", "args": {"GO": "1.26"}},
  "features": {"ghcr.io/devcontainers/features/node:1": {}},
  "initializeCommand": "touch /tmp/on-the-host",
  "containerEnv": {"LEVEL": "high", "TOKEN": "${localEnv:TOKEN}", "BAD NAME": "x"},
  "remoteEnv": {"ROOT": "${containerWorkspaceFolder}/src", "PATH": "${containerEnv:PATH}:/x"},
  "postStartCommand": {"api": "make serve", "worker": ["python3", "worker.py", "a b"]},
  "onCreateCommand": "make deps",
  "postCreateCommand": "cp ${localWorkspaceFolder}/x .",
  "hostRequirements": {"cpus": 4, "memory": "8gb", "storage": "32gb", "gpu": true},
  "forwardPorts": [3000],
  "remoteUser": "vscode",
  "customizations": {"vscode": {}},
  "somethingNew": 1, // a trailing comma follows
}
"""


def imported(document: object, repository: str | None = None) -> Imported:
    """Import a document given as a value or as text."""
    text = document if isinstance(document, str) else json.dumps(document)
    return import_devcontainer(
        text, "devcontainer.json", folder="/repo/.devcontainer", root="/repo", repository=repository
    )


def test_every_key_is_told_when_a_whole_file_is_imported() -> None:
    """In the file's order; nothing is dropped without a word."""
    made = imported(WHOLE, repository="/repo")

    assert [(one.key, one.fate) for one in made.report] == [
        ("name", Fate.MAPPED),
        ("build", Fate.PARTLY),
        ("features", Fate.IGNORED),
        ("initializeCommand", Fate.IGNORED),
        ("containerEnv", Fate.PARTLY),
        ("remoteEnv", Fate.PARTLY),
        ("postStartCommand", Fate.MAPPED),
        ("onCreateCommand", Fate.MAPPED),
        ("postCreateCommand", Fate.IGNORED),
        ("hostRequirements", Fate.PARTLY),
        ("forwardPorts", Fate.IGNORED),
        ("remoteUser", Fate.IGNORED),
        ("customizations", Fate.IGNORED),
        ("somethingNew", Fate.IGNORED),
    ]
    assert made.name == "payments-api-dev"
    assert made.spec == {
        "image": {
            "build": {"context": "/repo", "containerfile": "/repo/.devcontainer/Dockerfile"}
        },
        "repository": {"path": "/repo", "include_uncommitted": True},
        "runtime": {
            "envVars": [
                {"key": "LEVEL", "value": "high"},
                {"key": "ROOT", "value": "/workspace/repo/src"},
            ],
            "tasks": [
                {
                    "name": "on-create", "type": "ON_CREATE", "workingDir": "/workspace/repo",
                    "run": "make deps",
                },
                {
                    "name": "post-start-api", "type": "POST_START",
                    "workingDir": "/workspace/repo", "run": "make serve",
                },
                {
                    "name": "post-start-worker", "type": "POST_START",
                    "workingDir": "/workspace/repo", "run": "python3 worker.py 'a b'",
                },
            ],
        },
        "limit": {
            "cpu": {"millicores": 4000}, "memory": {"megabytes": 8192},
            "storage": {"megabytes": 32768},
        },
    }  # fmt: skip


def test_the_hosts_command_and_environment_never_go_in_when_they_are_asked_for() -> None:
    """Whatever asks for the host is left out, and said."""
    made = imported(WHOLE)

    told = {one.key: one.note for one in made.report}
    assert "outside of every sandbox" in told["initializeCommand"]
    assert "TOKEN (asks for the host's environment or folders)" in told["containerEnv"]
    assert "on-the-host" not in json.dumps(made.spec)
    assert "local" not in json.dumps(made.spec)


def test_tasks_run_as_root_only_when_the_image_is_its_own() -> None:
    """This machine's own `/usr` has no root inside."""
    document = {"onCreateCommand": "true", "remoteUser": "root"}

    with_image = imported({"image": "debian:12", **document}).spec
    without = imported(document).spec
    assert "'runAsRoot': True" in str(with_image)
    assert "runAsRoot" not in str(without)
    assert without["image"] == "host"


@given(
    st.dictionaries(
        st.sampled_from(
            ["name", "image", "build", "dockerFile", "context", "containerEnv", "remoteUser",
             "onCreateCommand", "postStartCommand", "hostRequirements", "mounts", "x"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda below: st.lists(below, max_size=3)
            | st.dictionaries(st.sampled_from(["cpus", "dockerfile", "memory", "a b"]), below),
            max_leaves=6,
        ),
    )
)  # fmt: skip
def test_every_key_is_told_once_when_values_are_anything(document: dict[str, object]) -> None:
    """Never an exception, never a silent key."""
    told = [one.key for one in imported(document).report]
    assert told == list(document)


@pytest.mark.parametrize("context", ["../..", "/", "/home/user", "../../repository", "a\0b"])
@pytest.mark.parametrize("key", ["context", "dockerfile"])
def test_a_build_is_left_out_when_it_asks_for_what_lies_outside(key: str, context: str) -> None:
    """Whoever wrote the file is given no folder of whoever imports it."""
    made = imported({"build": {"dockerfile": "Dockerfile", "context": "..", key: context}})
    assert made.spec["image"] == "host"
    assert made.report[0].fate is Fate.IGNORED
    assert "lies outside of /repo" in made.report[0].note


@pytest.mark.parametrize(
    "requirements",
    [{"cpus": float("inf")}, {"cpus": float("nan")}, {"cpus": -1}, {"memory": "9" * 5000 + "gb"},
     {"memory": "\u0661gb"}],
)  # fmt: skip
def test_a_number_is_left_out_when_no_machine_has_that_much(requirements: object) -> None:
    """JSON as Python reads it knows numbers without end."""
    made = imported({"hostRequirements": requirements})
    assert "limit" not in made.spec
    assert made.report[0].fate is Fate.IGNORED


@pytest.mark.parametrize("text", ["[1]", "{", "nothing"])
def test_it_is_refused_when_it_is_no_mapping(text: str) -> None:
    """With the file's name."""
    with pytest.raises(ConfigError, match=r"cannot read devcontainer\.json: "):
        imported(text)
