"""What an agent leaves behind is carried byte for byte, or refused in words, and never run."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.model.candidate import CandidateStatus
from forkyard.model.ids import LayerId
from forkyard.model.workspace import REPOSITORY, RecordedBase
from security import hostile_worktrees
from security.hostile_worktrees import ROWS, Row
from security.poison import POISONS, Canary
from stopped import Elsewhere, Picture, Yard, git, picture, quick_folder


class Ground:
    """One base for all rows, poisoned from the start."""

    def __init__(self, folder: Path) -> None:
        """Build and record it."""
        self.canary = Canary(folder)
        state = folder / "state"
        state.mkdir()
        self.yard = Yard(state)
        self.layer: LayerId = self.yard.layer(self._build)
        self.base: RecordedBase = self.yard.record(self.layer)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        self.repository = self.yard.layout.layer(self.layer) / REPOSITORY.strip("/")
        self.elsewhere = Elsewhere(elsewhere, self.repository)

    def _build(self, repository: Path) -> None:
        hostile_worktrees.base(repository)
        git(repository, "init", "-q")
        git(repository, "-c", "filter.lfs.clean=cat", "add", "-A", "-f")
        git(repository, "commit", "-q", "-m", "base")
        with (repository / ".git" / "config").open("a", encoding="ascii") as config:
            program = self.canary.program
            config.write(f"[core]\n\tfsmonitor = {program}\n\thooksPath = {program.parent}\n")
            config.write(f'[filter "lfs"]\n\tclean = {program}\n\tsmudge = {program}\n')
            config.write(f"[diff]\n\texternal = {program}\n[core]\n\tsshCommand = {program}\n")
            config.write(f'[diff "lfs"]\n\ttextconv = {program}\n\tcommand = {program}\n')


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Give the common base."""
    folder = quick_folder("fy-hostile-")
    try:
        yield Ground(folder)
    finally:
        shutil.rmtree(folder)


def test_recorded_base_is_what_git_makes_of_the_same_bytes(ground: Ground) -> None:
    """Our trees are git's trees."""
    assert ground.elsewhere.tree == ground.base.tree
    assert ground.base.commit is not None


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_hostile_tree_is_carried_or_refused(row: Row, ground: Ground) -> None:
    """Patch and tree give back the bytes on disk; nothing of the agent's runs."""
    yard = ground.yard
    workspace = yard.fork(ground.layer)
    ground.canary.reset()
    try:
        yard.inside(workspace, row.change)
        ran_while_building = ground.canary.has_fired
        ground.canary.reset()

        candidate = yard.collect(workspace, ground.base)

        assert candidate.status is row.status, candidate.problems
        changed = tuple(os.fsencode(change.path) for change in candidate.files)
        if row.changed is not None:
            assert changed == row.changed
        listed = {item.path for item in candidate.left_out}
        assert set(row.left_out) <= listed, candidate.left_out
        assert tuple(item.path for item in candidate.ignored) == row.ignored

        on_disk: Picture = yard.inside(
            workspace, lambda repository: picture(repository, without=row.uncarried)
        )
        if row.status is CandidateStatus.INVALID:
            assert "git refuses a path" in candidate.problems[0]
        else:
            tree, replayed = ground.elsewhere.replay(yard.out(workspace) / "patch")
            assert tree == candidate.result_tree
            carried = {
                path: seen
                for path, seen in replayed.items()
                if not any(path == out or path.startswith(out + b"/") for out in row.uncarried)
            }
            assert carried == on_disk
        assert not ground.canary.has_fired, f"built: {ran_while_building}"
    finally:
        yard.forget(workspace)


@pytest.mark.parametrize(
    "name",
    [
        "delete a directory",
        "directory to link",
        "link to directory",
        "file to directory",
        "ignored by the base",
        "poisoned nested repository",
        "git~1",
        "sparse file of 1 TB",
        "invalid UTF-8 name",
    ],
)
def test_whole_walk_gives_the_same_tree_as_the_hinted_one(name: str, ground: Ground) -> None:
    """The upper directory is only a hint: looking everywhere finds the same."""
    row = next(row for row in ROWS if row.name == name)
    workspace = ground.yard.fork(ground.layer)
    try:
        ground.yard.inside(workspace, row.change)
        hinted = ground.yard.collect(workspace, ground.base)
        whole = ground.yard.collect(workspace, ground.base, full=True)
        assert whole.result_tree == hinted.result_tree
        assert whole.files == hinted.files
        assert whole.patch_sha256 == hinted.patch_sha256
        assert whole.status is hinted.status
    finally:
        ground.yard.forget(workspace)


@pytest.mark.parametrize(
    "name",
    [
        "directory to link",
        "link to directory",
        "file to directory",
        "directory to file",
        "invalid UTF-8 name",
        "mode 000",
        "names that look like a patch",
        "everything removed",
    ],
)
def test_candidate_laid_into_a_fresh_fork_gives_the_same_tree(name: str, ground: Ground) -> None:
    """What evaluation sees is what was collected."""
    yard = ground.yard
    row = next(row for row in ROWS if row.name == name)
    workspace, fresh = yard.fork(ground.layer), yard.fork(ground.layer)
    try:
        yard.inside(workspace, row.change)
        candidate = yard.collect(workspace, ground.base)
        asyncio.run(yard.collector.materialise(fresh, ground.base, candidate))
        assert yard.collect(fresh, ground.base, full=True).result_tree == candidate.result_tree
    finally:
        yard.forget(workspace)
        yard.forget(fresh)


@pytest.mark.parametrize("command", [("status",), ("add", "-A")], ids=["status", "add"])
@pytest.mark.parametrize("name", list(POISONS))
def test_canary_fires_under_naive_git_and_not_under_ours(
    name: str, command: tuple[str, ...], ground: Ground, tmp_path: Path
) -> None:
    """The detector is shown to detect: plain git in the same tree runs the agent's program."""
    yard = ground.yard
    layer = yard.layer(_plain)
    base = yard.record(layer)
    canary = Canary(tmp_path)
    poison, passes_bytes = POISONS[name]
    program = canary.filter if passes_bytes else canary.program
    workspace = yard.fork(layer)
    try:

        def spoil(repository: Path) -> None:
            poison(repository, str(program))
            (repository / "a.txt").write_text("changed\n")
            os.utime(repository / "b.txt", (1, 1))

        yard.inside(workspace, spoil)
        canary.reset()
        candidate = yard.collect(workspace, base)
        assert "a.txt" in {change.path for change in candidate.files}
        assert not canary.has_fired

        def naively(repository: Path) -> None:
            subprocess.run(
                ["git", "-c", "safe.directory=*", *command],
                cwd=repository,
                env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=30,
            )

        yard.inside(workspace, naively)
        assert canary.has_fired
    finally:
        yard.forget(workspace)
        subprocess.run(["rm", "-rf", yard.layout.layer(layer)], check=True)


def _plain(repository: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (repository / name).write_text(f"{name}\n")
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "base")
