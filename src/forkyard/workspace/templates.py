"""Templates: recipes whose build yields a snapshot.

A build makes a base layer (home, workspace, the repository), runs the ON_CREATE tasks in a
workspace above it, refreshes git's index there so that the first `git status` of every fork is
quick, and takes the snapshot. Whatever a build makes is named in the journal first; a build that
an earlier server left is failed as interrupted, and what it made is removed.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.base.masking import Masker
from forkyard.base.removal import remove_tree
from forkyard.errors import (
    ConfigError,
    ConflictError,
    ForkyardError,
    InternalError,
    NotFoundError,
    UserError,
    WorkspaceError,
)
from forkyard.model.execution import StopReason
from forkyard.model.ids import (
    LayerId,
    TemplateId,
    WorkspaceId,
    new_exec_id,
    new_layer_id,
    new_snapshot_id,
    new_template_id,
    new_workspace_id,
)
from forkyard.model.workspace import (
    REPOSITORY,
    WORKSPACE_ROOT,
    ImageKind,
    NetworkPolicy,
    OnFailure,
    RepositorySource,
    Snapshot,
    SnapshotState,
    TaskType,
    Template,
    TemplateSpec,
    TemplateState,
    TemplateTask,
    WorkspaceState,
)
from forkyard.store.journal import Change
from forkyard.workspace.base_layer import BaseLayers
from forkyard.workspace.build_log import BuildLog
from forkyard.workspace.build_steps import StepError, Word, step
from forkyard.workspace.images import Images
from forkyard.workspace.snapshots import Snapshots
from forkyard.workspace.workspaces import Origin

TASK_SECONDS = 4 * 3600.0
REFRESH_SECONDS = 1800.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,79}")
_REFRESH = "cd repo 2>/dev/null && [ -e .git ] && git update-index -q --refresh; true"
_INTERRUPTED = "interrupted: the server ended during the build"
_OPEN = (
    "network: open while the tasks run: the internet can be reached; this machine and private,"
    " link-local and metadata addresses cannot"
)


def _refuse_later(spec: TemplateSpec) -> None:
    """Refuse what the file may say and no build honours yet."""
    later = {
        "additionalRepositories": bool(spec.additional_repositories),
        "POST_START and PRE_STOP tasks": any(
            task.type is not TaskType.ON_CREATE for task in spec.tasks
        ),
        "tasks[].background": any(task.background for task in spec.tasks),
        "tasks[].secrets": any(task.secrets for task in spec.tasks),
        "network.build other than open": spec.network.build is not NetworkPolicy.OPEN,
        "authentication, branch, checkout, depth or submodules of a repository": (
            spec.repository is not None
            and spec.repository
            != RepositorySource(
                path=spec.repository.path,
                url=spec.repository.url,
                include_uncommitted=spec.repository.include_uncommitted,
            )
        ),
    }
    found = [what for what, is_asked in later.items() if is_asked]
    if found:
        raise UserError(f"cannot build it: not supported yet: {', '.join(found)}")


class Templates:
    """The templates of one state directory; the only one to change their rows."""

    def __init__(
        self,
        snapshots: Snapshots,
        clock: Clock,
        masker: Masker | None = None,
        images: Images | None = None,
    ) -> None:
        """Keep the collaborators; nothing is done yet."""
        self._masker = masker
        self._snapshots = snapshots
        self._workspaces = snapshots.workspaces
        self._journal = self._workspaces.journal
        self._layers = self._workspaces.layers
        self._layout = self._workspaces.layout
        self._clock = clock
        self._background = self._workspaces.background
        self._base_layers = BaseLayers(self._layout, self._layers)
        self._images = images or Images(self._journal, self._layout, self._layers, clock)
        self._changing = asyncio.Lock()

    def get(self, name: str) -> Template:
        """Give a template by name or id.

        Raises:
            NotFoundError: There is none, or it is deleted.
        """
        state = self._journal.state
        row = state.template_named(name) or state.templates.get(TemplateId(name))
        if row is None or row.state is TemplateState.DELETED:
            raise NotFoundError(
                f"cannot find template {name}: there is no such template",
                hint="List them with `forkyard template list`.",
            )
        return row

    def log(self, template: Template) -> Path:
        """Name the log of a template's last build."""
        return BuildLog(self._layout.build(template.id)).path

    async def apply(self, name: str, spec: TemplateSpec) -> Template:
        """Store a recipe under a name; a new one replaces the old, whose snapshot stays.

        Raises:
            ConfigError: The name cannot be one.
            ConflictError: It is being built.

        Durability:
            On disk when this returns.
        """
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"cannot apply template {name!r}: a name has 1 to 80 letters, digits and . _ / -,"
                " and starts with a letter or digit"
            )
        async with self._changing:
            old = self._journal.state.template_named(name)
            if old is None:
                row = Template(
                    id=new_template_id(),
                    name=name,
                    spec=spec,
                    state=TemplateState.APPLIED,
                    created_at=self._clock.now(),
                )
            else:
                self._refuse_while_building(old, "apply")
                if old.spec == spec:
                    return old
                row = replace(old, spec=spec, state=TemplateState.APPLIED, trouble=None)
            await self._journal.append(row, "applied", expect=old)
            return row

    async def build(self, name: str) -> Template:
        """Build a template; each build makes a new snapshot, named ``NAME@NUMBER``.

        Returns:
            The template, ready, with its new snapshot.

        Raises:
            NotFoundError: No such template.
            ConflictError: It is being built already.
            UserError: Its repository cannot be taken as asked.
            WorkspaceError: A step failed; the template says which, and nothing of it is left.

        Cancellation:
            The build goes on.
        """
        self.get(name)
        return await self._background.finish(self._build(name))

    async def _build(self, name: str) -> Template:
        async with self._changing:
            row = self.get(name)
            self._refuse_while_building(row, "build")
            layer = new_layer_id()
            pending = Snapshot(
                id=new_snapshot_id(),
                name=self._next_name(row),
                state=SnapshotState.PENDING,
                created_at=self._clock.now(),
                layers=(layer,),
                limits=row.spec.limits,
                workspace=new_workspace_id(),
            )
            building = replace(row, state=TemplateState.BUILDING, trouble=None)
            log = BuildLog(self._layout.build(row.id), self._masker)
            await asyncio.to_thread(log.begin, self._layout.trash)
            await self._journal.append_all(
                [
                    Change(entity=building, note="build", expect=row),
                    Change(entity=pending, note=f"build of {row.name}", expect=None),
                ]
            )
        failpoint("T01")
        log.say(f"building template {row.name} as snapshot {pending.name}")
        try:
            await self._steps(building, pending, layer, log)
        except StepError as failed:
            await self._fail(building, pending, f"{failed.word}: {failed.error.message}", log)
            raise failed.error from failed.error.__cause__
        except asyncio.CancelledError:
            await self._fail(building, pending, _INTERRUPTED, log)
            raise
        except BaseException as error:
            await self._fail(building, pending, str(error) or type(error).__name__, log)
            raise
        ready = replace(building, state=TemplateState.READY, snapshot=pending.id)
        await self._journal.append(ready, "built", expect=building)
        log.say(f"snapshot {pending.name} is ready")
        return ready

    async def _steps(
        self, template: Template, pending: Snapshot, layer: LayerId, log: BuildLog
    ) -> None:
        _refuse_later(template.spec)
        image, source = None, template.spec.image_source
        if source is not None:
            word: Word = "build" if source.kind is ImageKind.BUILD else "pull"
            image = await step(word, self._images.obtain(source, log.say))
            pending = replace(pending, layers=(layer, *image.layers))
            await self._journal.append(pending, f"on image {image.digest}")
        made = self._base_layers.make(template.spec, layer, log.say, image)
        environment = await step("clone", made)
        has_history = self._layers.lookup((layer,), f"{REPOSITORY}/.git") is not None
        tasks = template.spec.tasks
        pending = replace(pending, environment=environment)
        workspace = pending.workspace
        assert workspace is not None  # noqa: S101 - given by the caller
        await self._workspaces.add(
            Origin(
                snapshot=pending.id,
                layers=pending.layers,
                environment=environment,
                limits=template.spec.limits,
            ),
            display_name=f"build of {template.name}",
            ephemeral=True,
            network=NetworkPolicy.OPEN if tasks else NetworkPolicy.NONE,
            owner=template.id,
            workspace_id=workspace,
            beside=[Change(entity=pending, note="base layer made")],
        )
        failpoint("T02")
        if tasks or has_history:
            if tasks:
                log.say(_OPEN)
            await step("start", self._workspaces.start(workspace))
            for number, task in enumerate(tasks, start=1):
                await step("task", self._run_task(template.name, workspace, task, number, log))
            await step("task", self._refresh(workspace, log))
            await step("stop", self._workspaces.stop(workspace))
        await step("snapshot", self._snapshots.take(pending, workspace))
        await self._workspaces.delete(workspace)

    async def _run_task(
        self, name: str, workspace: WorkspaceId, task: TemplateTask, number: int, log: BuildLog
    ) -> None:
        log.say(f"task {task.name}: {task.run.strip()}")
        identity = new_exec_id()
        async with log.following(self._layout.exec(workspace, identity), f"task-{number}"):
            done = await self._workspaces.exec(
                workspace,
                ["/bin/sh", "-c", task.run],
                working_directory=task.working_directory,
                timeout_seconds=TASK_SECONDS,
                exec_id=identity,
                keep_background=False,
            )
        result = done.result
        if result is None:
            raise InternalError(f"cannot run task {task.name}: it ended without a result")
        if result.stop_reason is StopReason.EXITED:
            outcome = f"ended with status {result.exit_code}"
        else:
            outcome = f"{result.stop_reason}" + (f": {result.detail}" if result.detail else "")
        log.say(f"task {task.name} {outcome} after {result.elapsed_seconds:.1f} s")
        if result.stop_reason is StopReason.EXITED and result.exit_code == 0:
            return
        if task.on_failure is OnFailure.CONTINUE:
            log.say(f"the build goes on, as task {task.name} allows")
            return
        raise WorkspaceError(
            f"cannot build template {name}: task {task.name} {outcome}",
            hint=f"Read the build's log: `forkyard template show {name}`.",
        )

    async def _refresh(self, workspace: WorkspaceId, log: BuildLog) -> None:
        done = await self._workspaces.exec(
            workspace,
            ["/bin/sh", "-c", _REFRESH],
            working_directory=WORKSPACE_ROOT,
            timeout_seconds=REFRESH_SECONDS,
            keep_background=False,
        )
        if done.result is None or done.result.exit_code != 0:
            log.say("git's index could not be refreshed; the first `git status` will be slow")

    async def _fail(
        self, building: Template, pending: Snapshot, trouble: str, log: BuildLog
    ) -> None:
        log.say(f"failed: {trouble}")
        with suppress(ForkyardError):
            await self._clean(building.id)
        await self._snapshots.fail(pending.id, trouble)
        failed = replace(building, state=TemplateState.FAILED, trouble=trouble)
        await self._journal.append(failed, trouble, expect=building)

    async def _clean(self, template: TemplateId) -> None:
        for workspace in list(self._journal.state.workspaces.values()):
            if workspace.owner == template and workspace.state is not WorkspaceState.DELETED:
                await self._workspaces.delete(workspace.id)

    async def delete(self, name: str) -> None:
        """Delete a template, its log, and its snapshot unless something stands on it.

        Raises:
            NotFoundError: No such template.
            ConflictError: It is being built.
        """
        async with self._changing:
            row = self.get(name)
            self._refuse_while_building(row, "delete")
            await self._journal.append(
                replace(row, state=TemplateState.DELETED), "deleted", expect=row
            )
        await asyncio.to_thread(remove_tree, self._layout.build(row.id), self._layout.trash)
        if row.snapshot is not None:
            with suppress(ConflictError, NotFoundError):
                await self._snapshots.delete(row.snapshot)

    async def recover(self) -> None:
        """Fail every build that an earlier server left; a second time changes nothing.

        Call it after `Workspaces.recover` and `Snapshots.recover`.
        """
        await self._images.recover()
        for row in list(self._journal.state.templates.values()):
            if row.state is TemplateState.BUILDING:
                await self._clean(row.id)
                failed = replace(row, state=TemplateState.FAILED, trouble=_INTERRUPTED)
                await self._journal.append(failed, _INTERRUPTED, expect=row)

    def _next_name(self, template: Template) -> str:
        names = {snapshot.name for snapshot in self._journal.state.snapshots.values()}
        number = 1
        while f"{template.name}@{number}" in names:
            number += 1
        return f"{template.name}@{number}"

    @staticmethod
    def _refuse_while_building(row: Template, verb: str) -> None:
        if row.state is TemplateState.BUILDING:
            raise ConflictError(
                f"cannot {verb} template {row.name}: it is being built",
                hint=f"Wait for it: `forkyard template show {row.name}`.",
            )
