"""Sealed history: a snapshot whose repository ends at the base commit, for attempts to fork.

The agent's task is often an issue that was fixed later; branches, tags, stashes, reflogs, notes,
remotes and unreachable objects of the prepared repository would give the answer away. Deleting
them leaves traces, so nothing is deleted: a sandbox packs what the base commit reaches, we index
that pack in a repository of our own, prove that it holds those objects and no other, and lay a
`.git` that we wrote over the old one, opaque. The index is then made in a second sandbox.

Submodules' histories go with the old `.git`. Every other `.git` below the repository goes, too,
whether it is a folder, a file or a link, so that a second clone lying there tells nothing: what
is around it stays, as the plain files that the recorded base has them as.

Limits: a repository kept outside the work tree (``--separate-git-dir``) or beside it, and a bare
one among the files, is not found by this.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.errors import WorkspaceError
from forkyard.model.execution import StopReason
from forkyard.model.ids import LayerId, WorkspaceId, new_layer_id, new_snapshot_id
from forkyard.model.workspace import RecordedBase, Snapshot, SnapshotState, Workspace
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.workspace.layers import OPAQUE
from forkyard.workspace.sealed_repository import (
    give_to_user,
    index_pack,
    nested_folders,
    verify,
    write_repository,
)
from forkyard.workspace.trusted_git import git, git_or_error
from forkyard.workspace.workspaces import Origin, Workspaces

PACK_LIMIT_BYTES = 64 * 1024**3
PACK_SECONDS = 1800.0
INDEX_LIMIT_BYTES = 1024**3
_COMMIT = re.compile(r"[0-9a-f]{40}")

_PACK = (
    'printf "%s\\n" "$BASE" | git --no-replace-objects -c core.fsmonitor=false'
    " -c pack.threads=1 pack-objects --revs --stdout --quiet --delta-base-offset"
)
_SHALLOW = 'f="$(git rev-parse --git-path shallow)" && { [ ! -f "$f" ] || cat "$f"; }'
_INDEX = "git read-tree HEAD && git update-index -q --refresh; [ -f .git/index ]"


class Sealing:
    """Makes sealed snapshots; `Snapshots.sealed` sees to it that each is made once."""

    def __init__(self, workspaces: Workspaces, clock: Clock) -> None:
        """Keep the collaborators."""
        self._workspaces = workspaces
        self._journal = workspaces.journal
        self._layers = workspaces.layers
        self._layout = workspaces.layout
        self._clock = clock

    async def seal(self, snapshot: Snapshot) -> Snapshot:
        """Derive the sealed snapshot of a ready one.

        Returns:
            The derived snapshot, ready; the given one where it holds no repository.

        Raises:
            WorkspaceError: What would be sealed could not be proved; nothing is left of the try.
        """
        base = snapshot.base
        if base is None:
            return snapshot
        dot_git = self._layers.lookup(snapshot.layers, f"{base.repository}/.git")
        if dot_git is None:
            return snapshot
        layer = new_layer_id()
        pending = Snapshot(
            id=new_snapshot_id(),
            name=snapshot.name,
            state=SnapshotState.PENDING,
            created_at=self._clock.now(),
            layers=(layer, *snapshot.layers),
            base=base,
            environment=snapshot.environment,
            limits=snapshot.limits,
            workspace=snapshot.workspace,
            sealed_of=snapshot.id,
        )
        await self._journal.append(pending, f"seal {snapshot.name}", expect=None)
        try:
            await self._make(snapshot, pending, base, layer)
        except BaseException as error:
            failed = replace(
                pending,
                state=SnapshotState.FAILED,
                layers=(),
                trouble=str(error) or type(error).__name__,
            )
            await self._journal.append(failed, "not sealed", expect=pending)
            self._layers.remove_unneeded(pending.layers, self._journal.state)
            await self._layers.empty_trash()
            raise
        ready = replace(pending, state=SnapshotState.READY)
        await self._journal.append(ready, "sealed", expect=pending)
        return ready

    async def _make(
        self, snapshot: Snapshot, pending: Snapshot, base: RecordedBase, layer: LayerId
    ) -> None:
        root = self._layers.start(layer)
        folder = self._lay_folders(root, snapshot, base.repository) / ".git"
        folder.mkdir(mode=0o755)
        os.setxattr(folder, OPAQUE, b"y")
        for nested in await asyncio.to_thread(self._nested, snapshot, base.repository):
            self._hide(root, snapshot, nested)
        if base.commit is None:
            write_repository(folder, branch=None, commit=None)
            give_to_user(folder)
            await self._layers.finish(layer)
            return
        quarantine = root.with_name(f"{root.name}.quarantine")
        try:
            await git_or_error(
                "seal history", "init", "-q", "--bare", "--template=", str(quarantine)
            )
            await self._take_pack(snapshot, pending, base, quarantine)
            await verify(quarantine, base.commit)
            await asyncio.to_thread(
                write_repository,
                folder,
                branch=base.branch,
                commit=base.commit,
                quarantine=quarantine,
            )
        finally:
            self._layers.discard(quarantine)
        give_to_user(folder)
        await self._layers.finish(layer)
        failpoint("S03")
        await self._add_index(pending, base, layer)
        await self._layers.sync()

    def _lay_folders(self, root: Path, snapshot: Snapshot, folder: str) -> Path:
        """Repeat a folder and those above it as the merged tree has them.

        In an overlay the topmost layer's folder gives owner and permissions.
        """
        path, inside = root, ""
        for part in folder.strip("/").split("/"):
            inside = f"{inside}/{part}"
            found = self._layers.lookup(snapshot.layers, inside)
            if found is None or not found.is_directory:
                raise WorkspaceError(
                    f"cannot seal snapshot {snapshot.name}: {inside} is no folder in it"
                )
            path = path / part
            path.mkdir(exist_ok=True)
            os.chown(path, found.facts.st_uid, found.facts.st_gid)
            path.chmod(stat.S_IMODE(found.facts.st_mode))
        return path

    def _nested(self, snapshot: Snapshot, repository: str) -> list[str]:
        """List the folders of the merged tree that hold a `.git`, the repository's own left out."""
        folders = set[str]()
        for layer in snapshot.layers:
            folders.update(nested_folders(self._layout.layer(layer), repository.strip("/")))
        return [
            folder
            for folder in sorted(f"{repository}/{one}" for one in folders)
            if self._layers.lookup(snapshot.layers, f"{folder}/.git") is not None
        ]

    def _hide(self, root: Path, snapshot: Snapshot, folder: str) -> None:
        """Delete a folder's `.git` in the merged tree, whatever it is there."""
        os.mknod(self._lay_folders(root, snapshot, folder) / ".git", stat.S_IFCHR, 0)

    async def _take_pack(
        self, snapshot: Snapshot, pending: Snapshot, base: RecordedBase, quarantine: Path
    ) -> None:
        """Let a sandbox pack what the base commit reaches, and index that here."""
        workspace = await self._fork(pending, snapshot.layers)
        try:
            shallow = await self._run(workspace, base, _SHALLOW, limit=INDEX_LIMIT_BYTES)
            roots = shallow.read_text(encoding="ascii", errors="replace").split()
            packed = await self._run(workspace, base, _PACK, limit=PACK_LIMIT_BYTES)
            await index_pack(packed, quarantine)
        finally:
            await self._workspaces.delete(workspace)
        held = [
            line
            for line in roots
            if _COMMIT.fullmatch(line)
            and (
                await git("cat-file", "-e", line, variables={"GIT_DIR": str(quarantine)})
            ).succeeded
        ]
        if held:
            (quarantine / "shallow").write_text("".join(f"{line}\n" for line in sorted(held)))

    async def _add_index(self, pending: Snapshot, base: RecordedBase, layer: LayerId) -> None:
        """Make the index inside, prove that nothing else was written, and fold it in."""
        workspace = await self._fork(pending, pending.layers)
        try:
            await self._run(workspace, base, _INDEX, limit=INDEX_LIMIT_BYTES)
            await self._workspaces.stop(workspace)
            upper = self._layout.upper(workspace)
            index = f"{base.repository.strip('/')}/.git/index"
            written = sorted(await asyncio.to_thread(lambda: list(_files_below(upper))))
            if written != [index]:
                raise WorkspaceError(
                    f"cannot seal snapshot {pending.name}: making the index also wrote "
                    + ", ".join(name for name in written if name != index)
                )
            await asyncio.to_thread(_copy_index, upper, self._layout.layer(layer), index)
        finally:
            await self._workspaces.delete(workspace)

    async def _fork(self, pending: Snapshot, layers: tuple[LayerId, ...]) -> WorkspaceId:
        row: Workspace = await self._workspaces.add(
            Origin(
                snapshot=pending.id,
                layers=layers,
                # By this machine's git, whatever the image has or lacks: layers are trees from `/`.
                environment=replace(pending.environment, variables={}, tasks=(), image=None),
                limits=pending.limits,
            ),
            display_name=f"sealing {pending.name}",
            ephemeral=True,
            owner=pending.id,
        )
        return row.id

    async def _run(
        self, workspace: WorkspaceId, base: RecordedBase, command: str, *, limit: int
    ) -> Path:
        """Run a shell command in the repository; give the file that holds its output."""
        done = await self._workspaces.exec(
            workspace,
            ["/bin/sh", "-c", command],
            working_directory=base.repository,
            variables={
                "BASE": base.commit or "",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "GIT_CONFIG_NOSYSTEM": "1",
            },
            timeout_seconds=PACK_SECONDS,
            keep_background=False,
            output_bytes=limit,
        )
        result = done.result
        output = self._layout.exec(workspace, done.id)
        if (
            result is None
            or result.stop_reason is not StopReason.EXITED
            or result.exit_code != 0
            or result.truncated
        ):
            words = ""
            stderr = output / "stderr"
            if stderr.exists():
                words = stderr.read_bytes()[-400:].decode(errors="replace").strip()
            raise WorkspaceError(
                f"cannot seal the history of {base.repository}: "
                + (" ".join(words.split()) or "git ended before it was done inside"),
                hint="Run `git fsck` in the repository the snapshot was made from.",
            )
        return output / "stdout"


def _files_below(root: Path) -> Iterator[str]:
    """Name everything below a folder that is no folder itself, whiteouts included."""
    waiting = [(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW), "")]
    while waiting:
        descriptor, name = waiting.pop()
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below = os.open(
                            entry.name,
                            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
                            dir_fd=descriptor,
                        )
                        waiting.append((below, f"{name}{entry.name}/"))
                    else:
                        yield f"{name}{entry.name}"
        finally:
            os.close(descriptor)


def _copy_index(upper: Path, layer: Path, name: str) -> None:
    """Copy the one file by descriptors, past no link."""
    data = _read_beneath(upper, name)
    target = layer / name
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchown(file.fileno(), STORAGE_USER_ID, STORAGE_USER_ID)


def _read_beneath(root: Path, name: str) -> bytes:
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        *folders, last = name.split("/")
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = below
        descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > INDEX_LIMIT_BYTES:
            raise WorkspaceError("cannot seal history: the index is no plain file")
        return file.read()
