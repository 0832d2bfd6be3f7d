"""Applying, undoing and collecting garbage at the worst moment: nobody's bytes are lost."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest

from applying import BASE, RESULT, Bench, contents, lay, picture
from forkyard.errors import ConflictError, WorkspaceError
from forkyard.model.application import ApplicationState
from projects import FIX, attempts, forkyard, git, make_repository, run_result

pytestmark = pytest.mark.anyio


def _mark(path: Path) -> None:
    if path.name.startswith("rebase"):
        path.mkdir()
    else:
        path.write_text("x")


GOING_ON = {
    "index.lock": "git is writing its index",
    "rebase-merge": "a rebase is going on",
    "rebase-apply": "a rebase or `git am` is going on",
    "MERGE_HEAD": "a merge is going on",
    "CHERRY_PICK_HEAD": "a cherry-pick is going on",
    "REVERT_HEAD": "a revert is going on",
    "BISECT_LOG": "a bisect is going on",
}


@pytest.mark.parametrize("mark", GOING_ON)
@pytest.mark.parametrize("is_linked", [False, True], ids=["main", "linked worktree"])
async def test_nothing_is_touched_in_the_middle_of_something(
    bench: Bench, tmp_path: Path, mark: str, *, is_linked: bool
) -> None:
    """Neither applied nor undone; told by its name; works once it is over."""
    lay(bench.tree, BASE)
    repository = bench.tree / ".git"
    if is_linked:
        repository = tmp_path / "git data"
        (bench.tree / ".git").write_text("gitdir: ../git data\n")
    repository.mkdir()
    candidate = await bench.candidate(BASE, RESULT)
    _mark(repository / mark)
    before = picture(bench.tree)
    with pytest.raises(ConflictError, match=GOING_ON[mark]):
        await bench.applications.apply_to_tree(candidate, bench.tree)
    assert before == picture(bench.tree)
    path = repository / mark
    path.rmdir() if path.is_dir() else path.unlink()
    done = await bench.applications.apply_to_tree(candidate, bench.tree)
    _mark(repository / mark)
    with pytest.raises(ConflictError, match=GOING_ON[mark]):
        await bench.applications.undo(done.id)
    path.rmdir() if path.is_dir() else path.unlink()
    assert (await bench.applications.undo(done.id)).state is ApplicationState.UNDONE


@pytest.mark.parametrize("path", ["edit.txt", "gone/deep", "folder"])
async def test_the_tree_is_whole_when_something_in_it_cannot_be_changed(
    bench: Bench, path: str
) -> None:
    """An immutable file or folder refuses in the middle: everything else goes back."""
    lay(bench.tree, BASE)
    before = picture(bench.tree)
    candidate = await bench.candidate(BASE, RESULT)
    subprocess.run(["chattr", "+i", bench.tree / path], check=True)
    try:
        with pytest.raises(WorkspaceError, match="everything is as it was"):
            await bench.applications.apply_to_tree(candidate, bench.tree)
        assert before == picture(bench.tree)
    finally:
        subprocess.run(["chattr", "-i", bench.tree / path], check=True)
    done = await bench.applications.apply_to_tree(candidate, bench.tree)
    after = picture(bench.tree)
    subprocess.run(["chattr", "+i", bench.tree / "new"], check=True)
    try:
        with pytest.raises(WorkspaceError):
            await bench.applications.undo(done.id)
    finally:
        subprocess.run(["chattr", "-i", bench.tree / "new"], check=True)
    assert after != before
    await bench.applications.undo(done.id)
    assert before == picture(bench.tree)


async def test_a_hard_link_elsewhere_keeps_its_bytes(bench: Bench, tmp_path: Path) -> None:
    """A store of packages that shares inodes with the tree is not written through."""
    lay(bench.tree, BASE)
    shared = tmp_path / "store"
    shared.hardlink_to(bench.tree / "edit.txt")
    done = await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    assert shared.read_bytes() == b"old\n"
    await bench.applications.undo(done.id)
    assert shared.read_bytes() == b"old\n"
    assert contents(bench.tree) == BASE


@pytest.mark.usefixtures("home")
def test_another_project_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    """A candidate that only adds a file fits anywhere; so the folder must be said."""
    repository, other = make_repository(tmp_path / "repo"), make_repository(tmp_path / "other")
    ran = forkyard(
        "run", "p", "-a", "a=echo x > new", "--check", "true", "--json", directory=repository
    )
    candidate = attempts(run_result(ran))["a"]["candidate"]["id"]

    refused = forkyard("apply", candidate, directory=other)

    assert refused.returncode == 4
    assert f"its run started from {repository}" in refused.stderr
    assert git(other, "status", "--porcelain") == ""
    assert forkyard("apply", candidate, "--to", ".", directory=other).returncode == 0
    assert (other / "new").read_text() == "x\n"
    assert forkyard("apply", candidate, directory=repository).returncode == 0
    assert forkyard("undo", directory=other).returncode == 0
    assert not (other / "new").exists()
    assert (repository / "new").exists()


@pytest.mark.deep
@pytest.mark.usefixtures("home")
def test_runs_are_whole_when_garbage_is_collected_all_the_time(tmp_path: Path) -> None:
    """Collections as eager as can be, one after the other, while runs go through every phase."""
    repository = make_repository(tmp_path / "repo")
    is_over = threading.Event()
    failures: list[str] = []

    def collect() -> None:
        while not is_over.is_set():
            done = forkyard("gc", "--older-than", "0.001s", "--json", directory=repository)
            if done.returncode != 0:
                failures.append(done.stderr)

    def run(number: int) -> None:
        script = f"{FIX}; sleep 0.{number}; head -c 200000 /dev/urandom > big{number}"
        ran = forkyard(
            "run", f"fix {number}", "-a", f"a={script}", "--check", "python3 -B check.py",
            "--json", directory=repository,
        )  # fmt: skip
        attempt = attempts(run_result(ran))["a"] if ran.returncode == 0 else None
        if attempt is None or attempt["evaluation"]["verdict"] != "solved":
            failures.append(ran.stdout + ran.stderr)
            return
        patch = forkyard("diff", attempt["candidate"]["id"], directory=repository)
        if patch.returncode != 0 or f"big{number}" not in patch.stdout:
            failures.append(patch.stderr)
        candidates.append(attempt["candidate"]["id"])

    candidates: list[str] = []
    collecting = threading.Thread(target=collect)
    collecting.start()
    runs = [threading.Thread(target=run, args=(number,)) for number in range(1, 5)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    is_over.set()
    collecting.join()

    assert failures == []
    for candidate in candidates:
        applied = forkyard("apply", candidate, "--json", directory=repository)
        assert applied.returncode == 0, applied.stderr
        assert len(json.loads(applied.stdout)["paths"]) == 2
        assert forkyard("undo", directory=repository).returncode == 0
    assert git(repository, "status", "--porcelain") == ""
