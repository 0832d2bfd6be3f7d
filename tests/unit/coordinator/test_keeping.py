"""What `gc` may take, by the journal alone: nothing that a person named or a run still needs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forkyard.coordinator.keeping import (
    KEPT_SECONDS,
    UNDO_SECONDS,
    Unneeded,
    automatic_name,
    is_automatic,
    unneeded,
)
from forkyard.model.application import Application, ApplicationState
from forkyard.model.ids import (
    new_application_id,
    new_attempt_id,
    new_candidate_id,
    new_run_id,
    new_snapshot_id,
    new_template_id,
)
from forkyard.model.run import (
    AgentSpec,
    Attempt,
    AttemptState,
    Run,
    RunLimits,
    RunState,
    Task,
    TaskProgress,
)
from forkyard.model.workspace import (
    RepositorySource,
    Snapshot,
    SnapshotState,
    Template,
    TemplateSpec,
    TemplateState,
    TemplateTask,
)
from forkyard.store.projections import State, fold

NOW = datetime(2030, 1, 31, tzinfo=UTC)
PATH = "/home/u/repo"
SPEC = TemplateSpec(repository=RepositorySource(path=PATH, include_uncommitted=True))


def ago(seconds: float) -> str:
    """Give a moment before now, as the journal writes it."""
    return (NOW - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


OLD = KEPT_SECONDS + 3600


def template(name: str, spec: TemplateSpec = SPEC) -> Template:
    """Make a template that was built long ago."""
    return Template(
        id=new_template_id(),
        name=name,
        spec=spec,
        state=TemplateState.READY,
        created_at=ago(2 * OLD),
    )


def snapshot(
    name: str, *, age: float = OLD, state: SnapshotState = SnapshotState.READY
) -> Snapshot:
    """Make a snapshot."""
    return Snapshot(id=new_snapshot_id(), name=name, state=state, created_at=ago(age))


def run_of(start: Snapshot, *, ended: float | None, cleanup: str = "done") -> tuple[Run, Attempt]:
    """Make a run with one attempt; ended so many seconds ago, or still going on."""
    agent = AgentSpec(name="a", driver="command", command="x")
    run = Run(
        id=new_run_id(),
        name="r",
        tasks=(Task(name="t", prompt="p", snapshot=start.id, agents=(agent,)),),
        progress=(TaskProgress(),),
        limits=RunLimits(),
        state=RunState.RUNNING if ended is None else RunState.FINISHED,
        created_at=ago(2 * OLD),
        ended_at=None if ended is None else ago(ended),
    )
    attempt = Attempt(
        id=new_attempt_id(),
        run=run.id,
        task=0,
        agent="a",
        number=1,
        epoch=1,
        state=AttemptState.FINISHED,
        created_at=ago(2 * OLD),
        cleanup=cleanup,
    )
    return run, attempt


def ask(state: State, older_than: float = KEPT_SECONDS) -> Unneeded:
    """Ask now."""
    return unneeded(state, NOW.isoformat(), older_than_seconds=older_than)


def test_the_snapshot_of_an_old_run_goes_with_its_template() -> None:
    """What was made by itself, for a run that ended long ago."""
    recipe = template(automatic_name("fix", PATH))
    taken = snapshot(f"{recipe.name}@1")
    sealed = replace(snapshot(taken.name), sealed_of=taken.id)
    found = ask(fold([recipe, taken, sealed, *run_of(taken, ended=OLD)]))
    assert (found.snapshots, found.templates) == ((taken,), (recipe,))


@pytest.mark.parametrize(
    ("ended", "cleanup"), [(None, "done"), (60.0, "done"), (OLD, "pending"), (OLD, "kept")]
)
def test_the_snapshot_stays_when_its_run_may_need_it(ended: float | None, cleanup: str) -> None:
    """Going on, over for a short time only, or with work that is not collected yet."""
    recipe = template(automatic_name("fix", PATH))
    taken = snapshot(f"{recipe.name}@1")
    found = ask(fold([recipe, taken, *run_of(taken, ended=ended, cleanup=cleanup)]))
    assert (found.snapshots, found.templates) == ((), ())


def test_the_snapshot_stays_when_one_of_two_runs_needs_it() -> None:
    """All of its runs must be over."""
    recipe = template(automatic_name("fix", PATH))
    taken = snapshot(f"{recipe.name}@1")
    runs = (*run_of(taken, ended=OLD), *run_of(taken, ended=None))
    assert ask(fold([recipe, taken, *runs])).snapshots == ()


def test_what_belongs_to_no_run_goes_after_a_day() -> None:
    """Whoever submits may still be taking in other repositories."""
    recipe = template(automatic_name("fix", PATH))
    fresh, stale = snapshot(f"{recipe.name}@1", age=7200), snapshot(f"{recipe.name}@2")
    state = fold([recipe, fresh, stale])
    assert ask(state, older_than=1).snapshots == (stale,)
    assert ask(state, older_than=1).templates == ()


NAMED = {
    "a person's name": template("mine"),
    "another path's digest": template(automatic_name("fix", "/elsewhere")),
    "it has a task": template(
        automatic_name("fix", PATH), replace(SPEC, tasks=(TemplateTask(name="t", run="x"),))
    ),
    "it has variables": template(automatic_name("fix", PATH), replace(SPEC, variables={"A": "1"})),
    "it is cloned": template("fix-1234abcd", TemplateSpec(repository=RepositorySource(url="u"))),
}


@pytest.mark.parametrize("recipe", NAMED.values(), ids=NAMED)
def test_what_a_person_made_stays_for_ever(recipe: Template) -> None:
    """Template, its snapshots, and those that a person took and named."""
    built = snapshot(f"{recipe.name}@1")
    own = snapshot(f"{automatic_name('fix', PATH)}-mine")
    runs = (*run_of(built, ended=OLD), *run_of(own, ended=OLD))
    assert not is_automatic(recipe)
    found = ask(fold([recipe, built, own, *runs]), older_than=0)
    assert (found.snapshots, found.templates) == ((), ())


def test_the_name_of_a_run_is_told_from_that_of_a_person() -> None:
    """By the folder's digest, and by a recipe that says nothing else."""
    assert is_automatic(template(automatic_name("x" * 90, PATH)))
    assert is_automatic(template(automatic_name("", PATH)))


def test_a_template_stays_while_it_is_built() -> None:
    """A run is about to start from it."""
    building = replace(template(automatic_name("a", PATH)), state=TemplateState.BUILDING)
    assert ask(fold([building]), older_than=0).templates == ()


def test_failed_snapshots_go_when_nobody_wonders_any_more() -> None:
    """Their rows say why; they hold nothing."""
    old = snapshot("x", state=SnapshotState.FAILED)
    new = snapshot("y", age=60, state=SnapshotState.FAILED)
    assert ask(fold([old, new])).snapshots == (old,)


def test_records_stay_while_they_can_be_gone_back() -> None:
    """The newest of each tree for ever, earlier ones for long, those of ways half gone always."""

    def applied(target: str, age: float, state: ApplicationState) -> Application:
        return Application(
            id=new_application_id(),
            candidate=new_candidate_id(),
            target=target,
            paths=("x",),
            state=state,
            created_at=ago(age),
        )

    ancient = 2 * UNDO_SECONDS
    first = applied("/a", ancient, ApplicationState.APPLIED)
    later = applied("/a", OLD, ApplicationState.APPLIED)
    newest = applied("/a", OLD, ApplicationState.APPLIED)
    only = applied("/b", ancient, ApplicationState.APPLIED)
    half = applied("/c", ancient, ApplicationState.WRITING)
    undone = applied("/d", OLD, ApplicationState.UNDONE)
    with_left = replace(applied("/d", OLD, ApplicationState.UNDONE), left=("x",))
    state = fold([first, later, newest, only, half, undone, with_left])
    assert ask(state).records == (first, undone)
    assert ask(state, older_than=0).records == (first, undone)
