"""Ignored files that lie in the base: caches and build outputs that a test run changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkyard.candidate.trees import EMPTY_TREE
from forkyard.model.candidate import CandidateStatus
from forkyard.model.workspace import REPOSITORY
from stopped import Yard, git

BUILD = "ignored by the base's .gitignore:2: build/"
PYC = "ignored by the base's .gitignore:1: *.pyc"
OBJECT = "ignored by the base's .gitignore:3: *.o"


@pytest.fixture
def yard(home: Path) -> Iterator[Yard]:
    """Give a state directory."""
    yield Yard(home)
    shutil.rmtree(home)


def _committed(repository: Path) -> None:
    for name, text in {
        "src/app.py": "x = 1\n",
        ".gitignore": "*.pyc\nbuild/\n*.o\n",
        "build/kept.txt": "committed\n",
        "src/vendored.o": "committed\n",
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git(repository, "init", "-q")
    git(repository, "add", "-f", ".")
    git(repository, "commit", "-q", "-m", "base")


def _with_build_outputs(repository: Path) -> None:
    """Lay ignored files beside the two that are committed all the same."""
    _committed(repository)
    (repository / "build" / "out").write_bytes(b"out")
    (repository / "build" / "deep" / "er").mkdir(parents=True)
    (repository / "build" / "deep" / "er" / "out").write_bytes(b"deep")
    (repository / "src" / "__pycache__").mkdir()
    (repository / "src" / "__pycache__" / "app.pyc").write_bytes(b"old bytes")
    (repository / "notes.txt").write_text("untracked, not ignored\n")


def _without_git_data(repository: Path) -> None:
    _with_build_outputs(repository)
    shutil.rmtree(repository / ".git")


def _only_outputs(repository: Path) -> None:
    (repository / "src" / "__pycache__" / "app.pyc").write_bytes(b"new bytes")
    (repository / "src" / "__pycache__" / "more.pyc").write_bytes(b"new")
    (repository / "build" / "out").chmod(0o755)
    shutil.rmtree(repository / "build" / "deep")


_OUTPUTS = {
    "build/deep/er/out": f"deleted, {BUILD}",
    "build/out": f"changed, {BUILD}",
    "src/__pycache__/app.pyc": f"changed, {PYC}",
    "src/__pycache__/more.pyc": PYC,
}


def _rewrite_rules(repository: Path) -> None:
    _only_outputs(repository)
    (repository / ".gitignore").write_text("*\n")
    (repository / "src" / ".gitignore").write_text("*\n")
    (repository / "src" / "app.py").write_text("x = 2\n")
    (repository / "notes.txt").write_text("changed\n")


def _bring_ignored_files_in(repository: Path) -> None:
    (repository / ".gitignore").write_text("!*\n")
    _only_outputs(repository)


def _change_committed(repository: Path) -> None:
    (repository / "build" / "kept.txt").write_text("changed\n")
    (repository / "src" / "vendored.o").unlink()


def _touch(repository: Path) -> None:
    """Write the same bytes again."""
    file = repository / "src" / "__pycache__" / "app.pyc"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    os.utime(repository / "build" / "out", (1, 1))


def _file_over_outputs(repository: Path) -> None:
    """A file that no rule covers stands where an ignored folder stood."""
    shutil.rmtree(repository / "build")
    (repository / "build").write_text("a file\n")


def _pipe_over_output(repository: Path) -> None:
    (repository / "build" / "out").unlink()
    os.mkfifo(repository / "build" / "out")


def _folder_over_output(repository: Path) -> None:
    (repository / "src" / "__pycache__" / "app.pyc").unlink()
    (repository / "src" / "__pycache__" / "app.pyc").mkdir()
    (repository / "src" / "__pycache__" / "app.pyc" / "x").write_text("x")


@pytest.mark.parametrize(
    ("build", "change", "changed", "ignored"),
    [
        (_with_build_outputs, _only_outputs, [], _OUTPUTS),
        (_with_build_outputs, _touch, [], {}),
        (
            _with_build_outputs,
            _rewrite_rules,
            [".gitignore", "notes.txt", "src/.gitignore", "src/app.py"],
            _OUTPUTS,
        ),
        (_with_build_outputs, _bring_ignored_files_in, [".gitignore"], _OUTPUTS),
        (_with_build_outputs, _change_committed, ["build/kept.txt", "src/vendored.o"], {}),
        (
            _with_build_outputs,
            _file_over_outputs,
            ["build", "build/deep/er/out", "build/kept.txt", "build/out"],
            {},
        ),
        (
            _with_build_outputs,
            _pipe_over_output,
            [],
            {"build/out": f"deleted, {BUILD}"},
        ),
        (
            _with_build_outputs,
            _folder_over_output,
            [],
            {
                "src/__pycache__/app.pyc": f"deleted, {PYC}",
                "src/__pycache__/app.pyc/": f"1 files, 1 bytes, {PYC}",
            },
        ),
        (_without_git_data, _only_outputs, [], _OUTPUTS),
        (
            _without_git_data,
            _change_committed,
            [],
            {
                "build/kept.txt": f"changed, {BUILD}",
                "src/vendored.o": f"deleted, {OBJECT}",
            },
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("full", [False, True], ids=["hinted", "whole"])
def test_ignored_file_of_the_base_is_carried_only_when_it_is_committed(
    yard: Yard,
    build: Callable[[Path], None],
    change: Callable[[Path], None],
    changed: list[str],
    ignored: dict[str, str],
    full: bool,
) -> None:
    """Caches and build outputs that lay in the base are listed; the tree keeps the base's own."""
    layer = yard.layer(build)
    base = yard.record(layer)
    assert (base.commit is None) == (build is _without_git_data)
    workspace = yard.fork(layer)
    yard.inside(workspace, change)
    candidate = yard.collect(workspace, base, full=full)
    assert candidate.status is CandidateStatus.COMPLETE, candidate.problems
    assert [change.path for change in candidate.files] == changed
    assert {item.path: item.reason for item in candidate.ignored} == ignored
    assert candidate.facts.get("ignored_files", "0") == str(len(ignored))
    if not changed:
        assert candidate.result_tree == base.tree


def test_removed_repository_keeps_ignored_files_of_the_base(yard: Yard) -> None:
    """What nobody tracks is no part of a candidate, even when everything is gone."""
    layer = yard.layer(_with_build_outputs)
    base = yard.record(layer)
    workspace = yard.fork(layer)
    yard.inside(workspace, lambda root: shutil.rmtree(root / REPOSITORY.strip("/")), root=True)
    candidate = yard.collect(workspace, base)
    assert candidate.status is CandidateStatus.COMPLETE, candidate.problems
    assert {item.path for item in candidate.ignored} == {
        "build/deep/er/out",
        "build/out",
        "src/__pycache__/app.pyc",
    }
    assert "notes.txt" in {change.path for change in candidate.files}


def test_untracked_files_are_known_when_the_commit_lies_in_packs(yard: Yard) -> None:
    """Trees are read from packs and their deltas, as from loose objects."""

    def build(repository: Path) -> None:
        for number in range(60):
            (repository / f"d{number}").mkdir(parents=True)
            for name in range(8):
                (repository / f"d{number}" / f"f{name}.txt").write_text(f"{number % 7} {name}\n")
        _with_build_outputs(repository)
        (repository / "d5" / "x.o").write_text("untracked")
        (repository / "d6" / "f0.txt").write_text("uncommitted change\n")

    def packed(repository: Path) -> None:
        build(repository)
        git(repository, "repack", "-q", "-a", "-d", "-f", "--depth=50", "--window=50")

    loose_base = yard.record(yard.layer(build))
    base = yard.record(yard.layer(packed))
    assert base.untracked == loose_base.untracked
    assert base.untracked not in (None, base.tree)
    assert not base.notes
    assert base.uncommitted


def test_base_with_nothing_untracked_says_so(yard: Yard) -> None:
    """A clean checkout needs no second index."""
    base = yard.record(yard.layer(_committed))
    assert base.untracked == EMPTY_TREE.hex()
    assert [file.stem for file in yard.collector.store.bases.iterdir()] == [base.tree]
