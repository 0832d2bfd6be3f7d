"""Applying a candidate to a real folder: compared first, whole or not at all, with a way back."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.config import Layout
from forkyard.errors import ConflictError, NotFoundError, WorkspaceError
from forkyard.model.application import ApplicationState
from forkyard.model.candidate import Candidate, CandidateStatus, ChangeKind, FileChange
from forkyard.model.ids import CandidateId, new_attempt_id, new_candidate_id
from forkyard.promotion.apply import Applications
from forkyard.store.journal import Journal

pytestmark = pytest.mark.anyio
Files = dict[str, tuple[str, bytes]]
"""Path to git mode and content (a link's text)."""


class Blobs:
    """The candidate store's contents, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def put(self, content: bytes) -> str:
        """Keep a content."""
        name = hashlib.sha256(content).hexdigest()
        (self.folder / name).write_bytes(content)
        return name

    async def read_blob(self, blob: str) -> bytes:
        """Give it back."""
        return (self.folder / blob).read_bytes()


def lay(tree: Path, files: Files) -> None:
    """Make a tree of files and links."""
    for name, (mode, content) in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            path.symlink_to(os.fsdecode(content))
        else:
            path.write_bytes(content)
            path.chmod(0o755 if mode == "100755" else 0o644)


def picture(tree: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Read everything that can be told of a tree: modes, owners, contents."""
    seen = {}
    for folder, folders, files in os.walk(os.fsencode(tree)):
        for name in folders + files:
            path = os.path.join(folder, name)  # noqa: PTH118 - bytes
            found = os.lstat(path)
            content = b""
            if stat.S_ISLNK(found.st_mode):
                content = os.readlink(path)  # noqa: PTH115 - bytes
            elif stat.S_ISREG(found.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            relative = os.path.relpath(path, os.fsencode(tree))
            seen[os.fsdecode(relative)] = (found.st_mode, found.st_uid, found.st_gid, content)
    return seen


def contents(tree: Path) -> Files:
    """Read a tree as git would: modes and contents, no folders."""
    files: Files = {}
    for name, (mode, _, _, content) in picture(tree).items():
        if stat.S_ISLNK(mode):
            files[name] = ("120000", content)
        elif stat.S_ISREG(mode):
            files[name] = ("100755" if mode & 0o100 else "100644", content)
    return files


def candidate_of(
    base: Files, result: Files, blobs: Blobs, status: CandidateStatus = CandidateStatus.COMPLETE
) -> Candidate:
    """Say what differs between two trees, as a collection does."""
    changes = []
    for path in sorted(base.keys() | result.keys()):
        old, new = base.get(path), result.get(path)
        if old == new:
            continue
        kind = ChangeKind.MODIFIED
        if old is None or new is None:
            kind = ChangeKind.ADDED if old is None else ChangeKind.DELETED
        changes.append(
            FileChange(
                path=path,
                kind=kind,
                old_mode=old[0] if old else None,
                new_mode=new[0] if new else None,
                old_blob=blobs.put(old[1]) if old else None,
                new_blob=blobs.put(new[1]) if new else None,
            )
        )
    return Candidate(
        id=new_candidate_id(),
        attempt=new_attempt_id(),
        status=status,
        base_tree="0" * 40,
        result_tree="1" * 40,
        patch_sha256="",
        patch_bytes=0,
        manifest_sha256="",
        created_at="",
        files=tuple(changes),
    )


def run(argv: list[str]) -> None:
    """Run a tool that must succeed."""
    subprocess.run(argv, check=True)


class Bench:
    """A state directory with a journal, and a user's tree beside it."""

    def __init__(self, tmp_path: Path) -> None:
        self.layout = Layout(tmp_path / "home")
        self.blobs = Blobs(tmp_path / "blobs")
        self.tree = tmp_path / "user's tree"
        self.tree.mkdir()
        self.open()

    def open(self) -> None:
        """Start as a server does."""
        self.journal = Journal.open(self.layout.database, SystemClock(), allow_volatile=True)
        self.applications = Applications(
            journal=self.journal, objects=self.blobs, layout=self.layout, clock=SystemClock()
        )

    async def candidate(self, base: Files, result: Files) -> CandidateId:
        """Journal a candidate."""
        candidate = candidate_of(base, result, self.blobs)
        await self.journal.append(candidate)
        return candidate.id


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio, as the server does."""
    return "asyncio"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Give a bench, its journal closed in the end."""
    bench = Bench(tmp_path)
    yield bench
    bench.journal.close()


BASE: Files = {
    "keep.txt": ("100644", b"keep\n"),
    "edit.txt": ("100644", b"old\n"),
    "script": ("100644", b"#!/bin/sh\n"),
    "gone/deep/a": ("100644", b"a"),
    "gone/deep/b": ("100755", b"b"),
    "folder/to/file": ("100644", b"x"),
    "file-to-folder": ("100644", b"y"),
    "link": ("120000", b"keep.txt"),
    "link-to-file": ("120000", b"/etc/passwd"),
    "file-to-link": ("100644", b"z"),
    "folder-of-link/l": ("120000", b"nowhere"),
}
RESULT: Files = {
    "keep.txt": ("100644", b"keep\n"),
    "edit.txt": ("100644", b"new, no newline at the end"),
    "script": ("100755", b"#!/bin/sh\n"),
    "folder": ("100644", b"was a folder"),
    "file-to-folder/inner/x": ("100755", b"inner"),
    "link": ("120000", b"edit.txt"),
    "link-to-file": ("100644", b"no link"),
    "file-to-link": ("120000", b"/etc/shadow"),
    "folder-of-link": ("120000", b"/"),
    "new/empty": ("100644", b""),
    'new/q"uote\n\ttab': ("100644", b"odd"),
    "new/-dash": ("100644", b"-"),
    "new/\udcff\udcfe": ("100644", b"\xff\x00\r\n"),
    "new/ lead b/y.txt": ("100644", b"b/"),
}


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
    with pytest.raises(ConflictError, match="it is undone, not applied"):
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


KILLED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_apply

async def main():
    bench = test_apply.Bench.__new__(test_apply.Bench)
    home = Path({home!r})
    bench.layout = test_apply.Layout(home / "home")
    bench.blobs = test_apply.Blobs(home / "blobs")
    bench.tree = home / "user's tree"
    bench.open()
    await {call}

asyncio.run(main())
"""


def _run_killed(bench: Bench, point: str, call: str) -> int:
    home = bench.tree.parent
    bench.journal.close()
    script = KILLED.format(tests=str(Path(__file__).parent), home=str(home), call=call)
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


@pytest.mark.parametrize("point", ["A11", "A11@4", "A12", "A13", "A13@6", "A14", "A15"])
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


def _random_files(chance: random.Random) -> Files:
    files: Files = {}
    names = ["a", "b", "c\n", "d e", "\udcff"]
    for _ in range(chance.randint(0, 9)):
        parts = [chance.choice(names) for _ in range(chance.randint(1, 3))]
        path = "/".join(parts)
        taken = [p for p in files if p == path or p.startswith(path + "/")]
        above = ["/".join(parts[:i]) for i in range(1, len(parts))]
        if taken or any(p in files for p in above):
            continue
        mode = chance.choice(["100644", "100644", "100755", "120000"])
        files[path] = (mode, chance.choice([b"1", b"2", b"a/b", b"x" * 4000]))
    return files


@pytest.mark.parametrize("seed", range(60))
async def test_applies_and_undoes_when_trees_are_random(bench: Bench, seed: int) -> None:
    """Any tree becomes any other, and comes back."""
    chance = random.Random(seed)  # noqa: S311 - a test's own dice
    base, result = _random_files(chance), _random_files(chance)
    lay(bench.tree, base)
    before = picture(bench.tree)
    done = await bench.applications.apply_to_tree(await bench.candidate(base, result), bench.tree)
    assert result == contents(bench.tree), f"seed {seed}"
    await bench.applications.undo(done.id)
    assert before == picture(bench.tree), f"seed {seed}"


@pytest.mark.parametrize("seed", range(12))
async def test_takes_the_way_back_when_random_trees_are_killed_anywhere(
    bench: Bench, seed: int
) -> None:
    """Random change, random moment."""
    chance = random.Random(1000 + seed)  # noqa: S311 - a test's own dice
    base, result = _random_files(chance), _random_files(chance)
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
