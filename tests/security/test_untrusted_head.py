"""The base commit is read from an untrusted .git as text and checked by hash, or is unknown."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from forkyard.model.workspace import RecordedBase
from security.poison import Canary
from stopped import Yard, git


class Outcome(NamedTuple):
    """A recorded base, and what git said of the repository before it was changed."""

    base: RecordedBase
    commit: str
    repository: Path


@pytest.fixture
def yard(home: Path) -> Iterator[Yard]:
    """Give a state directory."""
    yield Yard(home)
    shutil.rmtree(home)


def _repository(repository: Path) -> None:
    (repository / "a.txt").write_text("".join(f"{n}\n" for n in range(500)))
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "one")


def _record(yard: Yard, change: Callable[[Path], None]) -> Outcome:
    seen: list[str] = []
    where: list[Path] = []

    def build(repository: Path) -> None:
        _repository(repository)
        seen.append(git(repository, "rev-parse", "HEAD").decode().strip())
        where.append(repository)
        change(repository)

    base = yard.record(yard.layer(build))
    return Outcome(base, seen[0], where[0])


def test_head_on_a_branch(yard: Yard) -> None:
    """The plain case: branch, commit, nothing uncommitted."""
    base, commit, _ = _record(yard, lambda _: None)
    assert (base.commit, base.branch, base.uncommitted) == (commit, "main", False)
    assert base.notes == ()


def test_uncommitted_work_is_seen(yard: Yard) -> None:
    """The base tree is that of the files, not of the commit."""

    def change(repository: Path) -> None:
        (repository / "new.txt").write_text("x")

    base, commit, _ = _record(yard, change)
    assert (base.commit, base.uncommitted) == (commit, True)


def test_detached_head(yard: Yard) -> None:
    """An id in HEAD is a commit without a branch."""
    base, commit, _ = _record(yard, lambda r: _quiet(git(r, "checkout", "-q", "--detach")))
    assert (base.commit, base.branch) == (commit, None)


def test_unborn_branch(yard: Yard) -> None:
    """A branch without a commit has no base commit."""
    base, _, _ = _record(yard, lambda r: _quiet(git(r, "checkout", "-q", "--orphan", "fresh")))
    assert (base.commit, base.branch) == (None, "fresh")
    assert base.notes == ("HEAD has no commit yet",)


def test_packed_references_and_objects(yard: Yard) -> None:
    """References and commits in packs, as deltas too, are found and checked."""

    def change(repository: Path) -> None:
        message = "\n".join(f"line {n} of a long message" for n in range(400))
        for number in range(12):
            git(
                repository, "commit", "-q", "--allow-empty", "-m", f"{message}\n{number}\n{message}"
            )
        git(repository, "pack-refs", "--all")
        git(repository, "repack", "-adfq", "--depth=50", "--window=50")
        git(repository, "prune-packed")

    base, _, repository = _record(yard, change)
    assert not (repository / ".git" / "refs" / "heads" / "main").exists()
    assert base.commit == git(repository, "rev-parse", "HEAD").decode().strip()
    assert (base.branch, base.uncommitted) == ("main", False)


@pytest.mark.parametrize("number", range(12))
def test_each_commit_of_a_packed_history_is_read(yard: Yard, number: int) -> None:
    """Whole objects and chains of deltas give the same as git."""

    def change(repository: Path) -> None:
        message = "\n".join(f"line {n} of a long message" for n in range(400))
        for at in range(12):
            git(repository, "commit", "-q", "--allow-empty", "-m", f"{message}\n{at}\n{message}")
        git(repository, "repack", "-adfq", "--depth=50", "--window=50")
        git(repository, "checkout", "-q", "--detach", f"HEAD~{number}")

    base, _, repository = _record(yard, change)
    assert base.commit == git(repository, "rev-parse", "HEAD").decode().strip()


def test_git_file_is_not_followed(yard: Yard) -> None:
    """A .git file may lead anywhere, so the commit is unknown."""

    def change(repository: Path) -> None:
        outside = repository.parent / "elsewhere"
        (repository / ".git").rename(outside)
        (repository / ".git").write_text(f"gitdir: {outside}\n")

    base, _, _ = _record(yard, change)
    assert base.commit is None
    assert ".git is a file" in base.notes[0]


def test_linked_git_is_not_followed(yard: Yard) -> None:
    """Nor is a link."""

    def change(repository: Path) -> None:
        (repository / ".git").rename(repository.parent / "elsewhere")
        (repository / ".git").symlink_to("../elsewhere")

    base, _, _ = _record(yard, change)
    assert base.commit is None
    assert ".git is a link" in base.notes[0]


def test_head_as_a_link_to_a_reference_is_read_as_text(yard: Yard) -> None:
    """The old form of HEAD: what the link says, not where it leads."""

    def change(repository: Path) -> None:
        (repository / ".git" / "HEAD").unlink()
        (repository / ".git" / "HEAD").symlink_to("refs/heads/main")

    base, commit, _ = _record(yard, change)
    assert (base.commit, base.branch) == (commit, "main")


@pytest.mark.parametrize("target", ["/etc/hostname", "refs/../../../a.txt", "config"])
def test_head_as_a_link_elsewhere_is_refused(yard: Yard, target: str) -> None:
    """A link that is no reference leads nowhere."""

    def change(repository: Path) -> None:
        (repository / ".git" / "HEAD").unlink()
        (repository / ".git" / "HEAD").symlink_to(target)

    base, _, _ = _record(yard, change)
    assert base.commit is None
    assert base.notes == ("the base commit is unknown: .git/HEAD is a link that leads elsewhere",)


@pytest.mark.parametrize("place", ["refs/heads/main", "refs", "objects", "packed-refs"])
def test_links_inside_git_data_are_not_followed(yard: Yard, place: str) -> None:
    """A linked reference, folder or object store is never read through."""

    def change(repository: Path) -> None:
        outside = repository.parent / "outside"
        shutil.copytree(repository / ".git", outside)
        if place == "packed-refs":
            git(repository, "pack-refs", "--all")
            shutil.move(repository / ".git" / "packed-refs", outside / "packed-refs")
        elif (repository / ".git" / place).is_dir():
            shutil.rmtree(repository / ".git" / place)
        else:
            (repository / ".git" / place).unlink()
        (repository / ".git" / place).symlink_to(outside / place)

    base, _, _ = _record(yard, change)
    assert base.commit is None
    assert base.notes


def test_alternate_object_stores_are_not_read(yard: Yard) -> None:
    """A commit that lies in another repository's store is unknown."""

    def change(repository: Path) -> None:
        outside = repository.parent / "outside"
        shutil.copytree(repository / ".git" / "objects", outside)
        shutil.rmtree(repository / ".git" / "objects")
        (repository / ".git" / "objects" / "info").mkdir(parents=True)
        (repository / ".git" / "objects" / "info" / "alternates").write_text(f"{outside}\n")

    base, _, _ = _record(yard, change)
    assert base.commit is None
    assert "alternate stores are not read" in base.notes[0]


def test_replaced_and_grafted_commits_deceive_nobody(yard: Yard) -> None:
    """Replace references and grafts are git's own business."""

    def change(repository: Path) -> None:
        head = git(repository, "rev-parse", "HEAD").decode().strip()
        (repository / "a.txt").write_text("other")
        git(repository, "commit", "-qam", "two")
        git(repository, "replace", head, "HEAD")
        git(repository, "checkout", "-q", "--detach", head)

    base, commit, _ = _record(yard, change)
    assert base.commit == commit


def test_forged_commit_is_refused(yard: Yard) -> None:
    """Bytes that do not have the hash of their name are no commit."""

    def change(repository: Path) -> None:
        head = git(repository, "rev-parse", "HEAD").decode().strip()
        other = git(repository, "commit-tree", "-m", "x", "HEAD^{tree}").decode().strip()
        objects = repository / ".git" / "objects"
        (objects / head[:2] / head[2:]).unlink()
        shutil.copy(objects / other[:2] / other[2:], objects / head[:2] / head[2:])

    base, _, _ = _record(yard, change)
    assert base.commit is None
    assert "does not have the bytes of its name" in base.notes[0]


@pytest.mark.parametrize(
    "head", [b"", b"ref: refs/heads/../../x\n", b"ref: config\n", b"\0\xff" * 10, b"a" * 100_000,
             b"b" * 64]
)  # fmt: skip
def test_nonsense_in_head_is_said(yard: Yard, head: bytes) -> None:
    """Whatever HEAD holds, the base is recorded."""
    base, _, _ = _record(yard, lambda r: _quiet((r / ".git" / "HEAD").write_bytes(head)))
    assert base.commit is None
    assert base.notes[0].startswith("the base commit is unknown")


@pytest.mark.parametrize("place", ["HEAD", "refs/heads/main", "packed-refs"])
def test_fifo_in_git_data_does_not_hang(yard: Yard, place: str) -> None:
    """Nothing of .git is opened before it is looked at."""

    def change(repository: Path) -> None:
        fifo = repository / ".git" / place
        if place == "packed-refs":
            (repository / ".git" / "refs" / "heads" / "main").unlink()
        fifo.unlink(missing_ok=True)
        subprocess.run(["mkfifo", fifo], check=True)

    base, _, _ = _record(yard, change)
    assert base.commit is None
    assert "no regular file" in base.notes[0]


def test_no_git_at_all(yard: Yard) -> None:
    """A plain folder has a base tree and no base commit."""
    base, _, _ = _record(yard, lambda r: shutil.rmtree(r / ".git"))
    assert base.commit is None
    assert base.notes == ("there is no .git: the base commit is unknown",)


def test_recording_runs_nothing(yard: Yard, tmp_path: Path) -> None:
    """Poisoned settings of a user's repository do not matter either."""
    canary = Canary(tmp_path)

    def change(repository: Path) -> None:
        with (repository / ".git" / "config").open("a") as config:
            config.write(f"[core]\n\tfsmonitor = {canary.program}\n")

    base, commit, _ = _record(yard, change)
    assert base.commit == commit
    assert not canary.has_fired


def _quiet(_: object) -> None:
    return None
