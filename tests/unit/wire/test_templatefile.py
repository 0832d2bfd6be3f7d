"""The template file: what becomes a recipe, and every problem at once."""

from __future__ import annotations

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError, Problem
from forkyard.model.workspace import (
    Credentials,
    ImageKind,
    ImageSource,
    Limits,
    NetworkPlan,
    NetworkPolicy,
    OnFailure,
    RepositorySource,
    TaskType,
    TemplateSpec,
    TemplateTask,
)
from forkyard.wire.fields import Problems
from forkyard.wire.template_vars import put_in
from forkyard.wire.templatefile import MEGABYTE, parse_template, with_values
from forkyard.wire.yaml import Node

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
    url: https://github.com/acme-corp/payments-api
    authentication:
      http:
        username: x-access-token
        password:
          fromSecret: github-read-token.payments.cordium
  runtime:
    envVars:
      - key: ANTHROPIC_BASE_URL
        value: http://anthropic
      - key: OPENAI_API_KEY
        value: injected-by-octelium
    tasks:
      - name: install-agents
        type: ON_CREATE
        runAsRoot: true
        onFailure: ON_FAILURE_ABORT
        run: |
          apt-get update
      - name: install-claude-code
        type: ON_CREATE
        workingDir: /workspace
        onFailure: ON_FAILURE_ABORT
        run: |
          cat > "$HOME/.codex/config.toml" <<'EOF'
          model_provider = "octelium"
          EOF
  limit:
    cpu:
      millicores: 4000
    memory:
      megabytes: 8192
    storage:
      megabytes: 20000
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


def test_seeds_file_is_read_as_it_stands() -> None:
    """Image, login, root tasks, dotted names: all of it becomes the recipe."""
    assert parse_template(SEED, "agents.yaml") == TemplateSpec(
        image="golang:1.26-bookworm",
        image_source=ImageSource(kind=ImageKind.REGISTRY, location="golang:1.26-bookworm"),
        repository=RepositorySource(
            url="https://github.com/acme-corp/payments-api",
            credentials=Credentials(
                username="x-access-token",
                secret="github-read-token.payments.cordium",  # noqa: S106 - its name
            ),
        ),
        variables={
            "ANTHROPIC_BASE_URL": "http://anthropic",
            "OPENAI_API_KEY": "injected-by-octelium",
        },
        tasks=(
            TemplateTask(name="install-agents", run="apt-get update\n", run_as_root=True),
            TemplateTask(
                name="install-claude-code",
                run="cat > \"$HOME/.codex/config.toml\" <<'EOF'\n"
                'model_provider = "octelium"\nEOF\n',
            ),
        ),
        limits=Limits(
            cpu_millicores=4000,
            memory_bytes=8192 * MEGABYTE,
            disk_bytes=20000 * MEGABYTE,
        ),
    )


MORE = """\
spec:
  image: {build: {context: image, containerfile: Containerfile.dev}}
  repository: {path: ., branch: release/2, checkout: v1.2.3, depth: 50}
  additionalRepositories:
    - {url: "ssh://git@example.org/lib", target: /workspace/lib, branch: main, submodules: true}
    - {path: docs, target: /workspace/docs, include_uncommitted: true}
  runtime:
    tasks:
      - {name: get, run: fetch, secrets: [{key: TOKEN, fromSecret: npm.token}], background: true}
      - {name: db, run: serve, type: POST_START, background: true, evaluations: true}
      - {name: save, run: flush, type: PRE_STOP, runAsRoot: true}
  limit:
    storage: {megabytes: 100, inodes: 5000, hard: true}
  network: {build: allowlist, workspace: open, allow: [Example.org, "*.example.net"]}
"""


def test_every_further_key_reaches_the_recipe() -> None:
    """Sources, tasks of all kinds, hard limits, networks."""
    assert parse_template(MORE, "t.yaml", folder="/me") == TemplateSpec(
        image="build:/me/image",
        image_source=ImageSource(
            kind=ImageKind.BUILD,
            location="/me/image",
            containerfile="/me/image/Containerfile.dev",
        ),
        repository=RepositorySource(path="/me", branch="release/2", checkout="v1.2.3", depth=50),
        additional_repositories=(
            RepositorySource(
                url="ssh://git@example.org/lib",
                target="/workspace/lib",
                branch="main",
                submodules=True,
            ),
            RepositorySource(path="/me/docs", target="/workspace/docs", include_uncommitted=True),
        ),
        tasks=(
            TemplateTask(name="get", run="fetch", secrets={"TOKEN": "npm.token"}, background=True),
            TemplateTask(
                name="db",
                run="serve",
                type=TaskType.POST_START,
                background=True,
                evaluations=True,
            ),
            TemplateTask(name="save", run="flush", type=TaskType.PRE_STOP, run_as_root=True),
        ),
        limits=Limits(disk_bytes=100 * MEGABYTE, disk_inodes=5000, disk_is_hard=True),
        network=NetworkPlan(
            build=NetworkPolicy.ALLOWLIST,
            workspace=NetworkPolicy.OPEN,
            allow=("example.org", "*.example.net"),
        ),
    )


@pytest.mark.parametrize(
    ("image", "location"),
    [("layout: {path: img}", "/me/img"), ("archive: {path: /a/b.tar}", "/a/b.tar")],
)
def test_an_image_of_a_folder_or_file_is_found_where_the_file_lies(
    image: str, location: str
) -> None:
    """Relative to the template file."""
    spec = parse_template(f"spec: {{image: {{{image}}}}}", "t.yaml", folder="/me")
    assert spec.image_source is not None
    assert (spec.image_source.kind, spec.image_source.location) == (
        image[: image.index(":")],
        location,
    )


LOGIN = "authentication: {http: {username: u, password: {fromSecret: abc}}}"
LATER = "name: a, run: x, secrets: [{key: A, fromSecret: abc}]"

WITH_VARS = """\
spec:
  vars: {LEVEL: high, CORES: 2, HARD: false, WHERE: /workspace}
  image: {registry: {url: "golang:{{ vars.LEVEL }}"}}
  runtime:
    envVars: [{key: LEVEL, value: "is {{vars.LEVEL}}, {{ vars.CORES }} cores"}]
    tasks:
      - name: a
        run: |
          echo "$HOME ${X} {{ .Go }} ${{ vars.LEVEL }} {{ vars.WHERE }}"
  limit:
    cpu: {millicores: "{{ vars.CORES }}"}
    storage: {megabytes: 3, hard: "{{ vars.HARD }}"}
"""


def test_vars_are_put_in_when_the_file_is_read() -> None:
    """Defaults keep their types; nothing that a shell, a Go template or a CI file means changes."""
    text = WITH_VARS.replace("CORES: 2", "CORES: 2000")
    spec = parse_template(text, "t.yaml", folder="/me")
    assert spec.image == "golang:high"
    assert spec.variables == {"LEVEL": "is high, 2000 cores"}
    assert spec.tasks[0].run == 'echo "$HOME ${X} {{ .Go }} ${{ vars.LEVEL }} /workspace"\n'
    assert (spec.limits.cpu_millicores, spec.limits.disk_is_hard) == (2000, False)
    assert spec.parameters == {
        "LEVEL": "high", "CORES": "2000", "HARD": "false", "WHERE": "/workspace",
    }  # fmt: skip
    other = with_values(
        spec, {"CORES": "500", "HARD": "true", "LEVEL": "1.26-x", "WHERE": "x: {y}"}
    )
    assert (other.limits.cpu_millicores, other.limits.disk_is_hard) == (500, True)
    assert other.variables["LEVEL"] == "is 1.26-x, 500 cores"
    assert other.tasks[0].run.endswith(' x: {y}"\n')
    assert with_values(spec, {}) == spec


def test_vars_are_refused_when_they_are_unknown_or_of_another_type() -> None:
    """In the file and on the command line, all at once."""
    text = WITH_VARS.replace("CORES: 2", "CORES: 20").replace("is {{vars.LEVEL", "is {{vars.LVL")
    assert [(p.line, p.key, p.message) for p in problems(text)] == [
        (
            5,
            "spec.runtime.envVars.0.value",
            "{{ vars.LVL }} is not among the template's vars; did you mean LEVEL?",
        )
    ]
    spec = parse_template(WITH_VARS.replace("CORES: 2", "CORES: 20"), "t.yaml")
    with pytest.raises(ConfigError) as raised:
        with_values(spec, {"CORES": "many", "HARD": "1", "LEVL": "x"})
    assert [p.key for p in raised.value.problems] == ["vars.CORES", "vars.HARD", "vars.LEVL"]
    assert raised.value.message.startswith("cannot give the template these values: vars.CORES: ")
    assert {p.file for p in raised.value.problems} == {None}
    with pytest.raises(ConfigError, match="has no vars"):
        with_values(TemplateSpec(), {"A": "1"})


def test_a_password_in_the_file_is_refused_and_not_told() -> None:
    """Whatever stands where the name of a secret should be."""
    for password in (
        "hunter2hunter2",
        "{value: hunter2hunter2}",
        "{fromSecret: 'hunter2 hunter2'}",
    ):
        text = (
            "spec: {repository: {url: 'https://h/x', authentication: {http: {username: u,"
            f" password: {password}}}}}}}}}"
        )
        told = " ".join(str(problem) for problem in problems(text))
        assert "password" in told
        assert "hunter2" not in told


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
        ("spec: {image: golang}", "write `image: host`"),
        ("spec: {image: {}}", "names no image"),
        ("spec: {image: {layout: {path: a}, archive: {path: b}}}", "exclude each other"),
        ("spec: {image: {registry: {url: 'docker://a/b'}}}", "write 'a/b'"),
        ("spec: {image: {registry: {url: '--help'}}}", "no reference of an image"),
        ("spec: {image: {registry: {}}}", "is missing"),
        ("spec: {image: {build: {containerfile: x}}}", "is missing"),
        ("spec: {repository: {url: 'https://h/x', target: /workspace/x}}", "for additional"),
        (
            "spec: {repository: {url: 'https://h/x', branch: --upload-pack=x}}",
            "no name of a branch",
        ),
        ("spec: {repository: {url: 'https://h/x', depth: 0}}", "must be from 1"),
        ("spec: {repository: {path: x, include_uncommitted: true, depth: 2}}", "excludes include"),
        ("spec: {repository: {path: x, authentication: {http: {}}}}", "applies to a url only"),
        (f"spec: {{repository: {{url: 'git://h/x', {LOGIN}}}}}", "https:// only"),
        ("spec: {additionalRepositories: [{url: 'https://h/x'}]}", "is missing"),
        ("spec: {additionalRepositories: [{path: x, target: /etc/x}]}", "below /workspace"),
        ("spec: {additionalRepositories: [{path: x, target: /workspace/repo/x}]}", "one another"),
        ("spec: {runtime: {envVars: [{key: A, fromSecret: abc}]}}", "every agent"),
        ("spec: {runtime: {tasks: [{name: a, run: x, runAsRoot: true}]}}", "image of its own"),
        ("spec: {runtime: {tasks: [{name: a, run: x, evaluations: true}]}}", "POST_START"),
        (
            "spec: {runtime: {tasks: [{name: a, run: x, type: PRE_STOP, background: true}]}}",
            "the stop waits",
        ),
        (f"spec: {{runtime: {{tasks: [{{{LATER}, type: POST_START}}]}}}}", "who could read it"),
        ("spec: {network: {build: allowlist}}", "names of the hosts"),
        ("spec: {network: {allow: [a.org]}}", "allowlist only"),
        ("spec: {network: {build: allowlist, allow: ['*']}}", "may have a *"),
        ("spec: {network: {workspace: gateway}}", "is for attempts"),
        ("spec: {limit: {storage: {hard: true, inodes: 100}}}", "needs megabytes"),
        ("spec: {limit: {storage: {}}}", "is missing"),
        ("spec: {vars: {A: [1]}}", "must be text"),
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


WORDS = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
LOGINS = st.builds(
    Credentials, username=WORDS, secret=st.from_regex(r"[a-z][a-z0-9.-]{2,20}", fullmatch=True)
)
REVISIONS = st.none() | st.from_regex(r"[a-z][a-z0-9]{0,5}(/[a-z0-9]{1,5})?", fullmatch=True)


@st.composite
def repositories(draw: st.DrawFn, target: str = "/workspace/repo") -> RepositorySource:
    """Draw any repository that a file can name."""
    if draw(st.booleans()):
        return RepositorySource(
            url=f"https://{draw(WORDS)}.example/{draw(WORDS)}",
            credentials=draw(st.none() | LOGINS),
            branch=draw(REVISIONS),
            checkout=draw(REVISIONS),
            depth=draw(st.none() | st.integers(1, 999)),
            submodules=draw(st.booleans()),
            target=target,
        )
    if draw(st.booleans()):
        return RepositorySource(path=f"/{draw(WORDS)}", include_uncommitted=True, target=target)
    return RepositorySource(
        path=f"/{draw(WORDS)}",
        branch=draw(REVISIONS),
        checkout=draw(REVISIONS),
        depth=draw(st.none() | st.integers(1, 999)),
        target=target,
    )


@st.composite
def task_lists(draw: st.DrawFn) -> tuple[TemplateTask, ...]:
    """Draw tasks of all kinds."""
    tasks = []
    for name in draw(st.lists(WORDS, unique=True, max_size=3)):
        kind = draw(st.sampled_from(TaskType))
        tasks.append(
            TemplateTask(
                name=name,
                run=draw(st.sampled_from(["true", 'echo "$X" ${Y} {{ .Z }}\n', "a: b # c"])),
                working_directory=draw(st.sampled_from(["/workspace", "/workspace/repo"])),
                on_failure=draw(st.sampled_from(OnFailure)),
                type=kind,
                run_as_root=draw(st.booleans()),
                background=kind is not TaskType.PRE_STOP and draw(st.booleans()),
                secrets=draw(
                    st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), WORDS, max_size=2)
                )
                if kind is TaskType.ON_CREATE
                else {},
                evaluations=kind is TaskType.POST_START and draw(st.booleans()),
            )
        )
    return tuple(tasks)


def written(source: RepositorySource) -> dict[str, object]:
    """Write a repository as a file has it."""
    found: dict[str, object] = {
        key: getattr(source, key)
        for key in ("path", "url", "branch", "checkout", "depth")
        if getattr(source, key) is not None
    }
    found |= {key: True for key in ("submodules", "include_uncommitted") if getattr(source, key)}
    if source.credentials is not None:
        password = {"fromSecret": source.credentials.secret}
        login = {"username": source.credentials.username, "password": password}
        found["authentication"] = {"http": login}
    if source.target != "/workspace/repo":
        found["target"] = source.target
    return found


@given(main=repositories(), other=repositories(target="/workspace/more/one"), tasks=task_lists())
def test_sources_and_tasks_come_back_when_written_as_yaml(
    main: RepositorySource, other: RepositorySource, tasks: tuple[TemplateTask, ...]
) -> None:
    """Every repository and task that the model can hold can be written, and is read as it was."""
    listed = [
        {
            "name": one.name, "run": one.run, "workingDir": one.working_directory,
            "onFailure": one.on_failure.value, "type": one.type.value,
            "runAsRoot": one.run_as_root, "background": one.background,
            "evaluations": one.evaluations,
            **({"secrets": [{"key": k, "fromSecret": v} for k, v in one.secrets.items()]}
               if one.secrets else {}),
        }
        for one in tasks
    ]  # fmt: skip
    spec = parse_template(
        pyyaml.safe_dump(
            {
                "spec": {
                    "image": {"registry": {"url": "golang:1"}},
                    "repository": written(main),
                    "additionalRepositories": [written(other)],
                    "runtime": {"tasks": listed},
                }
            }
        )
    )
    assert (spec.repository, spec.additional_repositories) == (main, (other,))
    assert spec.tasks == tasks


@given(
    text=st.text(max_size=80),
    value=st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20),
)
def test_a_value_adds_nothing_but_itself(text: str, value: str) -> None:
    """Whatever a variable holds, only the texts that use it change, and no key appears."""
    file = (
        "spec: {vars: {A: x}, runtime: {envVars: [{key: K, value: 'is {{ vars.A }}'},"
        " {key: L, value: same}]}}"
    )
    spec = with_values(parse_template(file, "t.yaml"), {"A": value})
    assert spec.variables == {"K": f"is {value}", "L": "same"}
    assert (
        text.replace("{{", "")
        == put_in(Node(value=text.replace("{{", ""), line=1), {"A": value}, Problems(None)).value
    )
