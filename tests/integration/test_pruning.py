"""Pruning the store of candidate trees: what somebody refers to stays whole, the rest goes."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.candidate.pruning import GRACE_SECONDS, Freed, Needed, Pruner, read_pack_index
from forkyard.coordinator.referred import needed_objects
from forkyard.model.candidate import Candidate
from forkyard.model.ids import LayerId, new_snapshot_id
from forkyard.model.workspace import RecordedBase, Snapshot, SnapshotState
from forkyard.store.projections import State, fold
from stopped import Yard, git

OLD = GRACE_SECONDS + 60


class Stage:
    """A yard with one base, and what the journal would say of it."""

    def __init__(self, home: Path) -> None:
        """Record the base."""
        self.yard = Yard(home)
        self.store = self.yard.collector.store
        self.layer, self.base = self.record("base")
        self.snapshot = Snapshot(
            id=new_snapshot_id(),
            name="s",
            state=SnapshotState.READY,
            created_at="",
            layers=(self.layer,),
            base=self.base,
        )

    def record(self, text: str) -> tuple[LayerId, RecordedBase]:
        """Record another base."""

        def build(repository: Path) -> None:
            for number in range(20):
                (repository / f"folder{number}").mkdir()
                (repository / f"folder{number}" / "file").write_text(f"{text} {number}\n")
            git(repository, "init", "-q")
            git(repository, "add", "-A")
            git(repository, "commit", "-q", "-m", text)

        layer = self.yard.layer(build)
        return layer, self.yard.record(layer)

    def candidate(self, seed: int, *, size: int = 20_000) -> Candidate:
        """Collect a candidate with contents of its own."""
        workspace = self.yard.fork(self.layer)
        chance = random.Random(seed)  # noqa: S311 - a test's own dice

        def change(repository: Path) -> None:
            (repository / "folder1" / "new").write_bytes(chance.randbytes(size))
            (repository / "folder2" / "file").write_bytes(chance.randbytes(size))
            (repository / "folder3" / "file").unlink()

        self.yard.inside(workspace, change)
        return self.yard.collect(workspace, self.base)

    def state(self, *entities: Candidate | Snapshot) -> State:
        """Say what the journal knows."""
        return fold([self.snapshot, *entities])

    def age(self, seconds: float = OLD) -> None:
        """Let time go by for everything that lies in the store."""
        then = time.time() - seconds
        for folder, _, names in os.walk(self.store.directory):
            for name in names:
                os.utime(Path(folder) / name, (then, then))

    def prune(self, needed: Needed, *, is_dry: bool = False) -> tuple[Freed, ...]:
        """Prune, as a collection of garbage does."""
        pruner = Pruner(self.store)
        return asyncio.run(pruner.prune(needed, self.yard.layout.trash, is_dry=is_dry))

    def is_whole(self, candidate: Candidate) -> bool:
        """Say whether everything that a candidate's application and judge need is there."""
        blobs = [b for c in candidate.files for b in (c.old_blob, c.new_blob) if b is not None]
        wanted = [candidate.base_tree, candidate.result_tree, *blobs]
        answer = asyncio.run(
            self.store.check(["cat-file", "--batch-check"], stdin="\n".join(wanted).encode())
        )
        if b"missing" in answer:
            return False
        listed = asyncio.run(
            self.store.check(["diff-tree", "-r", candidate.base_tree, candidate.result_tree])
        )
        return len(listed.splitlines()) == len(candidate.files)


@pytest.fixture
def stage(home: Path) -> Iterator[Stage]:
    """Give a base and its yard."""
    yield Stage(home)
    shutil.rmtree(home)


def _bytes(stage: Stage) -> int:
    return sum(
        (Path(folder) / name).stat().st_size
        for folder, _, names in os.walk(stage.store.directory / "objects")
        for name in names
    )


def test_what_candidates_need_stays_when_the_rest_goes(stage: Stage) -> None:
    """Of five collections two are journalled: they stay whole, and the disk is given back."""
    candidates = [stage.candidate(seed) for seed in range(5)]
    stage.age()
    before = _bytes(stage)
    needed = needed_objects(stage.state(candidates[1], candidates[3]))
    told = stage.prune(needed, is_dry=True)
    assert before == _bytes(stage)

    done = stage.prune(needed)

    assert sum(one.size_bytes for one in done) == sum(one.size_bytes for one in told) > 100_000
    assert _bytes(stage) < before - 100_000
    assert stage.is_whole(candidates[1])
    assert stage.is_whole(candidates[3])
    assert not stage.is_whole(candidates[0])
    # the base still serves: a new attempt is collected, and one that is the same as a lost one
    assert stage.is_whole(stage.candidate(7))
    assert stage.is_whole(stage.candidate(0))


def test_nothing_goes_when_it_is_young(stage: Stage) -> None:
    """What is not journalled yet is safe for the grace time."""
    candidate = stage.candidate(1)
    nothing = Needed(trees=frozenset(), blobs=frozenset(), bases=frozenset())
    assert stage.prune(nothing) == ()
    assert stage.is_whole(candidate)


def test_a_pack_is_young_again_when_it_is_taken_in_again(stage: Stage) -> None:
    """The same work collected once more rests on the old pack; that one must not go."""
    lost = stage.candidate(1)
    stage.age()
    again = stage.candidate(1)
    assert again.result_tree == lost.result_tree
    stage.prune(needed_objects(stage.state()))
    assert stage.is_whole(again)


def test_a_mixed_pack_is_written_anew_when_enough_of_it_is_waste(stage: Stage) -> None:
    """Only what is needed is left of it, and a second pruning changes nothing."""
    one, two = stage.candidate(1), stage.candidate(2)
    pack = stage.store.directory / "objects" / "pack"
    listed = "".join(f"{oid}\n" for index in pack.glob("*.idx") for oid in _objects(index))
    asyncio.run(
        stage.store.check(["pack-objects", "-q", str(pack / "pack")], stdin=listed.encode())
    )
    newest = max(pack.glob("*.idx"), key=lambda path: path.stat().st_size)
    for path in pack.iterdir():
        if path.stem != newest.stem:
            path.unlink()
    stage.age()
    needed = needed_objects(stage.state(one))
    stage.prune(needed)
    assert stage.is_whole(one)
    assert not stage.is_whole(two)
    (index,) = pack.glob("*.idx")
    assert two.files[0].new_blob not in _objects(index)
    stage.age()
    assert stage.prune(needed) == ()


def _objects(index: Path) -> dict[str, int]:
    return read_pack_index(index, index.with_suffix(".pack"))


@pytest.mark.deep
def test_many_packs_become_one(stage: Stage) -> None:
    """Git looks through every pack for each object, so there are never many old ones."""
    candidates = [stage.candidate(seed, size=10) for seed in range(60)]
    stage.age()
    stage.prune(needed_objects(stage.state(*candidates)))
    assert len(list((stage.store.directory / "objects" / "pack").glob("*.idx"))) == 1
    assert all(stage.is_whole(one) for one in candidates)


def test_an_index_of_a_base_goes_when_its_snapshot_is_gone(stage: Stage) -> None:
    """Those of other snapshots stay."""
    _, other = stage.record("other")
    stage.age()
    stage.prune(needed_objects(stage.state()))
    left = {path.stem for path in stage.store.bases.iterdir()}
    assert stage.base.tree in left
    assert other.tree not in left


def test_what_a_killed_git_left_goes(stage: Stage) -> None:
    """Half a pack, and one whose index is gone."""
    pack = stage.store.directory / "objects" / "pack"
    for name in ("tmp_pack_abc", "tmp_idx_abc", "pack-00.pack", "pack-11.idx"):
        (pack / name).write_bytes(b"x" * 5000)
    needed = needed_objects(stage.state())
    stage.prune(needed)
    assert (pack / "tmp_pack_abc").exists()
    stage.age()
    stage.prune(needed)
    assert sorted(path.suffix for path in pack.iterdir()) == [".idx", ".pack"]


def test_a_collection_under_way_loses_nothing(stage: Stage) -> None:
    """Pruning over and over while candidates are collected: each of them is whole in the end."""
    stage.prune(needed_objects(stage.state()))
    first = [stage.candidate(seed) for seed in range(3)]
    stage.age()
    forks = [stage.yard.fork(stage.layer) for _ in range(6)]
    for number, fork in enumerate(forks):
        chance = random.Random(number % 3)  # noqa: S311 - the same work as one that is old

        def change(repository: Path, chance: random.Random = chance) -> None:
            (repository / "folder1" / "new").write_bytes(chance.randbytes(20_000))
            (repository / "folder2" / "file").write_bytes(chance.randbytes(20_000))
            (repository / "folder3" / "file").unlink()

        stage.yard.inside(fork, change)

    async def both() -> list[Candidate]:
        pruner = Pruner(stage.store)

        async def prune() -> None:
            while True:
                await pruner.prune(
                    needed_objects(stage.state()), stage.yard.layout.trash, is_dry=False
                )

        pruning = asyncio.create_task(prune())
        try:
            return [
                await stage.yard.collector.collect(
                    first[0].attempt,
                    fork,
                    stage.base,
                    repository=stage.base.repository,
                    out=stage.yard.out(fork),
                )
                for fork in forks
            ]
        finally:
            pruning.cancel()
            await asyncio.gather(pruning, return_exceptions=True)

    assert all(stage.is_whole(one) for one in asyncio.run(both()))
