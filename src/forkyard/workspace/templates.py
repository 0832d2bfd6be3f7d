"""Templates: recipes whose build yields a snapshot.

A build makes a base layer (home, workspace, the repository), runs the ON_CREATE tasks in a
workspace above it, refreshes git's index there so that the first `git status` of every fork is
quick, and takes the snapshot. Whatever a build makes is named in the journal first; a build that
an earlier server left is failed as interrupted, and what it made is removed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
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
    NotFoundError,
)
from forkyard.model.ids import (
    LayerId,
    TemplateId,
    WorkspaceId,
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
    Snapshot,
    SnapshotState,
    TaskType,
    Template,
    TemplateSpec,
    TemplateState,
    WorkspaceState,
)
from forkyard.store.journal import Change
from forkyard.wire.templatefile import with_values
from forkyard.workspace.base_layer import BaseLayers
from forkyard.workspace.build_log import BuildLog
from forkyard.workspace.build_steps import StepError, Word, step
from forkyard.workspace.build_tasks import BuildTasks
from forkyard.workspace.egress import connection_lines
from forkyard.workspace.images import Building, Images
from forkyard.workspace.recipes import (
    has_build_tasks,
    network_words,
    notes,
    recipe_digest,
    refuse_missing_secrets,
)
from forkyard.workspace.snapshots import Snapshots
from forkyard.workspace.workspaces import Origin

REFRESH_SECONDS = 1800.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,79}")
_REFRESH = "cd repo 2>/dev/null && [ -e .git ] && git update-index -q --refresh; true"
_INTERRUPTED = "interrupted: the server ended during the build"
Secret = Callable[[str], str | None]


class Templates:
    """The templates of one state directory; the only one to change their rows."""

    def __init__(
        self,
        snapshots: Snapshots,
        clock: Clock,
        masker: Masker | None = None,
        images: Images | None = None,
        *,
        secret: Secret = lambda _: None,
    ) -> None:
        """Keep the collaborators; nothing is done yet.

        Args:
            snapshots: Where builds end.
            clock: For the rows.
            masker: Knows every secret that a log could tell.
            images: Where images other than `host` come from.
            secret: Gives a secret's value; None where it is not set.
        """
        self._masker = masker
        self._secret = secret
        self._snapshots = snapshots
        self._workspaces = snapshots.workspaces
        self._journal = self._workspaces.journal
        self._layers = self._workspaces.layers
        self._layout = self._workspaces.layout
        self._clock = clock
        self._background = self._workspaces.background
        self._base_layers = BaseLayers(self._layout, self._layers, secret)
        self._images = images or Images(self._workspaces, clock)
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
                if recipe_digest(old.spec) == recipe_digest(spec):
                    row = replace(old, spec=spec)
                    await self._journal.append(row, "applied", expect=old)
                    return row
                row = replace(
                    old, spec=spec, state=TemplateState.APPLIED, trouble=None, failure=None
                )
            await self._journal.append(row, "applied", expect=old)
            return row

    def built(self, name: str, values: Mapping[str, str]) -> Snapshot | None:
        """Give the newest ready snapshot that a build with these values made.

        Raises:
            NotFoundError: No such template.
            ConfigError: It has no such `vars`, or what comes of them is wrong.
        """
        row = self.get(name)
        digest = recipe_digest(with_values(row.spec, values))
        found = [
            one
            for one in self._journal.state.snapshots.values()
            if one.template == row.id
            and one.recipe == digest
            and one.state is SnapshotState.READY
            and one.sealed_of is None
        ]
        return found[-1] if found else None

    async def build(self, name: str, values: Mapping[str, str] | None = None) -> Template:
        """Build a template; each build makes a new snapshot, named ``NAME@NUMBER``.

        Args:
            name: Which.
            values: Of its `vars`, in place of the defaults; the template's own snapshot stays
                that of the defaults then.

        Returns:
            The template, with the new snapshot as its last build.

        Raises:
            NotFoundError: No such template.
            ConflictError: It is being built already.
            ConfigError: Secrets are missing, or the values are wrong: all at once.
            UserError: Its repository cannot be taken as asked.
            WorkspaceError: A step failed; the template says which, and nothing of it is left.

        Cancellation:
            The build goes on.
        """
        spec = with_values(self.get(name).spec, values or {})
        refuse_missing_secrets(name, spec, self._secret)
        return await self._background.finish(self._build(name, values or {}))

    async def _build(self, name: str, values: Mapping[str, str]) -> Template:
        async with self._changing:
            row = self.get(name)
            self._refuse_while_building(row, "build")
            spec = with_values(row.spec, values)
            layer = new_layer_id()
            pending = Snapshot(
                id=new_snapshot_id(),
                name=self._next_name(row),
                state=SnapshotState.PENDING,
                created_at=self._clock.now(),
                layers=(layer,),
                limits=spec.limits,
                workspace=new_workspace_id(),
                template=row.id,
                parameters=spec.parameters,
                recipe=recipe_digest(spec),
            )
            building = replace(row, state=TemplateState.BUILDING, trouble=None, failure=None)
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
        for value in sorted(spec.parameters):
            log.say(f"vars.{value} is {spec.parameters[value]!r}")
        for note in notes(spec):
            log.say(note)
        try:
            await self._steps(building, spec, pending, layer, log)
        except StepError as failed:
            trouble = f"{failed.failure.word}: {failed.error.message}"
            await self._fail(building, pending, trouble, log, failed)
            raise failed.error from failed.error.__cause__
        except asyncio.CancelledError:
            await self._fail(building, pending, _INTERRUPTED, log)
            raise
        except BaseException as error:
            await self._fail(building, pending, str(error) or type(error).__name__, log)
            raise
        ready = replace(building, last_build=pending.id)
        if spec == row.spec:
            ready = replace(ready, state=TemplateState.READY, snapshot=pending.id)
        else:  # of other values: the template itself is as it was
            before = (
                TemplateState.READY if row.state is TemplateState.READY else TemplateState.APPLIED
            )
            ready = replace(ready, state=before)
        await self._journal.append(ready, "built", expect=building)
        log.say(f"snapshot {pending.name} is ready")
        return ready

    async def _steps(
        self,
        template: Template,
        spec: TemplateSpec,
        pending: Snapshot,
        layer: LayerId,
        log: BuildLog,
    ) -> None:
        image, source = None, spec.image_source
        if source is not None:
            word: Word = "build" if source.kind is ImageKind.BUILD else "pull"
            building = Building(
                owner=template.id,
                snapshot=pending.id,
                network=spec.network.build,
                limits=spec.limits,
            )
            image = await step(word, self._images.obtain(source, log.say, building))
            pending = replace(pending, layers=(layer, *image.layers))
            await self._journal.append(pending, f"on image {image.digest}")
        made = self._base_layers.make(spec, layer, log.say, image)
        environment = await step("clone", made)
        has_history = self._layers.lookup((layer,), f"{REPOSITORY}/.git") is not None
        has_tasks = has_build_tasks(spec)
        later = tuple(task for task in spec.tasks if task.type is not TaskType.ON_CREATE)
        network = spec.network.build if has_tasks else NetworkPolicy.NONE
        pending = replace(
            pending, environment=replace(environment, tasks=later, network=spec.network)
        )
        workspace = pending.workspace
        assert workspace is not None  # noqa: S101 - given by the caller
        await self._workspaces.add(
            Origin(
                snapshot=pending.id,
                layers=pending.layers,
                environment=environment,
                limits=spec.limits,
            ),
            display_name=f"build of {template.name}",
            ephemeral=True,
            network=network,
            allow=spec.network.allow if network is NetworkPolicy.ALLOWLIST else (),
            owner=template.id,
            workspace_id=workspace,
            beside=[Change(entity=pending, note="base layer made")],
        )
        failpoint("T02")
        if has_tasks or has_history:
            if has_tasks:
                log.say(network_words(spec))
            await step("start", self._workspaces.start(workspace))
            tasks = BuildTasks(
                template=template.name,
                workspace=workspace,
                workspaces=self._workspaces,
                layout=self._layout,
                log=log,
                clock=self._clock,
                secret=lambda name: self._secret(name) or "",
            )
            await step("task", tasks.run(spec.tasks))
            await step("task", self._refresh(workspace, log))
            await step("stop", self._workspaces.stop(workspace))
            if network is NetworkPolicy.ALLOWLIST:
                reached = await self._workspaces.egress.connections(workspace, is_over=True)
                for line in connection_lines(reached):
                    log.say(line)
            await step("task", tasks.refuse_kept_secrets(spec.tasks))
        await step("snapshot", self._snapshots.take(pending, workspace))
        await self._workspaces.delete(workspace)

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
        self,
        building: Template,
        pending: Snapshot,
        trouble: str,
        log: BuildLog,
        failed: StepError | None = None,
    ) -> None:
        log.say(f"failed: {trouble}")
        hint = None if failed is None else failed.error.hint
        if hint and "--log" not in hint:  # this is the log
            log.say(f"hint: {hint}")
        with suppress(ForkyardError):
            await self._clean(building.id)
        await self._snapshots.fail(pending.id, trouble)
        row = replace(
            building,
            state=TemplateState.FAILED,
            trouble=trouble,
            failure=None if failed is None else failed.failure,
        )
        await self._journal.append(row, trouble, expect=building)

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
