"""Stopped workspaces for tests: real layers and overlay views, without journal or sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from forkyard.base.clock import SystemClock
from forkyard.candidate.collector import Collector
from forkyard.candidate.objects import ENVIRONMENT, ObjectStore
from forkyard.config import Layout
from forkyard.model.candidate import Candidate
from forkyard.model.ids import LayerId, SnapshotId, new_attempt_id, new_layer_id, new_workspace_id
from forkyard.model.workspace import (
    REPOSITORY,
    Environment,
    Limits,
    RecordedBase,
    Workspace,
    WorkspaceState,
)
from forkyard.shim import mounts
from forkyard.shim.ids import STORAGE_USER_ID

T = TypeVar("T")
Builder = Callable[[Path], None]


def quick_folder(prefix: str) -> Path:
    """Make a directory in memory where there is room: many small trees wait for no disk there."""
    memory = Path("/dev/shm")
    room = shutil.disk_usage(memory).free if memory.is_dir() else 0
    place = memory if room > 2 * 1024**3 else None
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    made.chmod(0o755)
    return made


class Seen(NamedTuple):
    """What lies at one path."""

    kind: str
    is_executable: bool
    sha1: str
    """Of the bytes, or of the link's text."""


Picture = dict[bytes, Seen]


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def picture(root: Path | bytes, *, without: frozenset[bytes] = frozenset()) -> Picture:
    """Look at every file and link below a directory, .git left out, by the plainest means."""
    found: Picture = {}

    def look(directory: bytes, prefix: bytes) -> None:
        for entry in os.scandir(directory):
            path = prefix + entry.name
            if entry.name.lower() == b".git" or path in without:
                continue
            status = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                text = os.fsencode(Path(os.fsdecode(entry.path)).readlink())
                found[path] = Seen("link", is_executable=False, sha1=_sha1(text))
            elif entry.is_dir(follow_symlinks=False):
                look(entry.path, path + b"/")
            elif stat.S_ISREG(status.st_mode):
                content = Path(os.fsdecode(entry.path)).read_bytes()
                is_executable = bool(status.st_mode & stat.S_IXUSR)
                found[path] = Seen("file", is_executable=is_executable, sha1=_sha1(content))

    look(os.fsencode(root), b"")
    return found


def git(directory: Path, *arguments: str | bytes, **more: str) -> bytes:
    """Run plain git in a directory that the test made."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        **more,
    }
    command = ["git", "-c", "gc.auto=0", "-c", "safe.directory=*", *arguments]
    return subprocess.run(
        command,
        cwd=directory,
        env=environment,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    ).stdout


class Yard:
    """One state directory with layers, workspaces and a collector."""

    def __init__(self, home: Path) -> None:
        """Use a directory that the caller removes."""
        self.home = home
        self.layout = Layout(home)
        self.collector = Collector(self.layout, SystemClock())

    def layer(self, build: Builder, name: LayerId | None = None) -> LayerId:
        """Make a layer whose repository a function builds."""
        layer = name or new_layer_id()
        repository = self.layout.layer(layer) / REPOSITORY.strip("/")
        repository.mkdir(parents=True)
        build(repository)
        subprocess.run(
            ["chown", "-hR", f"{STORAGE_USER_ID}:{STORAGE_USER_ID}", self.layout.layer(layer)],
            check=True,
        )
        return layer

    def fork(self, *layers: LayerId) -> Workspace:
        """Make a stopped workspace."""
        workspace = new_workspace_id()
        for directory in (self.layout.upper(workspace), self.layout.disk(workspace) / "work"):
            directory.mkdir(parents=True)
            os.chown(directory, STORAGE_USER_ID, STORAGE_USER_ID)
        return Workspace(
            id=workspace,
            snapshot=SnapshotId("snap_000000"),
            layers=layers,
            environment=Environment(),
            limits=Limits(),
            state=WorkspaceState.STOPPED,
            created_at="",
        )

    def inside(self, workspace: Workspace, act: Callable[[Path], T], *, root: bool = False) -> T:
        """Do something in the writable view of a workspace, in a process of its own.

        Args:
            workspace: Whose view.
            act: Gets the repository's directory, or the view's with `root`.
            root: Give the view's own directory.

        Returns:
            What it returned.
        """
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            outcome: object = None
            try:
                mounts.private_mount_namespace()
                target = self.home / "view"
                target.mkdir(exist_ok=True)
                mounts.mount_view(
                    [str(self.layout.layer(layer)) for layer in workspace.layers],
                    str(target),
                    upper=str(self.layout.upper(workspace.id)),
                    work=str(self.layout.disk(workspace.id) / "work"),
                )
                os.umask(0o022)
                outcome = (True, act(target if root else target / REPOSITORY.strip("/")))
            except BaseException as error:  # noqa: BLE001 - told to the parent
                outcome = (False, f"{type(error).__name__}: {error}")
            finally:
                with open(write, "wb") as file:  # noqa: PTH123 - a descriptor
                    pickle.dump(outcome, file)
                os._exit(0)
        os.close(write)
        with open(read, "rb") as file:  # noqa: PTH123 - a descriptor
            succeeded, value = pickle.load(file)  # noqa: S301 - from our own child
        os.waitpid(child, 0)
        assert succeeded, value
        return value  # type: ignore[no-any-return]

    def record(self, *layers: LayerId) -> RecordedBase:
        """Record the base of some layers."""
        return asyncio.run(self.collector.record(layers, REPOSITORY))

    def collect(
        self,
        workspace: Workspace,
        base: RecordedBase,
        *,
        full: bool = False,
        scope: tuple[str, ...] = (),
        protected: tuple[str, ...] = (),
    ) -> Candidate:
        """Collect; patch and manifest lie in `out(workspace)`."""
        return asyncio.run(
            self.collector.collect(
                new_attempt_id(),
                workspace,
                base,
                repository=REPOSITORY,
                out=self.out(workspace),
                scope=scope,
                protected=protected,
                full=full,
            )
        )

    def out(self, workspace: Workspace) -> Path:
        """Where a candidate's files are."""
        return self.home / "out" / workspace.id

    def forget(self, workspace: Workspace) -> None:
        """Remove a workspace, however deep its trees are."""
        subprocess.run(["rm", "-rf", self.layout.workspace(workspace.id)], check=True)


class Elsewhere:
    """A second git store that knows a base's bytes from disk and nothing of ours."""

    def __init__(self, folder: Path, base: Path) -> None:
        """Take the base's files in by git itself."""
        self._folder = folder
        self._store = ObjectStore(folder / "store")
        asyncio.run(self._store.prepare())
        if paths := sorted(picture(base)):
            self._git(
                "-c",
                "core.bare=false",
                "update-index",
                "-z",
                "--add",
                "--stdin",
                stdin=b"\0".join(paths),
                work_tree=str(base),
            )
        self.tree = self._git("write-tree").decode().strip()

    def _git(
        self, *arguments: str, stdin: bytes = b"", index: str = "base", work_tree: str = ""
    ) -> bytes:
        environment = {
            **ENVIRONMENT,
            "GIT_DIR": str(self._folder / "store"),
            "GIT_INDEX_FILE": str(self._folder / index),
        }
        if work_tree:
            environment["GIT_WORK_TREE"] = work_tree
        finished = subprocess.run(
            ["/usr/bin/git", *arguments],
            cwd="/",
            env=environment,
            input=stdin,
            capture_output=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def replay(self, patch: Path) -> tuple[str, Picture]:
        """Apply a patch to the base; give the tree, and a checkout of it as it lies on disk."""
        shutil.copy(self._folder / "base", self._folder / "index")
        if patch.stat().st_size:
            self._git(
                "apply", "--cached", "--binary", "--whitespace=nowarn", str(patch), index="index"
            )
        tree = self._git("write-tree", index="index").decode().strip()
        out = self._folder / "out"
        out.mkdir()
        try:
            self._git(
                "-c",
                "core.bare=false",
                "checkout-index",
                "-a",
                "-f",
                index="index",
                work_tree=str(out),
            )
            return tree, picture(out)
        finally:
            subprocess.run(["rm", "-rf", out], check=True)
