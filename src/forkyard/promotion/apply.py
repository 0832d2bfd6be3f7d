"""`apply`: a candidate's bytes in a working tree, compared first, journalled, with a way back.

Order: the record (both contents of every path) is written and synced in our own folder; every
touched path is compared with the recorded base; the journal says `writing`; the bytes change; the
journal says `applied`. So whoever finds `writing` at a start knows that a crash came between and
that everything needed to go back lies in the record. No git runs in that tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.config import Layout
from forkyard.errors import ConflictError, ForkyardError, NotFoundError, WorkspaceError
from forkyard.model.application import Application, ApplicationState
from forkyard.model.candidate import Candidate
from forkyard.model.ids import (
    ApplicationId,
    CandidateId,
    WorkspaceId,
    new_application_id,
)
from forkyard.model.workspace import REPOSITORY, Workspace, WorkspaceState
from forkyard.promotion.action import Action
from forkyard.promotion.plan import plan_of
from forkyard.promotion.record import Record
from forkyard.promotion.refusals import named, refuse_differences, refuse_unfinished
from forkyard.promotion.targets import HostTree, StoppedWorkspace, Target
from forkyard.store.journal import Journal

_T = TypeVar("_T")


class Contents(Protocol):
    """Reads contents out of the store of candidate trees."""

    async def read(self, blobs: Sequence[str]) -> dict[str, bytes]:
        """Give the bytes of blobs (a link's text for links)."""
        ...


class WorkspaceHolder(Protocol):
    """Keeps a workspace from being started or deleted while its files are written."""

    def held(self, workspace: WorkspaceId) -> AbstractAsyncContextManager[Workspace]:
        """Hold it; NotFoundError where there is none."""
        ...


class Applications:
    """Puts candidates into trees, and takes them back."""

    def __init__(
        self,
        *,
        journal: Journal,
        contents: Contents,
        workspaces: WorkspaceHolder,
        layout: Layout,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._contents = contents
        self._workspaces = workspaces
        self._layout = layout
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._going_on: set[asyncio.Task[object]] = set()

    async def apply_to_tree(self, candidate: CandidateId, target: Path) -> Application:
        """Put a candidate's bytes into a folder of the host.

        Args:
            candidate: Must be complete.
            target: The repository's root. What is in it apart from the touched paths is not read.

        Returns:
            The application, in state `applied`.

        Raises:
            NotFoundError: No such candidate or folder.
            ConflictError: The candidate is not complete, or a touched path is not as the recorded
                base has it; nothing was touched.
            WorkspaceError: Writing did not work (full disk, rights); the way back was taken.

        Cancellation:
            Once the writing has begun it goes on to its end, `applied` or taken back.

        Durability:
            Bytes and journal are on disk when this returns; killed before, the next start of the
            server takes the way back.
        """
        return await self._to_its_end(lambda: self._apply(candidate, str(target), HostTree(target)))

    async def apply_to_workspace(
        self, candidate: CandidateId, workspace: WorkspaceId
    ) -> Application:
        """Put a candidate's bytes into a stopped workspace; otherwise as `apply_to_tree`.

        The workspace is held meanwhile: nobody starts, stops or deletes it.
        """
        return await self._to_its_end(lambda: self._apply_to(candidate, workspace))

    async def undo(self, application: ApplicationId, *, is_dry: bool = False) -> Application:
        """Take an application back: every path, or none.

        Args:
            application: Must be applied; an unfinished way back is gone to its end.
            is_dry: Compare only, and say what would refuse.

        Returns:
            The application, in state `undone`; `left` names what was edited while it was taken
            back. With `is_dry`, as it is.

        Raises:
            NotFoundError: No such application, or its workspace or folder is gone.
            ConflictError: It is not applied (any more), or a path was edited since; nothing was
                touched.
            WorkspaceError: Going back did not work; undoing again, or the next start, goes on.

        Cancellation and Durability are those of `apply_to_tree`.
        """
        return await self._to_its_end(lambda: self._undo(application, is_dry=is_dry))

    async def recover(self) -> tuple[Application, ...]:
        """Take the way back of every application found in `writing`; remove records of none.

        For the server's start. What cannot be reached now (its file system is not mounted) stays
        in `writing` for the next start.

        Returns:
            What was taken back.
        """
        known = self._journal.state.applications
        for folder in self._records().glob("app_*"):
            if folder.name not in known:
                await asyncio.to_thread(shutil.rmtree, folder)
        done = []
        for application in tuple(known.values()):
            if application.state is ApplicationState.WRITING:
                with contextlib.suppress(ForkyardError):
                    done.append(await self._recover(application))
        return tuple(done)

    async def _recover(self, application: Application) -> Application:
        try:
            async with self._target(application.target) as target:
                return await self._take_back(application, target, "after a crash")
        except NotFoundError:
            if application.target.startswith("/"):
                raise  # it may only be unmounted
            undone = replace(application, state=ApplicationState.UNDONE)
            await self._journal.append(undone, "its workspace is gone", expect=application)
            return undone

    async def _to_its_end(self, work: Callable[[], Awaitable[_T]]) -> _T:
        async def one_at_a_time() -> _T:
            async with self._one_at_a_time:
                return await work()

        task: asyncio.Task[_T] = asyncio.ensure_future(one_at_a_time())
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)
        return await asyncio.shield(task)

    def _records(self) -> Path:
        return self._layout.runs / "applications"

    def _record_of(self, application: ApplicationId) -> Record:
        return Record(self._records() / application)

    async def _apply_to(self, candidate: CandidateId, name: str) -> Application:
        async with self._target(name) as target:
            return await self._apply(candidate, name, target)

    async def _apply(self, candidate_id: CandidateId, name: str, target: Target) -> Application:
        candidate = self._journal.state.candidates.get(candidate_id)
        if candidate is None:
            raise NotFoundError(
                f"cannot apply {candidate_id}: there is no such candidate",
                hint="List candidates with `forkyard compare RUN`.",
            )
        refuse_unfinished(f"apply {candidate.id} to", name, self._journal.state.applications)
        application = Application(
            id=new_application_id(),
            candidate=candidate.id,
            target=name,
            paths=tuple(change.path for change in candidate.files),
            state=ApplicationState.WRITING,
            created_at=self._clock.now(),
        )
        record = self._record_of(application.id)
        try:
            await self._write_record(candidate, application, record)
            compared = await target.act(Action.COMPARE, record)
            refuse_differences(candidate, target, compared)
            await self._journal.append(application, "writing begins", expect=None)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, record.folder, ignore_errors=True)
            raise
        failpoint("A01")
        outcome = await target.act(Action.WRITE, record)
        if outcome.error is None and not outcome.differences:
            applied = replace(application, state=ApplicationState.APPLIED)
            await self._journal.append(applied, "applied", expect=application)
            return applied
        if outcome.taken_back:
            undone = replace(application, state=ApplicationState.UNDONE)
            await self._journal.append(undone, "taken back: it could not be written")
        refuse_differences(candidate, target, replace(outcome, error=None))
        back = "everything is as it was" if outcome.taken_back else "the way back is still to go"
        raise WorkspaceError(
            f"cannot apply {candidate.id} to {target.words}: {outcome.error}; {back}",
            hint="Mend that and apply again; a restart of the server goes an unfinished way back.",
        )

    async def _write_record(
        self, candidate: Candidate, application: Application, record: Record
    ) -> None:
        plan = plan_of(candidate, staging=f".forkyard-{application.id}")
        await asyncio.to_thread(record.write, plan)
        blobs = {os.fsencode(c.path): (c.old_blob, c.new_blob) for c in candidate.files}
        wanted = sorted({blob for pair in blobs.values() for blob in pair if blob is not None})
        contents: dict[str | None, bytes | None] = {None: None}
        contents.update(await self._contents.read(wanted))
        for entry in plan.entries:
            old, new = blobs[entry.path]
            await asyncio.to_thread(
                record.write_content, entry, before=contents[old], after=contents[new]
            )

    async def _undo(self, application_id: ApplicationId, *, is_dry: bool) -> Application:
        application = self._journal.state.applications.get(application_id)
        if application is None:
            raise NotFoundError(
                f"cannot undo {application_id}: there is no such application",
                hint="See `forkyard undo --list`.",
            )
        if application.state is ApplicationState.UNDONE:
            raise ConflictError(
                f"cannot undo {application.id}: it is undone already",
                hint="Only an applied candidate can be taken back.",
            )
        if application.state is ApplicationState.APPLIED:
            known = self._journal.state.applications
            refuse_unfinished(f"undo {application.id} in", application.target, known)
        record = self._record_of(application.id)
        if not record.is_there():
            raise ConflictError(
                f"cannot undo {application.id}: the record of what lay there before is gone",
                hint="Take it back with your own version control.",
            )
        async with self._target(application.target, "undo in") as target:
            if application.state is ApplicationState.WRITING:
                # Nobody else is writing now: an earlier way back did not get to its end.
                if is_dry:
                    return application
                return await self._take_back(application, target, "asked for again")
            compared = await target.act(Action.COMPARE_UNDO, record)
            if compared.error is not None or compared.differences:
                reason = compared.error or named(compared.differences)
                raise ConflictError(
                    f"cannot undo {application.id} in {target.words}: not as it was applied: "
                    f"{reason}",
                    hint="Nothing was changed; keep your later edits elsewhere, put these paths "
                    "back as they were applied, then undo again.",
                )
            if is_dry:
                return application
            writing = replace(application, state=ApplicationState.WRITING)
            await self._journal.append(writing, "taking it back", expect=application)
            failpoint("A10")
            return await self._take_back(writing, target, "asked for", was=application)

    async def _take_back(
        self,
        application: Application,
        target: Target,
        why: str,
        *,
        was: Application | None = None,
    ) -> Application:
        outcome = await target.act(Action.TAKE_BACK, self._record_of(application.id))
        if outcome.untouched and was is not None:
            await self._journal.append(was, "could not be taken back", expect=application)
            raise WorkspaceError(
                f"cannot take {application.id} back in {target.words}: {outcome.error}; nothing "
                "was changed",
                hint="Mend that, then undo again.",
            )
        if outcome.error is not None:
            raise WorkspaceError(
                f"cannot take {application.id} back in {target.words}: {outcome.error}",
                hint="Mend that, then undo again; the next start of the server goes on, too.",
            )
        left = tuple(map(os.fsdecode, outcome.left))
        note = f"taken back, {why}"
        if left:
            note += f"; left as edited since: {', '.join(left)!a}"
        undone = replace(application, state=ApplicationState.UNDONE, left=left)
        await self._journal.append(undone, note, expect=application)
        return undone

    @contextlib.asynccontextmanager
    async def _target(self, name: str, verb: str = "apply to") -> AsyncIterator[Target]:
        if name.startswith("/"):
            yield HostTree(Path(name))
            return
        async with self._workspaces.held(WorkspaceId(name)) as workspace:
            if workspace.state is not WorkspaceState.STOPPED:
                raise ConflictError(
                    f"cannot {verb} {name}: it is {workspace.state}, and must be stopped",
                    hint=f"Run `forkyard workspace stop {name}` first.",
                )
            yield StoppedWorkspace(
                name=workspace.id,
                lowers=[str(self._layout.layer(layer)) for layer in workspace.layers],
                upper=str(self._layout.upper(workspace.id)),
                work=str(self._layout.disk(workspace.id) / "work"),
                repository=self._repository_of(workspace),
            )

    def _repository_of(self, workspace: Workspace) -> str:
        snapshot = self._journal.state.snapshots.get(workspace.snapshot)
        if snapshot is None or snapshot.base is None:
            return REPOSITORY
        return snapshot.base.repository
