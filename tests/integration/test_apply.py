"""Applying a candidate to a real folder: compared first, whole or not at all, with a way back."""

from __future__ import annotations

import asyncio
import os
import random
import stat
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
    run,
)
from forkyard.errors import ConflictError, NotFoundError, WorkspaceError
from forkyard.model.application import ApplicationState

pytestmark = pytest.mark.anyio


async def test_writes_every_kind_of_change_when_the_tree_is_as_recorded(bench: Bench) -> None:
    """The bytes on disk equal the candidate's; what is beside them stays; nothing of ours."""
    lay(bench.tree, BASE)
    beside = {"untracked.txt": ("100644", b"mine"), "new/mine": ("100644", b"mine too")}
    lay(bench.tree, beside)
    done = await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    assert ApplicationState.APPLIED is done.state
    assert {**RESULT, **beside} == contents(bench.tree)
    assert not list(bench.tree.glob(".forkyard*"))
    assert not (bench.tree / "gone").exists()


async def test_brings_everything_back_when_an_application_is_undone(bench: Bench) -> None:
    """Modes, owners and folders too."""
    lay(bench.tree, BASE)
    (bench.tree / "edit.txt").chmod(0o664)
    (bench.tree / "gone/deep").chmod(0o750)
    os.chown(bench.tree / "gone/deep/a", 1234, 2345)
    before = picture(bench.tree)
    done = await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    assert before != picture(bench.tree)
    undone = await bench.applications.undo(done.id)
    assert ApplicationState.UNDONE is undone.state
    assert before == picture(bench.tree)
    with pytest.raises(ConflictError, match="it is undone already"):
        await bench.applications.undo(done.id)


async def test_refuses_to_undo_when_a_path_was_edited_since(bench: Bench) -> None:
    """Going back must not cost what the user did afterwards."""
    lay(bench.tree, BASE)
    done = await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    (bench.tree / "edit.txt").write_text("my own edit")
    before = picture(bench.tree)
    with pytest.raises(ConflictError, match=r"'edit\.txt' has other content"):
        await bench.applications.undo(done.id)
    assert before == picture(bench.tree)


def _replace(path: Path, content: bytes) -> object:
    return path.write_bytes(content)


def _fifo(path: Path) -> object:
    return os.mkfifo(path, 0o600)  # type: ignore[func-returns-value]


SPOILS = {
    "other content": (
        lambda t: _replace(t / "edit.txt", b"mine"),
        r"'edit\.txt' has other content",
    ),
    "same size": (lambda t: _replace(t / "edit.txt", b"olD\n"), r"'edit\.txt' has other content"),
    "executable": (lambda t: (t / "edit.txt").chmod(0o755), "is an executable file, was a file"),
    "missing": (lambda t: (t / "edit.txt").unlink(), r"'edit\.txt' is missing"),
    "now a link": (
        lambda t: ((t / "edit.txt").rename(t / "x"), (t / "edit.txt").symlink_to("x")),
        "is a symbolic link, was a file",
    ),
    "other link": (
        lambda t: ((t / "link").unlink(), (t / "link").symlink_to("edit.txt")),
        "'link' has other content",
    ),
    "a fifo": (
        lambda t: ((t / "edit.txt").unlink(), _fifo(t / "edit.txt")),
        "is neither file nor link",
    ),
    "a folder": (
        lambda t: ((t / "edit.txt").unlink(), (t / "edit.txt").mkdir()),
        "is a folder, was a file",
    ),
    "the new path exists": (
        lambda t: ((t / "new").mkdir(), _replace(t / "new/empty", b"")),
        "'new/empty' exists already, as a file",
    ),
    "the new path is a dangling link": (
        lambda t: ((t / "new").mkdir(), (t / "new/empty").symlink_to("/nowhere")),
        "'new/empty' exists already, as a symbolic link",
    ),
    "a parent is a link": (
        lambda t: (t / "new").symlink_to("/tmp"),
        "'new/empty' lies behind a symbolic link",
    ),
    "a parent of old files is a link": (
        lambda t: ((t / "gone").rename(t / "moved"), (t / "gone").symlink_to("moved")),
        "'gone/deep/a' lies behind a symbolic link",
    ),
    "a parent is a file": (
        lambda t: _replace(t / "new", b""),
        "'new/empty' lies below something that is no folder",
    ),
    "a folder to be replaced holds more": (
        lambda t: _replace(t / "folder/to/ignored.o", b"o"),
        "'folder' is a folder that also holds 'folder/to/ignored.o'",
    ),
    "a folder to be replaced holds an empty one": (
        lambda t: (t / "folder/empty").mkdir(),
        "'folder' is a folder that also holds the empty 'folder/empty'",
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
async def test_refuses_before_touching_anything_when_the_tree_differs(
    bench: Bench, spoil: str
) -> None:
    """One path that is not as recorded keeps all of them from being written."""
    lay(bench.tree, BASE)
    act, message = SPOILS[spoil]
    act(bench.tree)  # type: ignore[no-untyped-call]
    before = picture_without_pipes(bench.tree)
    with pytest.raises(ConflictError, match=message):
        await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    assert before == picture_without_pipes(bench.tree)
    assert not bench.journal.state.applications
    assert not list((bench.layout.runs / "applications").iterdir())


def picture_without_pipes(tree: Path) -> dict[str, tuple[int, int, int, bytes, int]]:
    """Add times, so that even a rewrite with the same bytes is seen."""
    return {
        name: (*told, os.lstat(tree / name).st_mtime_ns) for name, told in picture(tree).items()
    }


async def test_refuses_a_folder_when_it_is_nested_deeper_than_any_recursion(bench: Bench) -> None:
    """A tree that was made to break whoever walks it is a difference like any other."""
    lay(bench.tree, BASE)
    nest = "import os\nfor _ in range(1500):\n os.mkdir('d')\n os.chdir('d')"
    candidate = await bench.candidate(BASE, RESULT)
    run([sys.executable, "-c", nest], folder=bench.tree / "folder/to")
    try:
        with pytest.raises(ConflictError, match="that also holds the empty 'folder/to/d/d"):
            await bench.applications.apply_to_tree(candidate, bench.tree)
    finally:
        run(["rm", "-rf", str(bench.tree / "folder")])  # deeper than Python itself can remove


async def test_lists_every_difference_when_there_are_several(bench: Bench) -> None:
    """One refusal tells all."""
    lay(bench.tree, BASE)
    (bench.tree / "edit.txt").write_text("mine")
    (bench.tree / "script").unlink()
    with pytest.raises(ConflictError, match=r"'edit\.txt' has other content, 'script' is missing"):
        await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)


async def test_gives_files_the_owner_of_the_tree_when_run_as_root(bench: Bench) -> None:
    """New ones belong to whom the tree belongs; old ones keep owner, group and permission bits."""
    lay(bench.tree, BASE)
    for folder, _, files in os.walk(bench.tree):
        os.chown(folder, 1234, 2345)
        for name in files:
            os.chown(Path(folder) / name, 1234, 2345, follow_symlinks=False)
    (bench.tree / "edit.txt").chmod(0o600)
    os.setxattr(bench.tree / "edit.txt", "user.note", b"kept")
    bench.tree.chmod(0o750)
    await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    assert {(1234, 2345)} == {told[1:3] for told in picture(bench.tree).values()}
    assert stat.S_IMODE((bench.tree / "edit.txt").stat().st_mode) == 0o600
    assert os.getxattr(bench.tree / "edit.txt", "user.note") == b"kept"
    assert stat.S_IMODE((bench.tree / "new/empty").stat().st_mode) == 0o640
    assert stat.S_IMODE((bench.tree / "new").stat().st_mode) == 0o750
    assert stat.S_IMODE((bench.tree / "script").stat().st_mode) == 0o755


async def test_writes_when_files_are_read_only(bench: Bench) -> None:
    """A generated file's 0444 is kept and is no obstacle."""
    lay(bench.tree, BASE)
    (bench.tree / "edit.txt").chmod(0o444)
    await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    assert stat.S_IMODE((bench.tree / "edit.txt").stat().st_mode) == 0o444
    assert contents(bench.tree) == RESULT


async def test_says_so_when_the_folder_does_not_exist(bench: Bench) -> None:
    """Nothing is left of the try."""
    candidate = await bench.candidate(BASE, RESULT)
    with pytest.raises(NotFoundError, match="there is no such folder"):
        await bench.applications.apply_to_tree(candidate, bench.tree / "nowhere")
    assert not bench.journal.state.applications


async def test_takes_the_way_back_when_the_disk_fills_half_way(
    bench: Bench, tmp_path: Path
) -> None:
    """A full disk is found before anything visible changes, and nothing stays of the try."""
    small = tmp_path / "small"
    small.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)])
    try:
        lay(small, BASE)
        before = picture(small)
        result = {**RESULT, "zz-large": ("100644", b"x" * 1_000_000)}
        candidate = await bench.candidate(BASE, result)
        with pytest.raises(WorkspaceError, match=r"No space left .*everything is as it was"):
            await bench.applications.apply_to_tree(candidate, small)
        assert before == picture(small)
        (application,) = bench.journal.state.applications.values()
        assert ApplicationState.UNDONE is application.state
    finally:
        run(["umount", str(small)])


async def test_keeps_an_edit_when_it_is_saved_between_comparison_and_writing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that saves in the last moment wins; the rest goes back."""
    lay(bench.tree, BASE)
    candidate = await bench.candidate(BASE, RESULT)
    append = bench.journal.append

    async def save_then_append(*arguments: object, **named: object) -> object:
        (bench.tree / "link-to-file").unlink()
        (bench.tree / "link-to-file").write_text("saved just now")
        monkeypatch.undo()
        return await append(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.journal, "append", save_then_append)
    with pytest.raises(ConflictError, match="'link-to-file' was edited meanwhile"):
        await bench.applications.apply_to_tree(candidate, bench.tree)
    expected = {**BASE, "link-to-file": ("100644", b"saved just now")}
    assert expected == contents(bench.tree)


DEEP = [pytest.param(seed, marks=pytest.mark.deep) for seed in range(30, 1500)]


@pytest.mark.parametrize("seed", [*range(30), *DEEP])
async def test_applies_and_undoes_when_trees_are_random(bench: Bench, seed: int) -> None:
    """Any tree becomes any other, and comes back."""
    chance = random.Random(seed)  # noqa: S311 - a test's own dice
    base, result = random_files(chance), random_files(chance)
    lay(bench.tree, base)
    before = picture(bench.tree)
    done = await bench.applications.apply_to_tree(await bench.candidate(base, result), bench.tree)
    assert result == contents(bench.tree), f"seed {seed}"
    await bench.applications.undo(done.id)
    assert before == picture(bench.tree), f"seed {seed}"


async def test_goes_on_to_its_end_when_the_caller_is_cancelled(bench: Bench) -> None:
    """A client that goes away does not leave a tree half written."""
    lay(bench.tree, BASE)
    candidate = await bench.candidate(BASE, RESULT)
    caller = asyncio.ensure_future(bench.applications.apply_to_tree(candidate, bench.tree))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    async with asyncio.timeout(20):
        while not any(
            a.state is ApplicationState.APPLIED for a in bench.journal.state.applications.values()
        ):
            await bench.journal.wait_for_change(bench.journal.sequence)
    assert contents(bench.tree) == RESULT
