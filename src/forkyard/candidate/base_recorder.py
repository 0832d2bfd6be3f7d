"""Recording what a snapshot's repository really holds, independent of its .git."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from forkyard.candidate import answers
from forkyard.candidate.base_index import MOST_FILES, keep_index, open_index
from forkyard.candidate.helper import READER, ask
from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.trees import EMPTY_TREE
from forkyard.candidate.walker_main import Job
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.ids import LayerId
from forkyard.model.workspace import RecordedBase
from forkyard.shim.ids import STORAGE_USER_ID

_NOT_RECORDED = "not recorded: "
NAMED = 5
"""So many things that a base leaves out are named in its notes."""


class Recorder:
    """Implements `BaseRecorder` of workspace/interface."""

    def __init__(self, layout: Layout, store: ObjectStore) -> None:
        """Keep where layers and objects lie."""
        self._layout = layout
        self._store = store

    async def record(
        self, layers: tuple[LayerId, ...], repository: str, known: RecordedBase | None = None
    ) -> RecordedBase:
        """Walk a repository in a snapshot's layers and keep its trees.

        Contents are not stored: they stay in the layers, which are immutable, and are taken from
        there when a candidate changes them.

        Args:
            layers: Topmost first.
            repository: Absolute path inside.
            known: What the layers below the topmost hold; then only what the topmost one names is
                looked at, and the cost follows the change.

        Returns:
            Base tree, and the base commit where .git could be believed.

        Raises:
            WorkspaceError: There is no such directory, or the walk could not be done.

        Durability:
            All tree objects and the base's index are on disk when this returns.

        Cancellation:
            The helper is killed; what it wrote is removed.
        """
        await self._store.prepare()
        paths = [str(self._layout.layer(layer)) for layer in layers]
        async with self._store.scratch() as scratch:
            index, pack, apart = scratch / "index", scratch / "pack", scratch / "untracked"
            with (
                self._known_index(known, repository) as before,
                index.open("wb") as index_file,
                pack.open("wb") as pack_file,
                apart.open("wb") as apart_file,
            ):
                base = known.tree if known is not None and before else ""
                below = base if len(before) < MOST_FILES else ""
                written = (index_file.fileno(), pack_file.fileno(), apart_file.fileno())
                job: Job = {
                    "mode": "record",
                    "mount_point": str(self._store.mount_point),
                    "layers": paths[1:] if before else paths,
                    "upper": paths[0] if before else None,
                    "repository": repository,
                    "user": STORAGE_USER_ID,
                    "base": base,
                    "full": not before,
                    "ignored": [],
                    "limits": {},
                    "index": list(before),
                    "made_index": index_file.fileno(),
                    "made_below": below,
                    "untracked": "",
                    "untracked_index": [],
                    "made_untracked": apart_file.fileno(),
                    "pack": pack_file.fileno(),
                }
                answer = await ask(
                    READER,
                    job,
                    descriptors=(*written, *before),
                    what=f"record the base of {repository}",
                )
                os.fsync(index_file.fileno())
                os.fsync(apart_file.fileno())
            if answer.get("missing"):
                msg = f"cannot record the base: {repository} is no directory in the snapshot"
                raise WorkspaceError(msg, hint="Name the repository's folder in the template.")
            await self._store.add_pack(pack)
            tree = answers.word(answer["root"], "root")
            untracked = answers.word(answer["untracked"], "untracked")
            if untracked not in (tree, EMPTY_TREE.hex()):
                keep_index(self._store, untracked, apart)
            keep_index(self._store, tree, index, below)
        commit_tree = answers.optional_word(answer["commit_tree"], "commit_tree")
        return RecordedBase(
            repository=repository,
            commit=answers.optional_word(answer["commit"], "commit"),
            tree=tree,
            branch=answers.optional_word(answer["branch"], "branch"),
            uncommitted=commit_tree is not None and commit_tree != tree,
            untracked=untracked,
            notes=(*answers.words(answer, "notes"), *_left_out(answer)),
        )

    @contextlib.contextmanager
    def _known_index(
        self, known: RecordedBase | None, repository: str
    ) -> Iterator[tuple[int, ...]]:
        """Open the trees of a known base; nothing where everything is to be looked at."""
        with contextlib.ExitStack() as stack:
            descriptors: tuple[int, ...] = ()
            # What a base leaves out is told of each file: nothing is, of those not looked at.
            if (
                known is not None
                and known.repository == repository
                and not any(note.startswith(_NOT_RECORDED) for note in known.notes)
            ):
                with contextlib.suppress(OSError):
                    descriptors = stack.enter_context(open_index(self._store, known.tree))
            yield descriptors


def _left_out(answer: answers.Answer) -> tuple[str, ...]:
    left_out = answers.pairs(answer, "left_out")
    # an empty directory or a nested .git in a base needs no telling: nothing of value is lost
    told = [(path, why) for path, why in left_out if "empty directory" not in why]
    notes = [f"{_NOT_RECORDED}{path}: {why}" for path, why in told[:NAMED]]
    more = len(told) - len(notes) + answers.number(answer["left_out_more"], "left_out_more")
    if more > 0:
        notes.append(f"{_NOT_RECORDED}{more} more")
    return tuple(notes)
