"""Killed at any point of an application, a start of the server brings the tree back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from applying import (
    BASE,
    RESULT,
    Bench,
    contents,
    lay,
    picture,
    random_files,
)
from forkyard.model.application import ApplicationState

pytestmark = pytest.mark.anyio


KILLED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import applying

async def main():
    bench = applying.Bench.__new__(applying.Bench)
    home = Path({home!r})
    bench.layout = applying.Layout(home / "home")
    bench.blobs = applying.Blobs(home / "blobs")
    bench.tree = home / "user's tree"
    bench.open()
    await {call}

asyncio.run(main())
"""


def _run_killed(bench: Bench, point: str, call: str) -> int:
    home = bench.tree.parent
    bench.journal.close()
    script = KILLED.format(tests=str(Path(__file__).parents[1]), home=str(home), call=call)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FORKYARD_FAILPOINT": point, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    bench.open()
    return ended.returncode


WRITING_POINTS = ["A01", "A02", "A03", "A03@5", "A04", "A04@3", "A05", "A06", "A06@5", "A06@11"]


@pytest.mark.parametrize("point", [*WRITING_POINTS, "A07", "A08"])
async def test_takes_the_way_back_when_killed_while_writing(bench: Bench, point: str) -> None:
    """SIGKILL at any point: the next start brings the tree back, one more changes nothing."""
    lay(bench.tree, BASE)
    before = picture(bench.tree)
    candidate = await bench.candidate(BASE, RESULT)
    call = f"bench.applications.apply_to_tree({candidate!r}, bench.tree)"
    assert _run_killed(bench, point, call) == -signal.SIGKILL
    (undone,) = await bench.applications.recover()
    assert ApplicationState.UNDONE is undone.state
    assert before == picture(bench.tree)
    sequence = bench.journal.sequence
    assert await bench.applications.recover() == ()
    assert sequence == bench.journal.sequence


@pytest.mark.parametrize(
    "point", ["A10", "A11", "A11@4", "A12", "A13", "A13@6", "A14", "A15", "A16", "A16@5", "A16@9"]
)
async def test_takes_the_way_back_when_killed_on_it(bench: Bench, point: str) -> None:
    """Also the way back may be cut short, and is gone again."""
    lay(bench.tree, BASE)
    before = picture(bench.tree)
    candidate = await bench.candidate(BASE, RESULT)
    done = await bench.applications.apply_to_tree(candidate, bench.tree)
    assert _run_killed(bench, point, f"bench.applications.undo({done.id!r})") == -signal.SIGKILL
    (undone,) = await bench.applications.recover()
    assert ApplicationState.UNDONE is undone.state
    assert before == picture(bench.tree)


async def test_leaves_an_edit_alone_when_it_came_between_crash_and_recovery(bench: Bench) -> None:
    """The user's later bytes are worth more than a tidy way back; the journal names the path."""
    lay(bench.tree, BASE)
    candidate = await bench.candidate(BASE, RESULT)
    call = f"bench.applications.apply_to_tree({candidate!r}, bench.tree)"
    _run_killed(bench, "A07", call)
    (bench.tree / "edit.txt").write_text("after the crash")
    (bench.tree / "new/more").write_text("mine")
    await bench.applications.recover()
    expected = {
        **BASE,
        "edit.txt": ("100644", b"after the crash"),
        "new/more": ("100644", b"mine"),
    }
    assert expected == contents(bench.tree)
    (*_, last) = bench.journal.events_after(0)
    assert "edit.txt" in last.note


DEEP = [pytest.param(seed, marks=pytest.mark.deep) for seed in range(8, 150)]


@pytest.mark.parametrize("seed", [*range(8), *DEEP])
async def test_takes_the_way_back_when_random_trees_are_killed_anywhere(
    bench: Bench, seed: int
) -> None:
    """Random change, random moment."""
    chance = random.Random(1000 + seed)  # noqa: S311 - a test's own dice
    base, result = random_files(chance), random_files(chance)
    lay(bench.tree, base)
    before = picture(bench.tree)
    candidate = await bench.candidate(base, result)
    point = f"A0{chance.choice('3446667')}@{chance.randint(1, 4)}"
    call = f"bench.applications.apply_to_tree({candidate!r}, bench.tree)"
    killed = _run_killed(bench, point, call) != 0
    await bench.applications.recover()
    if killed:
        assert before == picture(bench.tree), f"seed {seed} at {point}"
    else:
        assert result == contents(bench.tree), f"seed {seed}"
