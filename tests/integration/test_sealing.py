"""Sealed history: an attempt finds no trace of what came after the base commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.errors import WorkspaceError
from forkyard.model.ids import WorkspaceId
from forkyard.model.workspace import RepositorySource, Snapshot, SnapshotState
from forkyard.workspace.sealed_repository import verify
from station import Station, git, make_repository, station

pytestmark = pytest.mark.anyio

SECRET = "THE_FUTURE_FIX"  # noqa: S105 - the text that must not be found


@pytest.fixture
async def here(home: Path) -> AsyncIterator[Station]:
    """Give the services over an empty state directory."""
    async with station(home) as opened:
        yield opened


def poison(source: Path) -> str:
    """Hide the future fix in every place where git keeps things; give the base commit."""
    base = git(source, "rev-parse", "HEAD")

    def fix(text: str) -> None:
        (source / "a.txt").write_text(f"{SECRET} {text}\n")
        git(source, "commit", "-qam", f"{SECRET} {text}")

    git(source, "checkout", "-qb", "future")
    fix("on a branch")
    git(source, "tag", "v9", "-m", SECRET)
    git(source, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(source, "remote", "add", f"origin-{SECRET}", "https://example.invalid/repo")
    fix("unreachable")
    git(source, "reset", "-q", "--hard", "HEAD~1")
    git(source, "checkout", "-q", "main")
    git(source, "notes", "add", "-m", SECRET, base)
    (source / "a.txt").write_text(f"{SECRET} stashed\n")
    git(source, "stash", "-q")
    git(source, "merge", "-q", "--no-ff", "future", "-m", SECRET)
    git(source, "reset", "-q", "--hard", base)  # leaves ORIG_HEAD and reflog entries
    git(source, "fetch", "-q", ".", "future")  # leaves FETCH_HEAD
    git(source, "pack-refs", "--all")
    git(source, "repack", "-q", "-a", "-d", "-A")
    (source / ".git/hooks").mkdir(exist_ok=True)
    (source / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\necho {SECRET}\n")
    (source / ".git/COMMIT_EDITMSG").write_text(SECRET)
    return base


async def fork_sealed(here: Station, snapshot: Snapshot) -> tuple[Snapshot, WorkspaceId]:
    """Seal a snapshot and fork it."""
    sealed = await here.snapshots.sealed(snapshot)
    fork = await here.workspaces.create(sealed.id)
    return sealed, fork.id


async def test_nothing_of_the_future_is_found_when_history_is_sealed(
    here: Station, tmp_path: Path
) -> None:
    """No branch, tag, stash, note, reflog, remote, hook or unreachable object tells of it."""
    source = make_repository(tmp_path / "src")
    base = poison(source)
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    open_fork = await here.workspaces.create(snapshot.id)
    assert SECRET in await here.run(open_fork.id, "git log --all --oneline")

    sealed, inside = await fork_sealed(here, snapshot)
    assert sealed.sealed_of == snapshot.id
    assert sealed.base == snapshot.base
    for search in (
        f"git log --all --oneline -S{SECRET}",
        f"git log --all --oneline --grep={SECRET}",
        "git fsck --full --strict --unreachable --lost-found --no-progress | grep -v notice",
        "git reflog --all",
        "git stash list",
        "git tag",
        "git remote",
        "git notes list",
        f"grep -rl {SECRET} . || true",
        "find .git -name '*_HEAD' -o -name logs -o -name 'hooks' -o -name packed-refs",
        (
            "git cat-file --batch-all-objects --batch-check='%(objectname)' |"
            f" while read o; do git cat-file -p $o; done | grep -a {SECRET} || true"
        ),
    ):
        done, text = await here.shell(inside, search)
        assert text == "", search
        assert done.result is not None
    assert await here.run(inside, "git rev-parse HEAD; git branch -a; git status --short") == (
        f"{base}\n* main\n"
    )
    reached = await here.run(inside, "git rev-list --objects --no-object-names HEAD | sort")
    held = await here.run(
        inside, "git cat-file --batch-all-objects --batch-check='%(objectname)' | sort"
    )
    assert reached == held
    assert "one" in await here.run(inside, "git show HEAD~1:a.txt")
    await here.run(
        inside,
        "git checkout -qb work && echo x > n && git add n && git -c"
        " user.name=a -c user.email=b commit -qm mine && git log --oneline | wc -l",
    )


async def test_uncommitted_work_is_as_it_was_when_history_is_sealed(
    here: Station, tmp_path: Path
) -> None:
    """Only the history is replaced: every file of the tree keeps its bytes."""
    source = make_repository(tmp_path / "src")
    (source / "a.txt").write_text("dirty\n")
    (source / "new.txt").write_text("untracked\n")
    (source / "pkg/old.py").unlink()
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    _, fork = await fork_sealed(here, snapshot)
    said = await here.run(fork, "git status --short; cat a.txt new.txt")
    assert said == " M a.txt\n D pkg/old.py\n?? new.txt\ndirty\nuntracked\n"


async def test_an_agent_can_commit_when_history_is_sealed(here: Station, tmp_path: Path) -> None:
    """Git wants a name for it, and the user's own settings are nowhere inside."""
    source = make_repository(tmp_path / "src")
    snapshot = await here.snapshot_of(RepositorySource(path=str(source)))
    _, fork = await fork_sealed(here, snapshot)
    await here.run(fork, "echo x > new; git add new; git commit -qm mine")
    assert await here.run(fork, "git log -1 --format='%an %ae'") == "agent agent@localhost\n"


async def test_one_sealed_snapshot_is_made_when_many_ask(here: Station, tmp_path: Path) -> None:
    """It is cached, goes with its snapshot, and leaves nothing."""
    source = make_repository(tmp_path / "src")
    snapshot = await here.snapshot_of(RepositorySource(path=str(source)))
    sealed = await asyncio.gather(*(here.snapshots.sealed(snapshot) for _ in range(5)))
    assert len({row.id for row in sealed}) == 1
    assert await here.snapshots.sealed(sealed[0]) == sealed[0]
    assert here.left()["workspaces"] == []
    await here.snapshots.delete(snapshot.id)
    assert here.journal.state.snapshots[sealed[0].id].state is SnapshotState.DELETED
    assert here.left() == {"layers": [], "workspaces": [], "trash": []}


async def test_a_shallow_base_is_sealed_when_the_source_is_shallow(
    here: Station, tmp_path: Path
) -> None:
    """The boundary stays where it was, and git inside is content with it."""
    make_repository(tmp_path / "src")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}/src", "shallow")
    snapshot = await here.snapshot_of(
        RepositorySource(path=str(tmp_path / "shallow"), include_uncommitted=True)
    )
    _, fork = await fork_sealed(here, snapshot)
    said = await here.run(fork, "git log --oneline | wc -l; git fsck 2>&1; git status -s")
    assert said == "1\n"


async def test_history_is_empty_when_the_base_commit_is_unknown(
    here: Station, tmp_path: Path
) -> None:
    """A repository without commits yields a fresh one; a folder without .git stays without."""
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    git(fresh, "init", "-q")
    (fresh / "f").write_text("x")
    snapshot = await here.snapshot_of(RepositorySource(path=str(fresh), include_uncommitted=True))
    assert snapshot.base is not None
    assert snapshot.base.commit is None
    _, fork = await fork_sealed(here, snapshot)
    assert await here.run(fork, "git status --short; cat f") == "?? f\nx"
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "f").write_text("y")
    snapshot = await here.snapshot_of(
        RepositorySource(path=str(plain), include_uncommitted=True), name="p"
    )
    assert await here.snapshots.sealed(snapshot) == snapshot


async def test_sealing_is_refused_when_objects_are_missing(here: Station, tmp_path: Path) -> None:
    """A damaged history gives a clear error, no snapshot and no leftovers."""
    source = make_repository(tmp_path / "src")
    first = git(source, "rev-parse", "HEAD~1")
    (source / ".git/objects" / first[:2] / first[2:]).unlink()
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    before = here.left()
    assert snapshot.base is not None
    assert snapshot.base.commit is not None
    with pytest.raises(WorkspaceError, match="cannot seal"):
        await here.snapshots.sealed(snapshot)
    assert here.left() == before
    states = {row.state for row in here.journal.state.snapshots.values() if row.sealed_of}
    assert states == {SnapshotState.FAILED}


async def test_git_works_when_a_sealed_repository_has_submodules(
    here: Station, tmp_path: Path
) -> None:
    """Their files stay; their histories are gone, and no command of git stumbles over that."""
    source, library = make_repository(tmp_path / "src"), make_repository(tmp_path / "lib")
    git(library, "branch", SECRET)
    allow = ("-c", "protocol.file.allow=always")
    git(source, *allow, "submodule", "add", "-q", str(library), "deep/vendor")
    git(source, "commit", "-qm", "submodule")
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    _, fork = await fork_sealed(here, snapshot)
    assert await here.run(fork, "git status --short; cat deep/vendor/a.txt") == "two\n"
    said = await here.run(fork, "echo x >> a.txt; git add -A && git diff --cached --name-only")
    assert said == "a.txt\n"
    assert await here.run(fork, f"grep -rl {SECRET} . || true") == ""


async def test_nested_repositories_tell_nothing_when_history_is_sealed(
    here: Station, tmp_path: Path
) -> None:
    """A second clone, a linked worktree, a hidden one, one in an upper layer: files stay."""
    source = make_repository(tmp_path / "src")
    poison(source)
    for place in ("copy", "deep/er/copy"):
        git(source, "clone", "-q", str(source), str(source / place))
        git(source / place, "fetch", "-q", "origin", "future")
    git(source, "worktree", "add", "-q", "--detach", "linked", "future~1")
    (source / "linked/a.txt").write_text("two\n")
    (source / "by link").mkdir()
    (source / "by link/.git").symlink_to("../copy/.git")
    snapshot = await here.snapshot_of(RepositorySource(path=str(source), include_uncommitted=True))
    made = await here.workspaces.create(snapshot.id)
    await here.run(made.id, "rm -rf copy/.git; git init -q later; cd later; git fetch -q .. future")
    await here.workspaces.stop(made.id)
    above = await here.snapshots.create("above", made.id)
    for start in (snapshot, above):
        _, fork = await fork_sealed(here, start)
        assert await here.run(fork, "find . -name .git | sort") == "./.git\n"
        assert await here.run(fork, f"grep -rl {SECRET} . || true") == ""
        assert (
            await here.run(fork, "git -C copy log --all --format=%s | sort -u") == "first\nsecond\n"
        )
        assert await here.run(fork, "cat copy/a.txt deep/er/copy/a.txt") == "two\ntwo\n"
        said = await here.run(fork, "echo x >> copy/a.txt; git add -A copy && git status -s copy")
        assert "A  copy/a.txt" in said


async def test_an_object_too_many_is_noticed_when_a_pack_is_verified(tmp_path: Path) -> None:
    """What a sandbox packed beyond the base commit's history is refused."""
    source = make_repository(tmp_path / "src")
    base = git(source, "rev-parse", "HEAD")
    await verify(source / ".git", base)
    (source / "extra").write_text("extra")
    git(source, "hash-object", "-w", "extra")
    with pytest.raises(WorkspaceError, match="1 objects are not part"):
        await verify(source / ".git", base)
