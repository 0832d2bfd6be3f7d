"""A snapshot's base by what changed: the same as by looking at everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.candidate.collector import Collector
from forkyard.model.workspace import REPOSITORY, RepositorySource
from station import Station, make_repository, station

pytestmark = pytest.mark.anyio

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
