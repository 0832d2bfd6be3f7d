"""Taking what changed in a stopped workspace into the object store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from forkyard.candidate import answers
from forkyard.candidate.answers import Changed
from forkyard.candidate.base_index import open_index
from forkyard.candidate.helper import READER, ask
from forkyard.candidate.ignore import Ignored, find_ignored
from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.trees import EMPTY_TREE
from forkyard.candidate.walk import WalkLimits
from forkyard.candidate.walker_main import Job
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.candidate import LeftOut
from forkyard.model.workspace import RecordedBase, Workspace
from forkyard.shim.ids import STORAGE_USER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What the walk of a stopped workspace gave; its objects are in the store."""

    tree: str
    changes: tuple[Changed, ...]
    left_out: tuple[LeftOut, ...]
    left_out_more: int
    stops: dict[str, int]
    large: tuple[tuple[str, int], ...]
    links_outside: tuple[tuple[str, str], ...]
    """New links that lead out of the repository, and where to. Carried as links."""
    ignored: Ignored = field(default_factory=Ignored)


class Taker:
    """Takes the difference of a stopped workspace to its base into the object store."""

    def __init__(
        self, layout: Layout, store: ObjectStore, limits: WalkLimits | None = None
    ) -> None:
        """Keep where things lie, and the limits of a walk."""
        self._layout = layout
        self._store = store
        self._limits = limits or WalkLimits()

    @contextlib.contextmanager
    def base_trees(self, base: RecordedBase) -> Iterator[tuple[int, ...]]:
        """Open the files of the base's tree index.

        Raises:
            WorkspaceError: It is not there; the base was recorded elsewhere or removed.
        """
        with self._index(base.tree) as descriptors:
            yield descriptors

    @contextlib.contextmanager
    def _index(self, tree: str) -> Iterator[tuple[int, ...]]:
        with contextlib.ExitStack() as stack:
            try:
                descriptors = stack.enter_context(open_index(self._store, tree))
            except OSError as error:
                msg = f"cannot read base {tree}: {error.strerror}"
                raise WorkspaceError(msg, hint="Build the template again to record it.") from error
            yield descriptors

    @contextlib.contextmanager
    def _untracked(self, base: RecordedBase) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Give the tree of the untracked files, and its index where it has one of its own."""
        nothing = EMPTY_TREE.hex()
        # where no commit is known, nothing is known to be tracked
        tree = base.untracked or (base.tree if base.commit is None else nothing)
        if tree in (base.tree, nothing):
            yield tree, ()
        else:
            with self._index(tree) as descriptors:
                yield tree, descriptors

    async def take(self, workspace: Workspace, base: RecordedBase, *, full: bool) -> Taken:
        """Walk a stopped workspace.

        Args:
            workspace: Must have no sandbox.
            base: What its snapshot recorded.
            full: Look at every file instead of those that the upper directory names.

        Durability:
            The objects are on disk when this returns.
        """
        what = f"collect {workspace.id}"
        ignored = Ignored()
        async with self._store.scratch() as scratch:
            pack = scratch / "pack"
            with (
                self.base_trees(base) as index,
                self._untracked(base) as (untracked, untracked_index),
                pack.open("wb") as pack_file,
            ):
                job: Job = {
                    "mode": "collect",
                    "mount_point": str(self._store.mount_point),
                    "layers": [str(self._layout.layer(layer)) for layer in workspace.layers],
                    "upper": str(self._layout.upper(workspace.id)),
                    "repository": base.repository,
                    "user": STORAGE_USER_ID,
                    "base": base.tree,
                    "full": full,
                    "ignored": [],
                    "limits": self._limits._asdict(),
                    "index": list(index),
                    "made_index": -1,
                    "made_below": "",
                    "untracked": untracked,
                    "untracked_index": list(untracked_index),
                    "made_untracked": -1,
                    "pack": pack_file.fileno(),
                }
                descriptors = (*index, pack_file.fileno(), *untracked_index)
                answer = await ask(READER, job, descriptors=descriptors, what=what)
                if answer.get("asks"):
                    ignored = await find_ignored(
                        self._store,
                        answers.sizes(answer, "new"),
                        answers.sizes(answer, "touched"),
                        answers.pairs(answer, "ignore_files"),
                        frozenset(answers.words(answer, "base_directories")),
                    )
                    job["mode"] = "take"
                    job["ignored"] = list(ignored.paths)
                    answer = await ask(READER, job, descriptors=descriptors, what=what)
            if answers.number(answer["objects"], "objects"):
                await self._store.add_pack(pack)
        return Taken(
            tree=answers.word(answer["root"], "root"),
            changes=answers.changes(answer),
            left_out=tuple(
                LeftOut(path=path, reason=reason)
                for path, reason in answers.pairs(answer, "left_out")
            ),
            left_out_more=answers.number(answer["left_out_more"], "left_out_more"),
            stops=answers.counts(answer, "stops"),
            large=answers.sizes(answer, "large"),
            links_outside=answers.pairs(answer, "links_outside"),
            ignored=ignored,
        )
