"""Everything that is done with candidates, behind one class; see the modules it calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.masking import Masker
from forkyard.candidate import answers, rules
from forkyard.candidate.base_recorder import Recorder
from forkyard.candidate.collect import CandidateMaker, Flags
from forkyard.candidate.helper import WRITER, ask
from forkyard.candidate.manifest import AttemptFacts
from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.settings import MIXED_FILES
from forkyard.candidate.take import Taker
from forkyard.candidate.trees import EXECUTABLE, FILE
from forkyard.candidate.walk import WalkLimits
from forkyard.candidate.writer_main import WriteJob
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.candidate import Candidate
from forkyard.model.ids import AttemptId, CandidateId, LayerId
from forkyard.model.run import HeldOutFile
from forkyard.model.workspace import REPOSITORY, RecordedBase, Workspace
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.store.blobs import Blobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """What was done to a workspace's files."""

    removed: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    """Links, files or whole directories that stood in the way and are gone."""
    settings: tuple[str, ...] = ()
    """Files in which test runners' settings were put back, the rest left as it was."""


class Collector:
    """Records bases, collects candidates, and lays their files into stopped workspaces."""

    def __init__(
        self,
        layout: Layout,
        clock: Clock,
        limits: WalkLimits | None = None,
        *,
        masker: Masker | None = None,
    ) -> None:
        """Make the parts; nothing is touched on disk before the first call."""
        self._layout = layout
        self.store = ObjectStore(layout.objects)
        self._recorder = Recorder(layout, self.store)
        self._taker = Taker(layout, self.store, limits)
        self._maker = CandidateMaker(self.store, self._taker, clock, masker or Masker())

    async def record(
        self, layers: tuple[LayerId, ...], repository: str, known: RecordedBase | None = None
    ) -> RecordedBase:
        """Record a repository's base; see `Recorder.record`."""
        return await self._recorder.record(layers, repository, known)

    async def read_blob(self, blob: str) -> bytes:
        """Give the bytes of a blob of a candidate, or of what it replaced."""
        return await self.store.read_blob(blob)

    async def collect(
        self,
        attempt: AttemptId,
        workspace: Workspace,
        base: RecordedBase,
        *,
        repository: str,
        out: Path,
        scope: tuple[str, ...] = (),
        protected: tuple[str, ...] = (),
        facts: AttemptFacts | None = None,
        candidate: CandidateId | None = None,
        full: bool = False,
    ) -> Candidate:
        """Collect what an attempt changed; see `CandidateMaker.make`.

        Raises:
            WorkspaceError: Trouble of ours, or the base is of another repository.
        """
        if repository != base.repository:
            reason = f"its base is of {base.repository}, not {repository}"
            msg = f"cannot collect {workspace.id}: {reason}"
            raise WorkspaceError(msg, hint="Name the template's repository in the task.")
        return await self._maker.make(
            attempt,
            workspace,
            base,
            out=out,
            facts=facts,
            flags=Flags(scope=scope, protected=protected),
            candidate=candidate,
            full=full,
        )

    async def materialise(
        self, workspace: Workspace, base: RecordedBase, candidate: Candidate
    ) -> Laid:
        """Lay a candidate's changes over a stopped fork of its base.

        Raises:
            WorkspaceError: Trouble of ours; the fork is then half-made and must be deleted.

        Cancellation:
            The helper is killed; the fork must be deleted.

        Durability:
            None: what is laid is laid again after a crash.
        """
        writes = [c for c in candidate.files if c.new_mode is not None and c.new_blob is not None]
        async with self.store.scratch() as scratch:
            path = scratch / "contents"
            with path.open("w+b") as contents:
                if writes:
                    await self.store.check(
                        ["cat-file", "--batch"],
                        stdin="".join(f"{change.new_blob}\n" for change in writes).encode(),
                        output=contents.fileno(),
                    )
                contents.seek(0)
                job = self._job("lay", workspace, base.repository)
                job["removals"] = [c.path for c in candidate.files if c.new_mode is None]
                job["writes"] = [(c.path, int(c.new_mode or "0", 8)) for c in writes]
                job["contents"] = contents.fileno()
                return await _laid(
                    job, (contents.fileno(),), f"lay {candidate.id} into {workspace.id}"
                )

    async def restore(
        self, workspace: Workspace, base: RecordedBase, patterns: Sequence[str]
    ) -> Laid:
        """Put protected paths back as the base has them, in a stopped workspace.

        Besides the given patterns the test runners' own settings are put back, also those in
        files that hold more. Changed and deleted paths come back, added ones go away.

        Raises:
            WorkspaceError: Trouble of ours.
        """
        with self._taker.base_trees(base) as index:
            job = self._job("restore", workspace, base.repository)
            job["base"] = base.tree
            job["index"] = list(index)
            job["patterns"] = [*patterns, *rules.RUNNER_FILES]
            job["mixed"] = list(MIXED_FILES)
            return await _laid(job, index, f"restore protected files in {workspace.id}")

    async def add_files(
        self, workspace: Workspace, files: Sequence[HeldOutFile], repository: str = REPOSITORY
    ) -> Laid:
        """Lay held-out files, whose bytes lie in the blob store, at a repository's root.

        Whatever stands in their way is removed, links above them too.

        Raises:
            WorkspaceError: A path leads out of the repository, or trouble of ours.
        """
        blobs = Blobs(self._layout.blobs)
        async with self.store.scratch() as scratch:
            with (scratch / "contents").open("w+b") as contents:
                for file in files:
                    content = blobs.path(file.sha256).read_bytes()
                    contents.write(b"%s blob %d\n" % (file.sha256.encode(), len(content)))
                    contents.write(content + b"\n")
                contents.seek(0)
                job = self._job("lay", workspace, repository)
                job["writes"] = [
                    (file.path, EXECUTABLE if file.executable else FILE) for file in files
                ]
                job["contents"] = contents.fileno()
                return await _laid(
                    job, (contents.fileno(),), f"add held-out files to {workspace.id}"
                )

    def _job(self, mode: str, workspace: Workspace, repository: str) -> WriteJob:
        return {
            "mode": mode,
            "mount_point": str(self.store.mount_point),
            "layers": [str(self._layout.layer(layer)) for layer in workspace.layers],
            "upper": str(self._layout.upper(workspace.id)),
            "work": str(self._layout.disk(workspace.id) / "work"),
            "repository": repository,
            "user": STORAGE_USER_ID,
            "removals": [],
            "writes": [],
            "contents": -1,
            "base": "",
            "index": [],
            "patterns": [],
            "mixed": [],
        }


async def _laid(job: WriteJob, descriptors: Sequence[int], what: str) -> Laid:
    answer = await ask(WRITER, job, descriptors=descriptors, what=what)
    return Laid(
        removed=answers.words(answer, "removed"),
        written=answers.words(answer, "written"),
        replaced=answers.words(answer, "replaced"),
        settings=answers.words(answer, "settings") if "settings" in answer else (),
    )
