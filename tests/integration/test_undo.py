"""Taking an applied candidate back: every path or none, also when killed on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from applying import BASE, RESULT, Bench, contents, lay, picture, run
from forkyard.errors import ConflictError, WorkspaceError
from forkyard.model.application import ApplicationState
from forkyard.promotion import staging

pytestmark = pytest.mark.anyio


async def test_touches_nothing_when_asked_what_it_would_do(bench: Bench) -> None:
    """A dry run compares, and says what refuses."""
    done = await bench.applications.apply_to_tree(
        await bench.candidate(BASE, RESULT), _laid(bench.tree)
    )
    before = picture(bench.tree)
    assert await bench.applications.undo(done.id, is_dry=True) == done
    assert before == picture(bench.tree)
    (bench.tree / "new/empty").write_text("no longer")
    with pytest.raises(ConflictError, match="'new/empty' has other content"):
        await bench.applications.undo(done.id, is_dry=True)


def _laid(tree: Path) -> Path:
    lay(tree, BASE)
    return tree


EDITS = {
    "a changed file is edited": lambda t: (t / "edit.txt").write_text("mine"),
    "a changed file is gone": lambda t: (t / "edit.txt").unlink(),
    "a new file is edited": lambda t: (t / "new/-dash").write_text("mine"),
    "a new file became a link": lambda t: (
        (t / "new/-dash").unlink(),
        (t / "new/-dash").symlink_to("/etc/passwd"),
    ),
    "a deleted file is there again": lambda t: (
        (t / "gone/deep").mkdir(parents=True),
        (t / "gone/deep/a").write_text("mine"),
    ),
    "a folder became a link": lambda t: (
        (t / "new").rename(t / "elsewhere"),
        (t / "new").symlink_to("elsewhere"),
    ),
    "only the x-bit was changed": lambda t: (t / "script").chmod(0o644),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_refuses_before_touching_anything_when_one_path_was_changed_since(
    bench: Bench, edit: object
) -> None:
    """One changed path refuses all of them; the application stays applied."""
    done = await bench.applications.apply_to_tree(
        await bench.candidate(BASE, RESULT), _laid(bench.tree)
    )
    assert callable(edit)
    edit(bench.tree)
    before = picture(bench.tree)
    with pytest.raises(ConflictError, match="not as it was applied"):
        await bench.applications.undo(done.id)
    assert before == picture(bench.tree)
    assert bench.journal.state.applications[done.id] == done


async def test_undoes_one_after_the_other_when_two_were_applied(bench: Bench) -> None:
    """The later one must go first; then the tree is as it was before both."""
    lay(bench.tree, BASE)
    before = picture(bench.tree)
    third = {**RESULT, "edit.txt": ("100644", b"third")}
    first = await bench.applications.apply_to_tree(await bench.candidate(BASE, RESULT), bench.tree)
    second = await bench.applications.apply_to_tree(
        await bench.candidate(RESULT, third), bench.tree
    )
    with pytest.raises(ConflictError, match=r"'edit\.txt' has other content"):
        await bench.applications.undo(first.id)
    await bench.applications.undo(second.id)
    await bench.applications.undo(first.id)
    assert before == picture(bench.tree)


async def test_says_so_when_the_record_is_gone(bench: Bench) -> None:
    """Without what lay there before, nothing is touched."""
    done = await bench.applications.apply_to_tree(
        await bench.candidate(BASE, RESULT), _laid(bench.tree)
    )
    (bench.layout.runs / "applications" / done.id / "plan.json").unlink()
    with pytest.raises(ConflictError, match="the record of what lay there before is gone"):
        await bench.applications.undo(done.id)
    assert contents(bench.tree) == RESULT


async def test_stays_applied_when_the_disk_is_full(bench: Bench, tmp_path: Path) -> None:
    """What is to come back is laid ready first; there is no room, so no path changes."""
    small = tmp_path / "small"
    small.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(small)])
    try:
        base = {**BASE, "zz-large": ("100644", b"x" * 300_000)}
        lay(small, base)
        done = await bench.applications.apply_to_tree(await bench.candidate(base, RESULT), small)
        (small / "filler").write_bytes(b"f" * 200_000)
        before = picture(small)
        with pytest.raises(WorkspaceError, match=r"No space left .*nothing was changed"):
            await bench.applications.undo(done.id)
        assert before == picture(small)
        assert bench.journal.state.applications[done.id].state is ApplicationState.APPLIED
        (small / "filler").unlink()
        await bench.applications.undo(done.id)
        assert contents(small) == base
    finally:
        run(["umount", str(small)])


async def test_leaves_an_edit_alone_when_it_is_saved_in_the_last_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that saves between the comparison and the swap wins, and is named."""
    done = await bench.applications.apply_to_tree(
        await bench.candidate(BASE, RESULT), _laid(bench.tree)
    )
    move = staging.move

    def saved_before(old_folder: int, old: bytes, new_folder: int, new: bytes) -> None:
        if new.startswith(b"taken") and old in {b"edit.txt", b"-dash"}:
            descriptor = os.open(old, os.O_WRONLY | os.O_TRUNC, dir_fd=old_folder)
            os.write(descriptor, b"saved just now")
            os.close(descriptor)
        move(old_folder, old, new_folder, new)

    monkeypatch.setattr(staging, "move", saved_before)
    undone = await bench.applications.undo(done.id)
    assert set(undone.left) == {"edit.txt", "new/-dash"}
    saved = ("100644", b"saved just now")
    assert contents(bench.tree) == {**BASE, "edit.txt": saved, "new/-dash": saved}
    assert not list(bench.tree.glob(".forkyard*"))


async def test_goes_on_when_an_earlier_way_back_did_not_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in the middle leaves `writing`; undoing again ends it, and applying is refused."""
    lay(bench.tree, BASE)
    before = picture(bench.tree)
    candidate = await bench.candidate(BASE, RESULT)
    done = await bench.applications.apply_to_tree(candidate, bench.tree)

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(staging, "sync_folders", broken)
    with pytest.raises(WorkspaceError, match="Input/output error"):
        await bench.applications.undo(done.id)
    monkeypatch.undo()
    with pytest.raises(ConflictError, match="its way back was not finished"):
        await bench.applications.apply_to_tree(candidate, bench.tree)
    undone = await bench.applications.undo(done.id)
    assert undone.state is ApplicationState.UNDONE
    assert before == picture(bench.tree)
