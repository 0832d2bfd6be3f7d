"""Tasks of all kinds in real sandboxes, and a template whose secrets are nowhere afterwards."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.base.masking import Masker
from forkyard.errors import WorkspaceError
from forkyard.model.workspace import (
    Credentials,
    NetworkPlan,
    NetworkPolicy,
    RepositorySource,
    TaskType,
    TemplateSpec,
    TemplateState,
    TemplateTask,
    WorkspaceState,
)
from forkyard.workspace.task_records import read_records
from forkyard.workspace.templates import Templates
from git_server import GitServer
from station import Station, git, make_repository, station

pytestmark = pytest.mark.anyio

TOKEN = "npm-token-0123456789-canary"  # noqa: S105 - the canary
PASSWORD = "git-password-0123456789-canary"  # noqa: S105 - the canary
SECRETS = {"npm.token": TOKEN, "git-read.payments.cordium": PASSWORD}
FORMS = (
    TOKEN.encode(),
    PASSWORD.encode(),
    base64.b64encode(f"reader:{PASSWORD}".encode()),
)
CLOSED = NetworkPlan(build=NetworkPolicy.NONE)


@pytest.fixture
async def here(home: Path) -> AsyncIterator[Station]:
    """Give the services over an empty state directory; its templates know secrets."""
    async with station(home) as opened:
        opened.templates = Templates(
            opened.snapshots, SystemClock(), Masker(SECRETS), secret=SECRETS.get
        )
        yield opened


def holders(root: Path) -> list[str]:
    """List the files below a folder that hold a secret in any of its forms."""
    found = []
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if any(form in content for form in FORMS):
                found.append(str(path.relative_to(root)))
    return found


def in_processes() -> list[str]:
    """List processes that show a secret in arguments or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                content = (folder / name).read_bytes()
            except OSError:
                continue
            if any(form in content for form in FORMS):
                found.append(f"{folder}/{name}")
    return found


async def test_no_secret_is_left_anywhere_when_a_private_template_was_built(
    here: Station, tmp_path: Path
) -> None:
    """Layers, journal, logs, processes; the task had its token, and the server its password."""
    server = GitServer(tmp_path / "served", {"private": ("reader", PASSWORD)})
    try:
        source = make_repository(tmp_path / "src")
        url = server.publish(source, "private.git")
        spec = TemplateSpec(
            repository=RepositorySource(
                url=url,
                credentials=Credentials(username="reader", secret="git-read.payments.cordium"),  # noqa: S106 - its name
            ),
            tasks=(
                TemplateTask(
                    name="deps",
                    run='echo "have $TOKEN" ${#TOKEN}; echo "$TOKEN" | wc -c > /workspace/size',
                    secrets={"TOKEN": "npm.token"},
                ),
                TemplateTask(name="after", run='echo "then ${TOKEN:-nothing}"'),
            ),
            network=CLOSED,
        )
        await here.templates.apply("t", spec)
        built = await here.templates.build("t")
    finally:
        server.close()
    log = here.templates.log(built).read_text()
    assert f"have [secret npm.token] {len(TOKEN)}" in log
    assert "then nothing" in log
    assert "with secret git-read.payments.cordium" in log
    assert built.snapshot is not None
    fork = await here.workspaces.create(built.snapshot)
    said = await here.run(fork.id, "cat ../size; git rev-parse HEAD; env; git config --list")
    assert said.split()[:2] == [str(len(TOKEN) + 1), git(source, "rev-parse", "HEAD")]
    assert holders(here.layout.home) == []
    assert in_processes() == []
    (here.layout.home / "detector").write_bytes(FORMS[2])
    assert holders(here.layout.home) == ["detector"]
    await here.workspaces.delete(fork.id)


@pytest.mark.parametrize(
    "command",
    [
        'echo "//registry/:_authToken=$TOKEN" > ~/.npmrc',
        'printf %s "$TOKEN" | base64 > /workspace/coded',
        'ln -s "$TOKEN" /workspace/link',
        'mkdir -p "/workspace/a/$TOKEN"',
    ],
)
async def test_a_build_fails_when_a_task_leaves_its_secret_behind(
    here: Station, command: str
) -> None:
    """In a file, coded, in a link or a name; nothing of the build stays."""
    task = TemplateTask(name="deps", run=command, secrets={"TOKEN": "npm.token"})
    await here.templates.apply("t", TemplateSpec(tasks=(task,), network=CLOSED))
    with pytest.raises(WorkspaceError, match=r"task deps left secret npm\.token in /"):
        await here.templates.build("t")
    failed = here.templates.get("t")
    assert failed.failure is not None
    assert (failed.failure.word, failed.failure.task) == ("task", "deps")
    assert holders(here.layout.home) == []
    assert here.left()["layers"] == []


async def test_tasks_of_a_life_run_when_a_workspace_starts_and_stops(here: Station) -> None:
    """A service is there before the first command and after each start; the stop flushes."""
    spec = TemplateSpec(
        tasks=(
            TemplateTask(
                name="helper", run="echo up > /workspace/up; exec sleep 600", background=True
            ),
            TemplateTask(
                name="wait", run="until [ -e /workspace/up ]; do sleep 0.05; done; rm /workspace/up"
            ),
            TemplateTask(
                name="serve",
                run="echo $$ > /workspace/pid; exec sleep 600",
                type=TaskType.POST_START,
                background=True,
            ),
            TemplateTask(
                name="ready",
                run="until [ -s /workspace/pid ]; do sleep 0.05; done; echo . >> /workspace/starts",
                type=TaskType.POST_START,
            ),
            TemplateTask(
                name="flush",
                run="rm /workspace/pid; echo . >> /workspace/stops",
                type=TaskType.PRE_STOP,
            ),
        ),
        network=CLOSED,
    )
    await here.templates.apply("t", spec)
    built = await here.templates.build("t")
    records = read_records(here.templates.log(built).parent)
    assert [(one.name, one.outcome) for one in records] == [
        ("helper", "was ended with the phase"),
        ("wait", "ended with status 0"),
    ]
    assert built.snapshot is not None
    fork = await here.workspaces.create(built.snapshot)
    for number in (1, 2):
        said = await here.run(
            fork.id,
            "wc -l < starts; kill -0 $(cat pid) && echo alive; cat stops 2>/dev/null | wc -l",
            directory="/workspace",
        )
        assert said.split() == [str(number), "alive", str(number - 1)]
        await here.workspaces.stop(fork.id)
    rows = [row for row in here.journal.state.execs.values() if row.workspace == fork.id]
    assert [row.spec.task for row in rows if row.spec.task] == [
        "POST_START serve", "POST_START ready", "PRE_STOP flush",
    ] * 2  # fmt: skip
    judge = await here.workspaces.create(built.snapshot, is_evaluation=True)
    assert await here.run(judge.id, "ls", directory="/workspace") == ""
    for one in (fork, judge):
        await here.workspaces.delete(one.id)


async def test_a_start_fails_when_its_task_fails(here: Station) -> None:
    """The workspace is stopped and says which task; its files stay."""
    task = TemplateTask(name="bad", run="echo why >&2; exit 4", type=TaskType.POST_START)
    await here.templates.apply("t", TemplateSpec(tasks=(task,), network=CLOSED))
    built = await here.templates.build("t")
    assert built.snapshot is not None
    fork = await here.workspaces.create(built.snapshot)
    with pytest.raises(WorkspaceError, match="task bad ended with status 4"):
        await here.shell(fork.id, "true", directory="/workspace")
    row = here.workspaces.get(fork.id)
    assert (row.state, row.trouble) == (
        WorkspaceState.STOPPED, "task: task bad ended with status 4",
    )  # fmt: skip
    await here.workspaces.delete(fork.id)


async def test_further_repositories_lie_where_they_are_wanted(
    here: Station, tmp_path: Path
) -> None:
    """As the user's, each with its own history."""
    main, docs = make_repository(tmp_path / "main"), make_repository(tmp_path / "docs")
    git(docs, "branch", "side", "HEAD~1")
    spec = TemplateSpec(
        repository=RepositorySource(path=str(main)),
        additional_repositories=(
            RepositorySource(path=str(docs), branch="side", target="/workspace/more/docs"),
        ),
    )
    await here.templates.apply("t", spec)
    built = await here.templates.build("t")
    assert built.snapshot is not None
    snapshot = here.journal.state.snapshots[built.snapshot]
    assert snapshot.base is not None
    assert snapshot.base.commit == git(main, "rev-parse", "HEAD")
    fork = await here.workspaces.create(snapshot.id)
    said = await here.run(
        fork.id,
        "git rev-parse HEAD; git status --short; touch ../x; stat -c %U .. .; echo > new",
        directory="/workspace/more/docs",
    )
    assert said.split() == [git(docs, "rev-parse", "HEAD~1"), "workspace", "workspace"]
    await here.workspaces.delete(fork.id)


async def test_a_failed_clone_is_told_by_its_word(here: Station, tmp_path: Path) -> None:
    """As the seed names what can fail."""
    server = GitServer(tmp_path / "served", {"private": ("reader", "another")})
    try:
        url = server.publish(make_repository(tmp_path / "src"), "private.git")
        await here.templates.apply(
            "t",
            TemplateSpec(
                repository=RepositorySource(
                    url=url,
                    credentials=Credentials(username="reader", secret="npm.token"),  # noqa: S106 - its name
                )
            ),
        )
        with pytest.raises(WorkspaceError, match="Authentication failed"):
            await here.templates.build("t")
    finally:
        server.close()
    failed = here.templates.get("t")
    assert failed.state is TemplateState.FAILED
    assert failed.failure is not None
    assert failed.failure.word == "clone"
    assert holders(here.layout.home) == []
    assert holders(Path(tempfile.gettempdir()) / "forkyard-none") == []
