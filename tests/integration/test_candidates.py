"""Candidates from stopped workspaces: flags, limits, sameness, and laying them into forks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.candidate.collector import Collector
from forkyard.candidate.manifest import AttemptFacts
from forkyard.candidate.walk import WalkLimits
from forkyard.errors import WorkspaceError
from forkyard.model.candidate import Candidate, CandidateStatus, ChangeKind
from forkyard.model.ids import AttemptId, RunId
from forkyard.model.run import HeldOutFile
from forkyard.model.workspace import REPOSITORY, RecordedBase, Workspace
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.store.blobs import Blobs
from stopped import Picture, Yard, git, picture

ATTEMPT = AttemptId("att_" + "5" * 32)


def _build(repository: Path) -> None:
    for name, text in {
        "src/app.py": "x = 1\n",
        "tests/test_app.py": "assert True\n",
        "tests/unit/test_more.py": "assert 1\n",
        "conftest.py": "# the base's\n",
        "pyproject.toml": "[project]\n",
        "docs/a.md": "a\n",
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    (repository / "tests" / "test_app.py").chmod(0o640)
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "base")


class Stage:
    """A yard with one base."""

    def __init__(self, home: Path) -> None:
        """Record the base."""
        self.yard = Yard(home)
        self.layer = self.yard.layer(_build)
        self.base: RecordedBase = self.yard.record(self.layer)
        self.repository = self.yard.layout.layer(self.layer) / REPOSITORY.strip("/")

    def fork(self) -> Workspace:
        """Make a stopped workspace."""
        return self.yard.fork(self.layer)

    def look(self, workspace: Workspace) -> Picture:
        """See its files."""
        return self.yard.inside(workspace, picture)

    def restore(self, workspace: Workspace, *patterns: str) -> None:
        """Put protected files back."""
        asyncio.run(self.yard.collector.restore(workspace, self.base, patterns))


@pytest.fixture
def stage(home: Path) -> Iterator[Stage]:
    """Give a base and its yard."""
    yield Stage(home)
    shutil.rmtree(home)


def test_candidate_says_what_changed_where_and_how(stage: Stage) -> None:
    """Kinds, lines, scope, protected and control files."""
    workspace = stage.fork()

    def change(repository: Path) -> None:
        (repository / "src" / "app.py").write_text("x = 2\ny = 3\n")
        (repository / "tests" / "test_app.py").unlink()
        (repository / "pyproject.toml").write_text("[project]\nname = 'x'\n")
        (repository / "docs" / "a.md").chmod(0o755)
        (repository / ".vscode").mkdir()
        (repository / ".vscode" / "tasks.json").write_text("{}")

    stage.yard.inside(workspace, change)
    candidate = stage.yard.collect(
        workspace, stage.base, scope=("src/**",), protected=("tests/**",)
    )
    kinds = {change.path: change.kind for change in candidate.files}
    assert kinds == {
        ".vscode/tasks.json": ChangeKind.ADDED,
        "docs/a.md": ChangeKind.MODE,
        "pyproject.toml": ChangeKind.MODIFIED,
        "src/app.py": ChangeKind.MODIFIED,
        "tests/test_app.py": ChangeKind.DELETED,
    }
    app = next(change for change in candidate.files if change.path == "src/app.py")
    assert (app.added_lines, app.deleted_lines, app.size_bytes) == (2, 1, 12)
    assert set(candidate.outside_scope) == set(kinds) - {"src/app.py"}
    assert candidate.protected == ("tests/test_app.py",)
    assert candidate.control_files == (".vscode/tasks.json", "pyproject.toml")


def test_collecting_again_gives_the_same_bytes(stage: Stage) -> None:
    """Patch and manifest follow from tree, base and facts alone."""
    workspace = stage.fork()
    stage.yard.inside(workspace, lambda r: (r / "src" / "app.py").write_text("x = 2\n"))
    facts = AttemptFacts(
        run=RunId("run_000000"), agent="mine", prompt_sha256="0" * 64, limits={"memory": "1 GiB"}
    )

    def once(yard: Yard) -> Candidate:
        return asyncio.run(
            yard.collector.collect(
                ATTEMPT,
                workspace,
                stage.base,
                repository=REPOSITORY,
                out=yard.out(workspace),
                facts=facts,
            )
        )

    first = once(stage.yard)
    again = once(Yard(stage.yard.home))
    assert replace(first, created_at="") == replace(again, created_at="")
    out = stage.yard.out(workspace)
    manifest = (out / "manifest.json").read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == first.manifest_sha256
    assert hashlib.sha256((out / "patch").read_bytes()).hexdigest() == first.patch_sha256
    document = json.loads(manifest)
    assert document["base"]["tree"] == stage.base.tree
    assert document["agent"]["name"] == "mine"
    assert document["files"][0]["path"] == "src/app.py"


def test_nothing_changed_is_a_complete_candidate(stage: Stage) -> None:
    """An idle agent yields the base's tree and an empty patch."""
    candidate = stage.yard.collect(stage.fork(), stage.base)
    assert candidate.status is CandidateStatus.COMPLETE
    assert candidate.result_tree == candidate.base_tree
    assert (candidate.files, candidate.patch_bytes) == ((), 0)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (WalkLimits(total_bytes=1000), "1000 bytes of changes"),
        (WalkLimits(changes=3), "3 changed paths"),
        (WalkLimits(depth=2), "2 directories within each other"),
        (WalkLimits(visited=4), "4 names looked at"),
        (WalkLimits(file_bytes=900), "a file of 2000 bytes"),
    ],
)
def test_hard_limit_makes_the_candidate_incomplete_and_keeps_the_rest(
    stage: Stage, limits: WalkLimits, reason: str
) -> None:
    """What was seen is kept and proved; what was not is named."""
    collector = Collector(stage.yard.layout, SystemClock(), limits)
    workspace = stage.fork()

    def change(repository: Path) -> None:
        (repository / "a.txt").write_text("small")
        (repository / "big.bin").write_text("b" * 2000)
        (repository / "deep" / "er" / "still").mkdir(parents=True)
        (repository / "deep" / "er" / "still" / "file").write_text("x")
        for number in range(4):
            (repository / f"f{number}").write_text("y")

    stage.yard.inside(workspace, change)
    candidate = asyncio.run(
        collector.collect(
            ATTEMPT,
            workspace,
            stage.base,
            repository=REPOSITORY,
            out=stage.yard.out(workspace),
        )
    )
    assert candidate.status is CandidateStatus.INCOMPLETE
    assert any(reason in problem for problem in candidate.problems)
    assert any(reason in item.reason for item in candidate.left_out)
    assert "a.txt" in {change.path for change in candidate.files}


@pytest.mark.parametrize("how", ["gone", "link", "file"])
def test_lost_repository_is_collected_as_everything_deleted(stage: Stage, how: str) -> None:
    """A removed or replaced repository is a result, and no link is followed."""
    workspace = stage.fork()

    def change(root: Path) -> None:
        repository = root / REPOSITORY.strip("/")
        shutil.rmtree(repository)
        if how == "link":
            repository.symlink_to("/etc")
        elif how == "file":
            repository.write_text("x")

    stage.yard.inside(workspace, change, root=True)
    candidate = stage.yard.collect(workspace, stage.base)
    assert {change.kind for change in candidate.files} == {ChangeKind.DELETED}
    assert len(candidate.files) == 6
    assert "the repository's directory is gone" in candidate.left_out[0].reason


def test_links_that_lead_outside_are_carried_and_told(stage: Stage) -> None:
    """A reviewer sees where a link leads before following it."""
    workspace = stage.fork()

    def change(repository: Path) -> None:
        (repository / "abs").symlink_to("/etc/passwd")
        (repository / "docs" / "up").symlink_to("../../outside")
        (repository / "docs" / "fine").symlink_to("../src/./app.py")

    stage.yard.inside(workspace, change)
    candidate = stage.yard.collect(workspace, stage.base)
    assert candidate.facts == {"links_outside": "abs -> /etc/passwd, docs/up -> ../../outside"}
    assert len(candidate.files) == 3


def test_edits_inside_a_submodule_are_carried(stage: Stage, tmp_path: Path) -> None:
    """A submodule's files are files: neither its gitlink nor commits in it hide anything."""
    (tmp_path / "library").mkdir()
    _build(tmp_path / "library")

    def build(repository: Path) -> None:
        _build(repository)
        source = str(tmp_path / "library")
        allowed = ("-c", "protocol.file.allow=always")
        git(repository, *allowed, "submodule", "--quiet", "add", source, "lib")
        git(repository, "commit", "-q", "-m", "with library")

    layer = stage.yard.layer(build)
    base = stage.yard.record(layer)
    assert base.commit is not None
    workspace = stage.yard.fork(layer)

    def change(repository: Path) -> None:
        (repository / "lib" / "src" / "app.py").write_text("x = 2\n")
        git(repository / "lib", "commit", "-q", "-a", "-m", "inside")
        (repository / "lib" / "docs" / "a.md").write_text("uncommitted\n")

    stage.yard.inside(workspace, change)
    candidate = stage.yard.collect(workspace, base)
    assert candidate.status is CandidateStatus.COMPLETE
    assert [change.path for change in candidate.files] == ["lib/docs/a.md", "lib/src/app.py"]


def _writing(text: str) -> Callable[[Path], None]:
    def write(repository: Path) -> None:
        (repository / "src" / "app.py").write_text(text)

    return write


def test_many_collections_at_once_do_not_disturb_each_other(stage: Stage) -> None:
    """One store, many attempts."""
    workspaces = [stage.fork() for _ in range(6)]
    for number, workspace in enumerate(workspaces):
        stage.yard.inside(workspace, _writing(f"x = {number // 2}\n"))

    async def all_at_once() -> list[Candidate]:
        return await asyncio.gather(
            *(
                stage.yard.collector.collect(
                    ATTEMPT,
                    workspace,
                    stage.base,
                    repository=REPOSITORY,
                    out=stage.yard.out(workspace),
                )
                for workspace in workspaces
            )
        )

    candidates = asyncio.run(all_at_once())
    assert {candidate.status for candidate in candidates} == {CandidateStatus.COMPLETE}
    trees = [candidate.result_tree for candidate in candidates]
    assert trees[0::2] == trees[1::2]
    assert len(set(trees)) == 3


def test_collecting_leaves_the_workspace_as_it_was(stage: Stage) -> None:
    """Neither upper nor layer changes: not a name, not a time."""
    workspace = stage.fork()
    stage.yard.inside(workspace, lambda r: (r / "src" / "app.py").write_text("x = 2\n"))
    upper = stage.yard.layout.upper(workspace.id)

    def facts() -> list[tuple[str, int, int]]:
        return sorted(
            (str(path), path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
            for root in (upper, stage.repository)
            for path in root.rglob("*")
        )

    before = facts()
    stage.yard.collect(workspace, stage.base)
    stage.yard.collect(workspace, stage.base, full=True)
    assert facts() == before


def test_candidate_is_laid_with_its_kinds(stage: Stage) -> None:
    """Deletions, links, modes and swaps arrive in a fresh fork, owned by its user."""
    workspace, fresh = stage.fork(), stage.fork()

    def change(repository: Path) -> None:
        shutil.rmtree(repository / "docs")
        (repository / "docs").symlink_to("src")
        (repository / "conftest.py").unlink()
        (repository / "conftest.py").mkdir()
        (repository / "conftest.py" / "inner").write_text("x")
        (repository / "src" / "app.py").chmod(0o755)

    stage.yard.inside(workspace, change)
    candidate = stage.yard.collect(workspace, stage.base)
    laid = asyncio.run(stage.yard.collector.materialise(fresh, stage.base, candidate))
    assert "docs" in laid.written
    assert stage.look(fresh) == stage.look(workspace)
    owners = stage.yard.inside(
        fresh, lambda r: {path.lstat().st_uid for path in r.rglob("*") if ".git" not in path.parts}
    )
    assert owners == {STORAGE_USER_ID}


def test_laying_never_follows_a_link_out(stage: Stage, tmp_path: Path) -> None:
    """A fork whose folder became a link gets a folder again; what the link names is untouched."""
    (tmp_path / "host").mkdir()
    workspace, victim = stage.fork(), stage.fork()
    stage.yard.inside(workspace, lambda r: (r / "docs" / "b.md").write_text("b"))
    candidate = stage.yard.collect(workspace, stage.base)

    def spoil(repository: Path) -> None:
        shutil.rmtree(repository / "docs")
        (repository / "docs").symlink_to(tmp_path / "host")

    stage.yard.inside(victim, spoil)
    laid = asyncio.run(stage.yard.collector.materialise(victim, stage.base, candidate))
    assert laid.replaced == ("docs",)
    assert list((tmp_path / "host").iterdir()) == []
    assert b"docs/b.md" in stage.look(victim)


def test_protected_files_come_back_and_added_ones_go(stage: Stage) -> None:
    """Changed, deleted, added, replaced: all as in the base again, and nothing else is touched."""
    workspace = stage.fork()
    before = stage.look(workspace)

    def change(repository: Path) -> None:
        (repository / "src" / "app.py").write_text("x = 2\n")
        (repository / "tests" / "test_app.py").write_text("assert 'easy'\n")
        shutil.rmtree(repository / "tests" / "unit")
        (repository / "tests" / "unit").symlink_to("../src")
        (repository / "tests" / "added.py").write_text("x")
        (repository / "conftest.py").write_text("raise SystemExit(0)")
        (repository / "src" / "conftest.py").write_text("raise SystemExit(0)")
        os.mkfifo(repository / "tests" / "pipe")

    stage.yard.inside(workspace, change)
    stage.restore(workspace, "tests/**")
    after = stage.look(workspace)
    assert {path for path in after if before.get(path) != after[path]} == {b"src/app.py"}
    assert set(before) == set(after)
    assert stage.yard.inside(workspace, lambda r: (r / "tests" / "pipe").exists()) is False
    mode = stage.yard.inside(
        workspace, lambda r: (r / "tests" / "test_app.py").stat().st_mode & 0o777
    )
    assert mode == 0o640


@pytest.mark.parametrize("target", ["src", "/etc", "../.."])
def test_link_over_a_protected_folder_is_removed(stage: Stage, target: str) -> None:
    """A link in the place of a protected folder, or above it, does not lead around it."""
    workspace = stage.fork()
    before = stage.look(workspace)

    def change(repository: Path) -> None:
        shutil.rmtree(repository / "tests")
        (repository / "tests").symlink_to(target)

    stage.yard.inside(workspace, change)
    stage.restore(workspace, "tests/unit/**")
    after = stage.look(workspace)
    assert after[b"tests/unit/test_more.py"] == before[b"tests/unit/test_more.py"]
    assert b"tests" not in after


def test_restoring_after_the_repository_was_removed(stage: Stage) -> None:
    """A check that wipes its own tree is not trouble of ours: protected files are there again."""
    workspace = stage.fork()
    stage.yard.inside(
        workspace, lambda root: shutil.rmtree(root / REPOSITORY.strip("/")), root=True
    )
    stage.restore(workspace, "tests/**")
    assert set(stage.look(workspace)) == {
        b"tests/test_app.py",
        b"tests/unit/test_more.py",
        b"conftest.py",
    }


def test_held_out_files_are_laid_over_whatever_stands_there(stage: Stage, tmp_path: Path) -> None:
    """Through no link, over any directory, with their executable bit."""
    workspace = stage.fork()
    (tmp_path / "host").mkdir()

    def change(repository: Path) -> None:
        (repository / "hidden").symlink_to(tmp_path / "host")
        (repository / "check.sh").mkdir()
        (repository / "check.sh" / "junk").write_text("x")

    stage.yard.inside(workspace, change)
    blobs = Blobs(stage.yard.layout.blobs)
    files = (
        HeldOutFile(path="hidden/test_it.py", sha256=blobs.put(b"assert 1\n")),
        HeldOutFile(path="check.sh", sha256=blobs.put(b"#!/bin/sh\n"), executable=True),
    )
    laid = asyncio.run(stage.yard.collector.add_files(workspace, files))
    assert set(laid.replaced) == {"hidden", "check.sh"}
    seen = stage.look(workspace)
    assert seen[b"hidden/test_it.py"].kind == "file"
    assert seen[b"check.sh"].is_executable
    assert list((tmp_path / "host").iterdir()) == []


@pytest.mark.parametrize("path", ["../out", "/abs", "a/../../out", ".git/config", "a/.GIT/x", ""])
def test_held_out_path_out_of_the_repository_is_refused(stage: Stage, path: str) -> None:
    """No path leads out, or into git's data."""
    sha256 = Blobs(stage.yard.layout.blobs).put(b"x")
    files = (HeldOutFile(path=path, sha256=sha256),)
    with pytest.raises(WorkspaceError, match="is no path that a candidate may write"):
        asyncio.run(stage.yard.collector.add_files(stage.fork(), files))


def test_helper_that_dies_is_trouble_of_ours_in_one_sentence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper's end by a signal is an error with a thing and a reason; nothing is left."""
    workspace = stage.fork()
    program = stage.yard.home / "python"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(WorkspaceError, match=f"cannot collect {workspace.id}"):
        stage.yard.collect(workspace, stage.base)
    monkeypatch.undo()
    assert stage.yard.collect(workspace, stage.base).status is CandidateStatus.COMPLETE
    assert list((stage.yard.layout.objects / "scratch").iterdir()) == []


def test_cancelled_collection_leaves_no_helper_and_no_mount(stage: Stage) -> None:
    """Cancelling ends the helper; collecting again works."""
    workspace = stage.fork()

    def fill(repository: Path) -> None:
        for number in range(40):
            with (repository / f"sparse{number}").open("wb") as file:
                file.truncate(3 * 1024**3)

    stage.yard.inside(workspace, fill)
    limits = WalkLimits(total_bytes=1 << 50)
    collector = Collector(stage.yard.layout, SystemClock(), limits)

    async def cancel() -> None:
        task = asyncio.ensure_future(
            collector.collect(
                ATTEMPT,
                workspace,
                stage.base,
                repository=REPOSITORY,
                out=stage.yard.out(workspace),
            )
        )
        await asyncio.sleep(1.0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    mounts = Path("/proc/self/mounts").read_text()
    assert str(stage.yard.home) not in mounts
    assert list((stage.yard.layout.objects / "scratch").iterdir()) == []


@pytest.mark.parametrize("point", ["C13", "C14", "C15"])
def test_collection_killed_half_way_is_repeated_with_the_same_result(
    stage: Stage, point: str
) -> None:
    """Killed with half the blobs, before or after the rename: again gives the same digests."""
    workspace = stage.fork()
    stage.yard.inside(workspace, lambda r: (r / "src" / "app.py").write_text("x = 2\n"))
    undisturbed = stage.yard.collect(workspace, stage.base)
    shutil.rmtree(stage.yard.out(workspace))
    child = subprocess.run(
        [sys.executable, "-c", _COLLECT, str(stage.yard.home), workspace.id, stage.layer,
         stage.base.tree],
        env={**os.environ, "FORKYARD_FAILPOINT": point,
             "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    again = Yard(stage.yard.home).collect(workspace, stage.base)
    assert again.result_tree == undisturbed.result_tree
    assert again.patch_sha256 == undisturbed.patch_sha256
    assert list((stage.yard.layout.objects / "scratch").iterdir()) == []


_COLLECT = """
import sys
from dataclasses import replace
from pathlib import Path
from forkyard.model.workspace import REPOSITORY, RecordedBase
from stopped import Yard
home, workspace, layer, tree = sys.argv[1:]
yard = Yard(Path(home))
base = RecordedBase(repository=REPOSITORY, commit=None, tree=tree)
yard.collect(replace(yard.fork(layer), id=workspace), base)
"""


def test_cost_of_collecting_follows_the_change(stage: Stage) -> None:
    """One changed file costs about the same in a far larger tree."""

    def many(repository: Path) -> None:
        _build(repository)
        for number in range(5000):
            folder = repository / f"d{number // 50}"
            folder.mkdir(exist_ok=True)
            (folder / f"f{number}").write_text(f"{number}\n")

    layer = stage.yard.layer(many)
    base = stage.yard.record(layer)
    spent = []
    for of_layer, of_base in ((stage.layer, stage.base), (layer, base)):
        times = []
        for _ in range(3):
            workspace = stage.yard.fork(of_layer)
            stage.yard.inside(workspace, lambda r: (r / "src" / "app.py").write_text("changed\n"))
            started = time.perf_counter()
            candidate = stage.yard.collect(workspace, of_base)
            times.append(time.perf_counter() - started)
            assert len(candidate.files) == 1
        spent.append(min(times))
    assert spent[1] < 3 * spent[0]
