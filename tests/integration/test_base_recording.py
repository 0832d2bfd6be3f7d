"""A snapshot's base by what changed: the same as by looking at everything."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.candidate.base_index import MOST_FILES, index_path, open_index
from forkyard.candidate.collector import Collector
from forkyard.candidate.pruning import GRACE_SECONDS, Needed, Pruner
from forkyard.candidate.trees import TreeIndex, files_below
from forkyard.model.ids import LayerId
from forkyard.model.workspace import REPOSITORY, RecordedBase, RepositorySource
from station import Station, make_repository, station
from stopped import Yard, picture

STEPS = (
    "echo new > a.txt; echo fresh > fresh.txt",
    "rm -rf pkg && mkdir pkg && echo other > pkg/other.py",
    "rm a.txt && mkdir a.txt && echo x > a.txt/x; ln -s x link",
    "chmod +x fresh.txt; rm -rf a.txt; echo again > a.txt",
    "git add -A && git -c user.name=a -c user.email=a@b commit -qm more",
    "git checkout -q -b side; echo late >> a.txt; mkdir -p deep/er/still; echo d > deep/er/still/f",
    "mv deep other; rm -f link",
    "git -c user.name=a -c user.email=a@b commit -qam most; echo untracked > u.log",
    "mkdir nested && cd nested && git init -q . && echo n > n",
    "echo n2 > nested/n2; rm -rf pkg",
    "rm -rf .git",
)


@pytest.mark.anyio
async def test_it_is_the_same_when_only_what_changed_is_looked_at(
    home: Path, tmp_path: Path
) -> None:
    """After each of many kinds of change tree, commit, branch and untracked files agree."""
    source = make_repository(tmp_path / "src")
    async with station(home) as here:
        taken = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
        fork = await here.workspaces.create(taken.id)
        for number, step in enumerate(STEPS):
            known, before = taken.base, taken.layers
            await here.run(fork.id, step)
            await here.workspaces.stop(fork.id)
            taken = await here.snapshots.create(f"s{number}", fork.id)
            assert taken.layers[1:] == before
            assert await _bases(here, taken.layers, known) == {_facts(taken.base)}, step
        assert await _unchanged(here, fork.id) == taken.base


def _facts(base: object) -> tuple[object, ...]:
    names = ("repository", "commit", "tree", "branch", "uncommitted", "untracked")
    return tuple(getattr(base, name) for name in names)


async def _bases(here: Station, layers: tuple[object, ...], known: object) -> set[object]:
    collector = Collector(here.layout, SystemClock())
    by_change = await collector.record(layers, REPOSITORY, known)  # type: ignore[arg-type]
    whole = await collector.record(layers, REPOSITORY)  # type: ignore[arg-type]
    return {_facts(by_change), _facts(whole)}


async def _unchanged(here: Station, workspace: str) -> object:
    return (await here.snapshots.create("same", workspace)).base  # type: ignore[arg-type]


FOLDERS = 40


class Chain:
    """Snapshots each on top of the one before, in a yard."""

    def __init__(self, yard: Yard) -> None:
        """Record the first one."""

        def build(repository: Path) -> None:
            for number in range(FOLDERS):
                (repository / f"folder{number}").mkdir()
                for name in range(30):
                    (repository / f"folder{number}" / f"{name}").write_text(f"{number} {name}\n")

        self.yard = yard
        self.store = yard.collector.store
        self.layers: tuple[LayerId, ...] = (yard.layer(build),)
        self.base: RecordedBase = yard.record(*self.layers)

    def write(self, path: str, text: str) -> RecordedBase:
        """Change one file and record what is there then."""
        above = self.yard.layer(lambda folder: _put(folder / path, text))
        self.layers = (above, *self.layers)
        self.base = asyncio.run(self.yard.collector.record(self.layers, REPOSITORY, self.base))
        return self.base

    def files(self, base: RecordedBase) -> dict[bytes, bytes]:
        """Look every file of a base up, through all of its directories."""
        with open_index(self.store, base.tree) as descriptors:
            trees = TreeIndex(descriptors)
        try:
            return {path: entry.oid for path, entry in files_below(trees, bytes.fromhex(base.tree))}
        finally:
            trees.close()

    def size(self, base: RecordedBase) -> int:
        """Give the bytes of a base's own file."""
        return index_path(self.store, base.tree).stat().st_size


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_a_base_keeps_only_what_is_its_own_when_it_stands_on_another(home: Path) -> None:
    """And the whole again after so many steps; each can be looked through, and collected from."""
    chain = Chain(Yard(home))
    whole = chain.size(chain.base)
    bases = [chain.base, *(chain.write(f"folder{n}/0", f"new {n}\n") for n in range(MOST_FILES))]

    assert all(chain.size(base) < whole / 5 for base in bases[1:MOST_FILES])
    assert chain.size(bases[MOST_FILES]) > whole / 2
    assert [len(chain.files(base)) for base in bases] == [30 * FOLDERS] * len(bases)
    fork = chain.yard.fork(*chain.layers)
    seen = chain.yard.inside(fork, picture)
    assert set(seen) == set(chain.files(chain.base))
    chain.yard.inside(fork, lambda folder: _put(folder / "folder3/1", "changed\n"))
    candidate = chain.yard.collect(fork, chain.base)
    assert [(one.path, one.old_blob is not None) for one in candidate.files] == [
        ("folder3/1", True)
    ]
    assert candidate.problems == ()


def test_a_base_stays_whole_when_another_returns_to_what_it_holds(home: Path) -> None:
    """Both have one name: neither may stand on the other."""
    chain = Chain(Yard(home))
    first = chain.base
    second = chain.write("folder1/1", "other\n")

    again = chain.write("folder1/1", "1 1\n")

    assert again.tree == first.tree
    assert chain.files(first) == chain.files(again)
    assert chain.files(second) != chain.files(first)


def test_what_a_base_stands_on_stays_when_only_the_base_is_needed(home: Path) -> None:
    """Snapshots below it are gone, and their files are old."""
    chain = Chain(Yard(home))
    below = chain.base
    middle = chain.write("folder1/1", "a\n")
    needed = chain.write("folder1/2", "b\n")
    apart = chain.yard.record(chain.yard.layer(lambda folder: _put(folder / "f", "x")))
    pruner = Pruner(chain.store, grace_seconds=-1)
    needs = Needed(trees=frozenset(), blobs=frozenset(), bases=frozenset({needed.tree}))

    asyncio.run(pruner.prune(needs, chain.yard.layout.trash, is_dry=False))

    left = {path.stem for path in chain.store.bases.iterdir()}
    assert {below.tree, middle.tree, needed.tree} <= left
    assert apart.tree not in left
    assert len(chain.files(needed)) == 30 * FOLDERS


def test_a_base_is_young_when_another_was_recorded_on_it(home: Path) -> None:
    """Nobody has said yet who needs the other: a collection meanwhile leaves both."""
    chain = Chain(Yard(home))
    below = chain.base
    path = index_path(chain.store, below.tree)
    old = path.stat().st_mtime - 2 * GRACE_SECONDS
    os.utime(path, (old, old))
    above = chain.write("folder1/1", "a\n")
    needs = Needed(trees=frozenset(), blobs=frozenset(), bases=frozenset())

    asyncio.run(Pruner(chain.store).prune(needs, chain.yard.layout.trash, is_dry=False))

    assert len(chain.files(above)) == 30 * FOLDERS
