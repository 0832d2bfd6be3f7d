"""Tasks of a build: secrets, background, records; and builds by values of vars."""

from __future__ import annotations

import asyncio

import pytest

from fakes.storage import Storage
from forkyard.errors import ConfigError, WorkspaceError
from forkyard.model.workspace import (
    BuildFailure,
    Limits,
    NetworkPlan,
    NetworkPolicy,
    TaskType,
    TemplateSpec,
    TemplateState,
    TemplateTask,
)
from forkyard.wire.templatefile import parse_template
from forkyard.workspace.task_records import read_records
from forkyard.workspace.templates import Templates

pytestmark = pytest.mark.anyio

VALUE = "the-value-of-the-secret"


def knowing(storage: Storage, **secrets: str) -> Templates:
    """Give templates that know secrets."""
    return Templates(storage.snapshots, storage.templates._clock, secret=secrets.get)


async def test_a_secret_is_in_its_own_task_only(storage: Storage) -> None:
    """Neither the journal nor another task has it."""
    templates = knowing(storage, token=VALUE)
    with_secret = TemplateTask(name="get", run="fetch", secrets={"TOKEN": "token"})
    await templates.apply("t", TemplateSpec(tasks=(with_secret, TemplateTask(name="b", run="b"))))
    built = await templates.build("t")
    first, second = storage.fleet.executed[:2]
    assert first.variables["TOKEN"] == VALUE
    assert "TOKEN" not in second.variables
    assert VALUE not in repr(storage.journal.state)
    assert built.snapshot is not None
    assert "TOKEN" not in storage.journal.state.snapshots[built.snapshot].environment.variables


async def test_every_missing_secret_is_told_before_a_build_begins(storage: Storage) -> None:
    """With the command that sets each; nothing was made."""
    spec = parse_template(
        "spec: {repository: {url: 'https://h/x', authentication: {http: {username: u, password:"
        " {fromSecret: git.read}}}}, runtime: {tasks: [{name: a, run: b, secrets: [{key: A,"
        " fromSecret: npm}, {key: B, fromSecret: there}]}]}}"
    )
    templates = knowing(storage, there=VALUE)
    row = await templates.apply("t", spec)
    with pytest.raises(ConfigError) as raised:
        await templates.build("t")
    assert [problem.key for problem in raised.value.problems] == [
        "spec.repository.authentication",
        "spec.runtime.tasks.a.secrets",
    ]
    assert "`forkyard secret set git.read`, `forkyard secret set npm`" in (raised.value.hint or "")
    assert templates.get("t") == row


async def test_a_background_task_ends_with_the_build(storage: Storage) -> None:
    """The next task does not wait for it; it has a record and a log of its own."""
    storage.fleet.script("serve", held=asyncio.Event(), stdout=b"listening\n")
    tasks = (
        TemplateTask(name="db", run="serve", background=True),
        TemplateTask(name="use", run="use it"),
        TemplateTask(name="later", run="never here", type=TaskType.POST_START),
    )
    await storage.templates.apply("t", TemplateSpec(tasks=tasks))
    async with asyncio.timeout(10):
        built = await storage.templates.build("t")
    folder = storage.templates.log(built).parent
    assert [(one.name, one.outcome, one.is_ok) for one in read_records(folder)] == [
        ("db", "was ended with the phase", True),
        ("use", "ended with status 0", True),
    ]
    assert (folder / "task-1.stdout").read_bytes() == b"listening\n"
    assert "never here" not in [spec.argv[-1] for spec in storage.fleet.executed]
    assert built.snapshot is not None
    environment = storage.journal.state.snapshots[built.snapshot].environment
    assert environment.tasks == tasks[2:]


async def test_a_failure_says_its_word_its_task_and_the_end_of_its_output(
    storage: Storage,
) -> None:
    """As the seed names what can fail; a new recipe forgets it."""
    storage.fleet.script("make deps", exit_code=2, stdout=b"one\nno such target\n")
    await storage.templates.apply(
        "t", TemplateSpec(tasks=(TemplateTask(name="deps", run="make deps"),))
    )
    with pytest.raises(WorkspaceError, match="task deps ended with status 2"):
        await storage.templates.build("t")
    failed = storage.templates.get("t")
    assert failed.failure == BuildFailure(word="task", task="deps", tail="one\nno such target")
    (record,) = read_records(storage.templates.log(failed).parent)
    assert (record.exit_code, record.is_ok) == (2, False)
    storage.fleet.start_errors.append(WorkspaceError("cannot start it: no room"))
    with pytest.raises(WorkspaceError, match="no room"):
        await storage.templates.build("t")
    assert storage.templates.get("t").failure == BuildFailure(word="start")
    assert (await storage.templates.apply("t", TemplateSpec())).failure is None


WITH_VARS = """\
spec:
  vars: {LEVEL: high}
  runtime:
    tasks: [{name: a, run: "echo {{ vars.LEVEL }}"}]
"""


async def test_other_values_are_another_snapshot(storage: Storage) -> None:
    """Found again by what they put in; the template's own snapshot stays that of the defaults."""
    await storage.templates.apply("t", parse_template(WITH_VARS, "t.yaml"))
    low = await storage.templates.build("t", {"LEVEL": "low"})
    assert (low.state, low.snapshot) == (TemplateState.APPLIED, None)
    built = await storage.templates.build("t")
    assert built.state is TemplateState.READY
    assert built.snapshot == built.last_build != low.last_build
    found = storage.templates.built("t", {"LEVEL": "low"})
    assert found is not None
    assert (found.id, found.parameters) == (low.last_build, {"LEVEL": "low"})
    default = storage.templates.built("t", {"LEVEL": "high"})
    assert default is not None
    assert default.id == built.snapshot
    assert storage.templates.built("t", {"LEVEL": "other"}) is None
    again = await storage.templates.build("t", {"LEVEL": "other"})
    assert (again.state, again.snapshot) == (TemplateState.READY, built.snapshot)
    ran = [spec.argv[-1] for spec in storage.fleet.executed if "echo" in spec.argv[-1]]
    assert ran == ["echo low", "echo high", "echo other"]
    with pytest.raises(ConfigError, match="no variable"):
        await storage.templates.build("t", {"LVL": "x"})


async def test_a_comment_changes_nothing_when_a_file_is_applied_again(storage: Storage) -> None:
    """What counts is what a build would do."""
    await storage.templates.apply("t", parse_template(WITH_VARS, "t.yaml"))
    built = await storage.templates.build("t")
    again = await storage.templates.apply("t", parse_template(f"# note\n{WITH_VARS}", "t.yaml"))
    assert (again.state, again.snapshot) == (TemplateState.READY, built.snapshot)


async def test_the_phases_network_is_what_the_file_says(storage: Storage) -> None:
    """None is none, and said."""
    spec = TemplateSpec(
        tasks=(TemplateTask(name="a", run="b"),),
        network=NetworkPlan(build=NetworkPolicy.NONE),
        limits=Limits(cpu_millicores=1_000_000),
    )
    await storage.templates.apply("t", spec)
    built = await storage.templates.build("t")
    assert [one.network for one in storage.fleet.started] == [NetworkPolicy.NONE]
    log = storage.templates.log(built).read_text()
    assert "network: none while the tasks run" in log
    assert "limit.cpu is 1000 cores and this machine has" in log
