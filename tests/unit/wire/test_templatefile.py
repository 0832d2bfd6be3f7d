"""The template file: what becomes a recipe, and every problem at once."""

from __future__ import annotations

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError, Problem
from forkyard.model.workspace import (
    Limits,
    OnFailure,
    RepositorySource,
    TemplateSpec,
    TemplateTask,
)
from forkyard.wire.templatefile import MEGABYTE, parse_template

WHOLE = """\
spec:
  image: host
  repository: {path: src/app, include_uncommitted: true}
  runtime:
    envVars:
      - {key: LEVEL, value: high}
      - {key: EMPTY, value: ""}
    tasks:
      - name: deps
        type: ON_CREATE
        workingDir: /workspace/repo
        onFailure: ON_FAILURE_CONTINUE
        runAsRoot: false
        run: |
          make deps
      - {name: more, run: "true"}
  limit:
    cpu: {millicores: 4000}
    memory: {megabytes: 8192}
    storage: {megabytes: 20000}
    processes: 100
"""
SEED = """\
spec:
  image:
    registry:
      url: golang:1.26-bookworm
  repository:
    url: https://example.invalid/acme/payments
    authentication:
      http:
        username: x-access-token
        password:
          fromSecret: token
  runtime:
    envVars:
      - key: BASE_URL
        value: http://anthropic
      - key: TOKEN
        fromSecret: token
    tasks:
      - name: install
        type: ON_CREATE
        runAsRoot: true
        onFailure: ON_FAILURE_ABORT
        run: "true"
      - name: later
        type: POST_START
        run: "true"
  limit:
    cpu:
      millicores: 4000
"""


def problems(text: str) -> list[Problem]:
    """Read a bad file and give what is wrong with it."""
    with pytest.raises(ConfigError) as raised:
        parse_template(text, "t.yaml")
    return list(raised.value.problems)


def test_every_accepted_key_reaches_the_recipe() -> None:
    """Nothing that is accepted is dropped."""
    assert parse_template(WHOLE, "t.yaml", folder="/home/me") == TemplateSpec(
        image="host",
        repository=RepositorySource(path="/home/me/src/app", include_uncommitted=True),
        variables={"LEVEL": "high", "EMPTY": ""},
        tasks=(
            TemplateTask(
                name="deps",
                run="make deps\n",
                working_directory="/workspace/repo",
                on_failure=OnFailure.CONTINUE,
            ),
            TemplateTask(name="more", run="true"),
        ),
        limits=Limits(
            cpu_millicores=4000,
            memory_bytes=8192 * MEGABYTE,
            disk_bytes=20000 * MEGABYTE,
            processes=100,
        ),
    )


def test_seeds_unsupported_keys_are_refused_with_their_lines() -> None:
    """What cannot be honoured yet is named as such, never passed over."""
    found = [(p.line, p.key) for p in problems(SEED) if "not supported yet" in p.message]

    assert found == [
        (3, "spec.image.registry"),
        (7, "spec.repository.authentication"),
        (17, "spec.runtime.envVars.1.fromSecret"),
        (21, "spec.runtime.tasks.0.runAsRoot"),
        (25, "spec.runtime.tasks.1.type"),
    ]
    assert len(problems(SEED)) == len(found)


def test_all_problems_are_told_at_once_in_the_files_order() -> None:
    """One round trip is enough to mend a file."""
    text = """\
spec:
  imagee: host
  repository: {path: /a, url: https://b/c}
  runtime:
    envVars: [{key: 1A, value: x}, {key: A, value: 3}, {key: B}]
    tasks: [{nme: x, run: true}]
    shell: zsh
  limit:
    memory: {megabytes: 8GB}
    cpu: 4
kind: Template
"""
    assert [(p.line, p.key) for p in problems(text)] == [
        (2, "spec.imagee"),
        (3, "spec.repository.url"),
        (5, "spec.runtime.envVars.0.key"),
        (5, "spec.runtime.envVars.1.value"),
        (5, "spec.runtime.envVars.2.value"),
        (6, "spec.runtime.tasks.0.name"),
        (6, "spec.runtime.tasks.0.run"),
        (6, "spec.runtime.tasks.0.nme"),
        (7, "spec.runtime.shell"),
        (9, "spec.limit.memory.megabytes"),
        (10, "spec.limit.cpu"),
        (11, "kind"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("[]", "must be a mapping"),
        ("spek: {}", "did you mean spec?"),
        ("spec: {image: golang}", "not supported yet"),
        ("spec: {image: {}}", "write `image: host`"),
        ("spec: {repository: {}}", "needs a path on this machine or a url"),
        ("spec: {repository: {url: /tmp/x}}", "no repository address"),
        ("spec: {repository: {url: 'https://u:p@h/x'}}", "must not carry"),
        ("spec: {repository: {path: ~/x}}", "not expanded"),
        ("spec: {repository: {path: x, include_uncommitted: on}}", "must be true or false"),
        ("spec: {repository: {url: 'https://h/x', include_uncommitted: true}}", "path only"),
        ("spec: {runtime: {tasks: [{name: a, run: x, workingDir: repo}]}}", "absolute"),
        ("spec: {runtime: {tasks: [{name: a, run: x}, {name: a, run: y}]}}", "two tasks"),
        ("spec: {runtime: {tasks: [{name: a/../b, run: x}]}}", "is no name"),
        ("spec: {runtime: {tasks: [{name: a, run: x, onFailure: ABORT}]}}", "unknown"),
        ("spec: {runtime: {envVars: [{key: A, value: x}, {key: A, value: y}]}}", "set twice"),
        ("spec: {limit: {processes: 0}}", "must be from"),
        ("spec: {limit: {cpu: {millicores: -1}}}", "must be from"),
        ("spec: {limit: {cpu: {}}}", "is missing"),
    ],
)
def test_one_problem_is_told_in_words_when_there_is_one(text: str, words: str) -> None:
    """Each rule has a sentence of its own."""
    assert any(words in problem.message for problem in problems(text))


@given(
    variables=st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{0,9}", fullmatch=True),
        st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=30),
        max_size=5,
    ),
    names=st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,9}", fullmatch=True), unique=True, max_size=4),
    run=st.text(
        st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=40
    ).filter(str.strip),
    megabytes=st.integers(min_value=16, max_value=100_000),
)
def test_recipe_comes_back_when_written_as_yaml(
    variables: dict[str, str], names: list[str], run: str, megabytes: int
) -> None:
    """Whatever text a value holds, it arrives as it was written."""
    text = pyyaml.safe_dump(
        {
            "spec": {
                "runtime": {
                    "envVars": [{"key": k, "value": v} for k, v in variables.items()],
                    "tasks": [{"name": name, "run": run} for name in names],
                },
                "limit": {"memory": {"megabytes": megabytes}},
            }
        }
    )
    spec = parse_template(text)

    assert spec.variables == variables
    assert [(task.name, task.run) for task in spec.tasks] == [(name, run) for name in names]
    assert spec.limits.memory_bytes == megabytes * MEGABYTE
