"""Taking repositories over: byte for byte, whatever state they are in, never writing to them."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.config import Layout
from forkyard.errors import UserError, WorkspaceError
from forkyard.model.workspace import RepositorySource
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.workspace.repository import Importer
from station import git, make_repository

pytestmark = pytest.mark.anyio


@pytest.fixture
def said() -> list[str]:
    """Collect what the importer says."""
    return []


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    """Give an importer whose own state lies beside."""
    (tmp_path / "state").mkdir()
    return Importer(Layout(tmp_path / "state"))


def entries(root: Path) -> Iterator[tuple[str, str]]:
    """Describe every entry of a tree: kind, permissions, and content or target."""
    for parent, folders, files in os.walk(root):
        for name in sorted((*folders, *files)):
            path = Path(parent) / name
            facts = path.lstat()
            relative = str(path.relative_to(root))
            if stat.S_ISLNK(facts.st_mode):
                yield relative, f"link {path.readlink()}"
            elif stat.S_ISDIR(facts.st_mode):
                yield relative, f"folder {stat.S_IMODE(facts.st_mode):o}"
            elif stat.S_ISREG(facts.st_mode):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                yield relative, f"file {stat.S_IMODE(facts.st_mode):o} {facts.st_mtime_ns} {digest}"


def access_times(root: Path) -> dict[str, tuple[int, int]]:
    """Note when anything of a tree was changed."""
    return {
        str(path): (path.lstat().st_ctime_ns, path.lstat().st_mtime_ns)
        for path in (root, *root.rglob("*"))
    }


def make_dirty(source: Path) -> None:
    """Bring a repository into every kind of uncommitted state."""
    (source / "a.txt").write_text("staged\n")
    git(source, "add", "a.txt")
    (source / "a.txt").write_text("staged, then changed\n")
    (source / "pkg/old.py").unlink()
    (source / "untracked.txt").write_text("new\n")
    (source / "ignored.log").write_text("ignored\n")
    (source / "empty").mkdir()
    (source / "link").symlink_to("/etc/passwd")
    (source / "dangling").symlink_to("nowhere")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "readonly").write_text("r")
    (source / "readonly").chmod(0o444)
    (source / "setuid").write_text("s")
    (source / "setuid").chmod(0o4755)
    (source / os.fsdecode(b"bad-\xff-name")).write_text("bytes")
    with (source / "sparse").open("wb") as file:
        file.truncate(50_000_000)


async def test_every_byte_is_taken_when_a_tree_is_dirty(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """Staged, unstaged, untracked and ignored, links as links; the source is not touched."""
    source, target = make_repository(tmp_path / "src"), tmp_path / "repo"
    make_dirty(source)
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "sock"))
    before = access_times(source)
    assert await importer.take(
        RepositorySource(path=str(source), include_uncommitted=True), target, said.append
    ) == str(source)
    assert access_times(source) == before
    expected = {name: what.replace("4755", "755") for name, what in entries(source)}
    assert dict(entries(target)) == expected
    assert git(source, "status", "--porcelain") == git(target, "status", "--porcelain")
    owners = {path.lstat().st_uid for path in (target, *target.rglob("*"))}
    assert owners == {STORAGE_USER_ID}
    text = "\n".join(said)
    assert "1 staged, 2 modified, 8 untracked" in text
    assert "not taken: pipe" in text
    assert "not taken: sock" in text
    assert (target / "sparse").stat().st_blocks < 10_000


async def test_the_commit_alone_is_taken_when_uncommitted_work_is_not_asked_for(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """A clean tree at HEAD, with branches, tags and remotes, and no trace of uncommitted work."""
    source, target = make_repository(tmp_path / "src"), tmp_path / "repo"
    git(source, "branch", "other", "HEAD~1")
    git(source, "tag", "v1")
    git(source, "remote", "add", "origin", "https://user:secret@example.invalid/r.git")
    git(source, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    make_dirty(source)
    await importer.take(RepositorySource(path=str(source)), target, said.append)
    assert git(target, "status", "--porcelain") == ""
    assert git(target, "rev-parse", "HEAD") == git(source, "rev-parse", "HEAD")
    assert git(target, "branch", "--show-current") == "main"
    assert git(target, "tag") == "v1"
    assert sorted(git(target, "branch", "-a", "--format=%(refname)").split()) == [
        "refs/heads/main",
        "refs/heads/other",
        "refs/remotes/origin/main",
    ]
    assert git(target, "remote", "get-url", "origin") == "https://example.invalid/r.git"
    assert "secret" not in (target / ".git/config").read_text()
    assert not (target / "untracked.txt").exists()
    assert {path.lstat().st_uid for path in target.rglob("*")} == {STORAGE_USER_ID}


async def test_a_detached_head_and_a_shallow_clone_are_taken_when_given(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """Both ways of taking work for each."""
    source = make_repository(tmp_path / "src")
    git(source, "checkout", "-q", "--detach", "HEAD~1")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{source}", "shallow")
    for number, path in enumerate((source, tmp_path / "shallow")):
        for uncommitted in (False, True):
            target = tmp_path / f"repo{number}{uncommitted}"
            asked = RepositorySource(path=str(path), include_uncommitted=uncommitted)
            await importer.take(asked, target, said.append)
            assert git(target, "rev-parse", "HEAD") == git(path, "rev-parse", "HEAD")
            assert git(target, "status", "--porcelain") == ""
            assert git(target, "fsck") == ""


@pytest.mark.parametrize("uncommitted", [True, False])
async def test_what_cannot_be_taken_is_refused_when_laid_out_elsewhere(
    importer: Importer, tmp_path: Path, said: list[str], *, uncommitted: bool
) -> None:
    """Lost worktrees, links and missing folders get one clear sentence each."""
    source = make_repository(tmp_path / "src")
    git(source, "worktree", "add", "-q", str(tmp_path / "tree"), "HEAD~1")
    (tmp_path / "tree/.git").write_text("gitdir: /nowhere\n")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / ".git").symlink_to(source / ".git")
    for path, words in (
        (tmp_path / "tree", "the repository that it names is not there"),
        (linked, "is a link"),
        (tmp_path / "absent", "no such folder"),
    ):
        asked = RepositorySource(path=str(path), include_uncommitted=uncommitted)
        with pytest.raises(UserError, match=words):
            await importer.take(asked, tmp_path / "repo", said.append)


@pytest.mark.parametrize("uncommitted", [True, False])
async def test_a_linked_worktree_is_taken_with_its_own_history(
    importer: Importer, tmp_path: Path, said: list[str], *, uncommitted: bool
) -> None:
    """Its commit, its branch and the repository's branches; its files, and a .git of their own."""
    source, tree, target = make_repository(tmp_path / "src"), tmp_path / "tree", tmp_path / "repo"
    git(source, "worktree", "add", "-q", "-b", "side", str(tree), "HEAD~1")
    (tree / "new.txt").write_text("new")
    (tree / "added.txt").write_text("added")
    git(tree, "add", "added.txt")
    before = git(tree, "status", "--porcelain")
    asked = RepositorySource(path=str(tree), include_uncommitted=uncommitted)
    assert await importer.take(asked, target, said.append) == str(tree)
    assert (target / ".git").is_dir()
    assert git(target, "rev-parse", "HEAD") == git(source, "rev-parse", "HEAD~1")
    assert git(target, "branch", "--show-current") == "side"
    assert git(target, "rev-parse", "main") == git(source, "rev-parse", "main")
    expected = "?? added.txt\n?? new.txt" if uncommitted else ""
    assert git(target, "status", "--porcelain") == expected
    assert git(tree, "status", "--porcelain") == before
    assert {path.lstat().st_uid for path in (target, *target.rglob("*"))} == {STORAGE_USER_ID}


async def test_another_revision_is_taken_when_it_is_asked_for(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """A branch, a tag, a commit; with a depth no more history than that."""
    source = make_repository(tmp_path / "src")
    git(source, "branch", "side", "HEAD~1")
    git(source, "tag", "v1", "HEAD~1")
    old, head = git(source, "rev-parse", "HEAD~1"), git(source, "rev-parse", "HEAD")
    for number, (asked, commit, branch) in enumerate(
        (
            (RepositorySource(path=str(source), branch="side"), old, "side"),
            (RepositorySource(path=str(source), checkout="side"), old, "side"),
            (RepositorySource(path=str(source), checkout="v1"), old, ""),
            (RepositorySource(path=str(source), checkout=old), old, ""),
            (RepositorySource(path=str(source), depth=1), head, "main"),
        )
    ):
        target = tmp_path / f"repo{number}"
        await importer.take(asked, target, said.append)
        assert git(target, "rev-parse", "HEAD") == commit
        assert git(target, "branch", "--show-current") == branch
        assert git(target, "status", "--porcelain") == ""
    assert git(tmp_path / "repo4", "rev-list", "--count", "HEAD") == "1"
    with pytest.raises(UserError, match="has no branch, tag or commit v9"):
        await importer.take(
            RepositorySource(path=str(source), checkout="v9"), tmp_path / "no", said.append
        )


async def test_folders_without_history_are_taken_when_asked_for_as_they_are(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """No git repository, and one without commits: their files, or what to ask for instead."""
    plain, fresh = tmp_path / "plain", tmp_path / "fresh"
    for path in (plain, fresh):
        path.mkdir()
        (path / "f").write_text("x")
    git(fresh, "init", "-q")
    for path, words in ((plain, "it is no git repository"), (fresh, "it has no commit yet")):
        with pytest.raises(UserError, match=words):
            await importer.take(RepositorySource(path=str(path)), tmp_path / "no", said.append)
        target = tmp_path / f"{path.name}-taken"
        asked = RepositorySource(path=str(path), include_uncommitted=True)
        await importer.take(asked, target, said.append)
        assert (target / "f").read_text() == "x"


async def test_borrowed_objects_are_refused_when_no_fork_could_see_them(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """A clone with alternates: refused as it lies, whole when its commit is taken."""
    make_repository(tmp_path / "src")
    git(tmp_path, "clone", "-q", "-s", "src", "borrower")
    asked = RepositorySource(path=str(tmp_path / "borrower"), include_uncommitted=True)
    with pytest.raises(UserError, match="borrows objects"):
        await importer.take(asked, tmp_path / "no", said.append)
    target = tmp_path / "repo"
    await importer.take(RepositorySource(path=str(tmp_path / "borrower")), target, said.append)
    assert not (target / ".git/objects/info/alternates").exists()
    assert git(target, "fsck") == ""


async def test_our_own_state_is_left_out_when_it_lies_in_the_tree(
    tmp_path: Path, said: list[str]
) -> None:
    """A state directory inside the repository is not copied into itself."""
    source = make_repository(tmp_path / "src")
    state = source / "state"
    (state / "layers").mkdir(parents=True)
    asked = RepositorySource(path=str(source), include_uncommitted=True)
    await Importer(Layout(state)).take(asked, state / "layers/repo", said.append)
    assert not (state / "layers/repo/state").exists()
    assert (state / "layers/repo/a.txt").exists()
    assert any("Forkyard's own state" in line for line in said)


async def test_the_copy_is_one_that_existed_when_the_tree_is_edited_meanwhile(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """Two files that are always written alike are alike in the copy, or an error says why."""
    source = make_repository(tmp_path / "src")
    for number in range(300):
        (source / f"filler{number}").write_text("x" * 10_000)
    first, last = source / "0-first", source / "z-last"
    stop = threading.Event()

    def edit() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for path in (first, last):
                path.write_text(f"{number}\n" * 1000)
            stop.wait(0.05)

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        asked = RepositorySource(path=str(source), include_uncommitted=True)
        try:
            await importer.take(asked, tmp_path / "repo", said.append)
        except WorkspaceError as error:
            assert "keeps changing" in error.message  # noqa: PT017 - either outcome is right
        else:
            texts = [(tmp_path / "repo" / path.name).read_text() for path in (first, last)]
            assert len(set(texts[0].split())) == 1
            assert abs(int(texts[0].split()[0]) - int(texts[1].split()[0])) <= 1
    finally:
        stop.set()
        editor.join()


async def test_no_program_of_the_source_runs_when_it_is_looked_at(
    importer: Importer, tmp_path: Path, said: list[str]
) -> None:
    """Hooks and fsmonitor of the user's repository stay quiet."""
    source = make_repository(tmp_path / "src")
    canary = tmp_path / "canary"
    hook = source / ".git/hooks"
    hook.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor"):
        (hook / name).write_text(f"#!/bin/sh\necho {name} >> {canary}\n")
        (hook / name).chmod(0o755)
    git(source, "config", "core.fsmonitor", str(hook / "fsmonitor"))
    for uncommitted in (True, False):
        asked = RepositorySource(path=str(source), include_uncommitted=uncommitted)
        await importer.take(asked, tmp_path / f"repo{uncommitted}", said.append)
    assert not canary.exists()


async def test_a_filter_gets_its_owners_rights_when_it_must_run(
    importer: Importer, said: list[str]
) -> None:
    """Counting what is uncommitted may run the user's own filters, but never as root."""
    folder = Path(tempfile.mkdtemp(prefix="fy-", dir="/srv"))
    try:
        folder.chmod(0o777)
        source = make_repository(folder / "src")
        git(source, "config", "filter.tell.clean", f"id -u >> {folder}/canary; cat")
        (source / ".gitattributes").write_text("*.txt filter=tell\n")
        (source / "a.txt").write_text("six\n")
        for path in (source, *source.rglob("*")):
            os.chown(path, 12345, 12345, follow_symlinks=False)
        asked = RepositorySource(path=str(source), include_uncommitted=True)
        await importer.take(asked, folder / "repo", said.append)
        assert set((folder / "canary").read_text().split()) == {"12345"}
        assert "1 modified, 1 untracked" in said[0]
    finally:
        shutil.rmtree(folder)


async def test_ignored_files_come_along_when_a_worktreeinclude_names_them(
    tmp_path: Path, importer: Importer, said: list[str]
) -> None:
    """Only what is both ignored and named; never through a link, never over the commit's own."""
    source = make_repository(tmp_path / "repo")
    (source / "kept.env").write_text("commit\n")
    git(source, "add", "kept.env")
    git(source, "commit", "-qm", "third")
    (source / ".gitignore").write_text("*.env\nbuild/\nconf/local\nlinked\n")
    (source / ".worktreeinclude").write_text("# local settings\n*.env\nconf/\nlinked\nplain\n")
    for name in ("a.env", "deep/b.env", "build/out", "conf/local", "plain"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(f"{name}\n")
    (source / "kept.env").write_text("edited\n")
    (source / "linked").symlink_to("/etc/shadow")

    target = tmp_path / "layer"
    await importer.take(RepositorySource(path=str(source)), target, said.append)

    taken = {one for one, _ in entries(target) if not one.startswith(".git/")}
    assert {"a.env", "deep/b.env", "conf/local", "linked"} <= taken
    assert not taken & {"plain", "build", "build/out"}
    assert (target / "kept.env").read_text() == "commit\n"
    assert (target / "linked").is_symlink()
    assert (target / "deep").stat().st_uid == STORAGE_USER_ID
    assert any("a.env, conf/local, deep/b.env, linked" in one for one in said)


async def test_the_commit_alone_is_taken_when_the_worktreeinclude_is_a_link(
    tmp_path: Path, importer: Importer, said: list[str]
) -> None:
    """A list that is no file is refused, not followed."""
    source = make_repository(tmp_path / "repo")
    (source / ".worktreeinclude").symlink_to("a.txt")

    with pytest.raises(UserError, match="no ordinary file"):
        await importer.take(RepositorySource(path=str(source)), tmp_path / "layer", said.append)
