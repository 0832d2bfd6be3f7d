"""What the tests of `apply` share: trees as values, a candidate of two trees, a bench."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from forkyard.base.clock import SystemClock
from forkyard.config import Layout
from forkyard.model.candidate import Candidate, CandidateStatus, ChangeKind, FileChange
from forkyard.model.ids import (
    CandidateId,
    WorkspaceId,
    new_attempt_id,
    new_candidate_id,
    new_layer_id,
    new_snapshot_id,
    new_workspace_id,
)
from forkyard.model.workspace import Environment, Limits, Workspace, WorkspaceState
from forkyard.promotion.apply import Applications
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.store.journal import Journal

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

    async def read(self, blobs: Sequence[str]) -> dict[str, bytes]:
        """Give them back."""
        return {blob: (self.folder / blob).read_bytes() for blob in blobs}


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
    return as_files(picture(tree))


def as_files(seen: dict[str, tuple[int, int, int, bytes]]) -> Files:
    """Keep of a picture what git would."""
    files: Files = {}
    for name, (mode, _, _, content) in seen.items():
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


def mounts() -> str:
    """Read what is mounted here."""
    return Path("/proc/self/mounts").read_text()


def run(argv: list[str], *, folder: Path = Path("/")) -> None:
    """Run a tool that must succeed."""
    subprocess.run(argv, check=True, cwd=folder)


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
            journal=self.journal,
            contents=self.blobs,
            workspaces=self,
            layout=self.layout,
            clock=SystemClock(),
        )

    @asynccontextmanager
    async def held(self, workspace: WorkspaceId) -> AsyncIterator[Workspace]:
        """Hold a workspace; nobody else is here to start it."""
        yield self.journal.state.workspaces[workspace]

    async def workspace(self, files: Files, state: WorkspaceState) -> Workspace:
        """Lay a workspace of two layers and an upper folder, as the fork leaves it on disk."""
        layers = (new_layer_id(), new_layer_id())
        lay(self.layout.layer(layers[1]) / "workspace/repo", files)
        self.layout.layer(layers[0]).mkdir(parents=True)
        workspace = Workspace(
            id=new_workspace_id(),
            snapshot=new_snapshot_id(),
            layers=layers,
            environment=Environment(),
            limits=Limits(),
            state=state,
            created_at="",
        )
        for folder in (self.layout.upper(workspace.id), self.layout.disk(workspace.id) / "work"):
            folder.mkdir(parents=True)
        for top, _, names in os.walk(self.layout.layers):
            for path in [top, *(os.path.join(top, name) for name in names)]:  # noqa: PTH118 - names may be no text
                os.chown(path, STORAGE_USER_ID, STORAGE_USER_ID, follow_symlinks=False)
        await self.journal.append(workspace)
        return workspace

    def seen(self, workspace: Workspace) -> dict[str, tuple[int, int, int, bytes]]:
        """Read a stopped workspace's repository through its layers."""
        lowers = ":".join(str(self.layout.layer(layer)) for layer in workspace.layers)
        script = (
            'mkdir -p "$1" && mount -t overlay -o "lowerdir=$2:$3" none "$1" && '
            'exec "$4" -c "import sys, pickle; sys.path.insert(0, sys.argv[1]); '
            "import applying, pathlib; sys.stdout.buffer.write(pickle.dumps("
            'applying.picture(pathlib.Path(sys.argv[2]))))" "$5" "$1/workspace/repo"'
        )
        view = str(self.tree.parent / "view")
        arguments = [view, str(self.layout.upper(workspace.id)), lowers, sys.executable]
        seen = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", *arguments, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
        )
        loaded = pickle.loads(seen.stdout)  # noqa: S301 - this test's own child
        assert isinstance(loaded, dict)
        return loaded

    async def candidate(self, base: Files, result: Files) -> CandidateId:
        """Journal a candidate."""
        candidate = candidate_of(base, result, self.blobs)
        await self.journal.append(candidate)
        return candidate.id


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


def random_files(chance: random.Random) -> Files:
    """Make a small tree by dice: odd names, all kinds, folders up to three deep."""
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
