"""Collecting a candidate from a stopped workspace: walk, tree, patch, proof, manifest.

A pure function of a stopped tree and its base: collecting again gives the same tree and digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint, make_directory
from forkyard.base.masking import Masker
from forkyard.candidate import rules
from forkyard.candidate.answers import Changed
from forkyard.candidate.manifest import AttemptFacts, Contents, write_manifest
from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.patch import PatchFile, prove, write_patch
from forkyard.candidate.secrets import find_secrets
from forkyard.candidate.take import Taken, Taker
from forkyard.candidate.trees import LINK, TreeIndex
from forkyard.candidate.walker_main import text
from forkyard.model.candidate import Candidate, CandidateStatus, ChangeKind, FileChange
from forkyard.model.ids import AttemptId, CandidateId
from forkyard.model.workspace import RecordedBase, Workspace

PATCH_NAME = "patch"
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Patterns by which changed paths are flagged."""

    scope: tuple[str, ...] = ()
    """Where changes are wanted; empty means anywhere."""
    protected: tuple[str, ...] = ()
    """What the evaluation puts back."""


class CandidateMaker:
    """Makes candidates of what attempts left behind."""

    def __init__(self, store: ObjectStore, taker: Taker, clock: Clock, masker: Masker) -> None:
        """Keep the collaborators."""
        self._masker = masker
        self._store = store
        self._taker = taker
        self._clock = clock

    async def make(
        self,
        attempt: AttemptId,
        workspace: Workspace,
        base: RecordedBase,
        *,
        out: Path,
        facts: AttemptFacts | None = None,
        flags: Flags | None = None,
        candidate: CandidateId | None = None,
        full: bool = False,
    ) -> Candidate:
        """Collect what an attempt changed. Call it when the sandbox is dead.

        Args:
            attempt: Whose work it is.
            workspace: Stopped.
            base: What its snapshot recorded; names the repository.
            out: Directory for `patch` and `manifest.json`.
            facts: For the manifest.
            flags: Scope and protected paths of the task.
            candidate: Its id; by default one that follows from the attempt and the epoch.
            full: Walk and replay everything; must give the same tree.

        Returns:
            The candidate. One that git cannot carry is a result too, as `invalid`.

        Raises:
            WorkspaceError: Trouble of ours: the walk, the store or the disk.

        Cancellation:
            Helpers are killed; a half-written patch is removed. Collect again later.

        Durability:
            Objects, patch and manifest are on disk when this returns; the caller journals it.
        """
        facts, flags = facts or AttemptFacts(), flags or Flags()
        make_directory(out)
        taken = await self._taker.take(workspace, base, full=full)
        failpoint("C13")
        patch = await write_patch(
            self._store,
            base.tree,
            taken.tree,
            out / PATCH_NAME,
            [change.path for change in taken.changes],
        )
        failpoint("C14")
        problems = await self._problems(base, taken, out / PATCH_NAME, full=full)
        secrets = await find_secrets(self._store, taken.changes, self._masker)
        files = tuple(_file_change(change, patch) for change in taken.changes)
        paths = [change.path for change in files]
        contents = Contents(
            candidate=candidate or _id(attempt, workspace),
            attempt=attempt,
            base=base,
            result_tree=taken.tree,
            status=_status(problems, taken),
            patch_sha256=patch.sha256,
            patch_bytes=patch.size_bytes,
            files=files,
            left_out=taken.left_out,
            left_out_more=taken.left_out_more,
            ignored=taken.ignored.entries,
            ignored_count=taken.ignored.count,
            ignored_bytes=taken.ignored.size_bytes,
            large=taken.large,
            links_outside=taken.links_outside,
            problems=(*problems, *_stops(taken)),
            outside_scope=tuple(
                p for p in paths if flags.scope and not rules.matches(p, flags.scope)
            ),
            control_files=tuple(p for p in paths if rules.matches(p, rules.CONTROL_FILES)),
            protected=tuple(
                p for p in paths if rules.matches(p, (*flags.protected, *rules.RUNNER_FILES))
            ),
            secrets=secrets,
        )
        manifest_sha256 = write_manifest(out / MANIFEST_NAME, contents, facts)
        failpoint("C15")
        return self._row(contents, manifest_sha256)

    async def _problems(
        self, base: RecordedBase, taken: Taken, patch: Path, *, full: bool
    ) -> tuple[str, ...]:
        with self._taker.base_trees(base) as descriptors:
            trees = TreeIndex(descriptors)
        try:
            return await prove(
                self._store,
                trees,
                base=base.tree,
                result=taken.tree,
                changes=taken.changes,
                patch=patch,
                full=full,
            )
        finally:
            trees.close()

    def _row(self, contents: Contents, manifest_sha256: str) -> Candidate:
        facts = {}
        if contents.large:
            facts["large_files"] = str(len(contents.large))
        if contents.links_outside:
            shown = (f"{path} -> {target}" for path, target in contents.links_outside[:5])
            facts["links_outside"] = ", ".join(shown)
        if contents.ignored_count:
            facts["ignored_files"] = str(contents.ignored_count)
            facts["ignored_bytes"] = str(contents.ignored_bytes)
        if contents.left_out_more:
            facts["left_out_unlisted"] = str(contents.left_out_more)
        return Candidate(
            id=contents.candidate,
            attempt=contents.attempt,
            status=contents.status,
            base_tree=contents.base.tree,
            result_tree=contents.result_tree,
            patch_sha256=contents.patch_sha256,
            patch_bytes=contents.patch_bytes,
            manifest_sha256=manifest_sha256,
            created_at=self._clock.now(),
            files=tuple(contents.files),
            left_out=tuple(contents.left_out),
            ignored=tuple(contents.ignored),
            problems=tuple(contents.problems),
            outside_scope=tuple(contents.outside_scope),
            control_files=tuple(contents.control_files),
            protected=tuple(contents.protected),
            secrets=tuple(contents.secrets),
            facts=facts,
        )


def _id(attempt: AttemptId, workspace: Workspace) -> CandidateId:
    seed = f"{attempt} {workspace.id} {workspace.epoch}".encode()
    return CandidateId("cand_" + hashlib.sha256(seed).hexdigest()[:12])


def _status(problems: tuple[str, ...], taken: Taken) -> CandidateStatus:
    if problems:
        return CandidateStatus.INVALID
    return CandidateStatus.INCOMPLETE if taken.stops else CandidateStatus.COMPLETE


def _stops(taken: Taken) -> Iterator[str]:
    for limit, count in sorted(taken.stops.items()):
        times = "once" if count == 1 else f"{count} times"
        yield f"hard limit struck {times}: {limit}"


def _file_change(change: Changed, patch: PatchFile) -> FileChange:
    old, new = change.old, change.new
    if old is None:
        kind = ChangeKind.ADDED
    elif new is None:
        kind = ChangeKind.DELETED
    elif (old.mode == LINK) != (new.mode == LINK):
        kind = ChangeKind.TYPE
    elif old.oid == new.oid:
        kind = ChangeKind.MODE
    else:
        kind = ChangeKind.MODIFIED
    added, deleted = patch.lines.get(change.path, (None, None))
    return FileChange(
        path=text(change.path),
        kind=kind,
        old_mode=f"{old.mode:o}" if old else None,
        new_mode=f"{new.mode:o}" if new else None,
        old_blob=old.oid.hex() if old else None,
        new_blob=new.oid.hex() if new else None,
        size_bytes=change.size,
        added_lines=added,
        deleted_lines=deleted,
    )
