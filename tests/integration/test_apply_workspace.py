"""Applying a candidate to a stopped workspace, seen through its layers."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from applying import (
    BASE,
    RESULT,
    Bench,
    as_files,
    lay,
    mounts,
    picture,
)
from forkyard.candidate.objects import ObjectStore
from forkyard.errors import ConflictError, WorkspaceError
from forkyard.model.workspace import WorkspaceState
from forkyard.promotion.contents import StoredContents
from forkyard.shim.ids import STORAGE_USER_ID

pytestmark = pytest.mark.anyio


async def test_writes_into_a_stopped_workspace_when_it_is_as_recorded(bench: Bench) -> None:
    """Through its layers, owned by its user; undone it looks as before; nothing stays mounted."""
    workspace = await bench.workspace(BASE, WorkspaceState.STOPPED)
    before = bench.seen(workspace)
    candidate = await bench.candidate(BASE, RESULT)
    done = await bench.applications.apply_to_workspace(candidate, workspace.id)
    after = bench.seen(workspace)
    assert as_files(after) == RESULT
    assert {(told[1], told[2]) for told in after.values()} == {(STORAGE_USER_ID, STORAGE_USER_ID)}
    await bench.applications.undo(done.id)
    assert bench.seen(workspace) == before
    assert str(bench.layout.home) not in mounts()


async def test_refuses_a_workspace_when_it_differs_or_runs(bench: Bench) -> None:
    """A running one must be stopped first; a stopped one with other bytes is left alone."""
    workspace = await bench.workspace(
        {**BASE, "edit.txt": ("100644", b"!")}, WorkspaceState.STOPPED
    )
    candidate = await bench.candidate(BASE, RESULT)
    before = bench.seen(workspace)
    with pytest.raises(ConflictError, match=r"'edit\.txt' has other content"):
        await bench.applications.apply_to_workspace(candidate, workspace.id)
    assert bench.seen(workspace) == before
    await bench.journal.append(replace(workspace, state=WorkspaceState.RUNNING))
    with pytest.raises(ConflictError, match="it is running, and must be stopped"):
        await bench.applications.apply_to_workspace(candidate, workspace.id)


async def test_never_leaves_the_workspace_when_its_repository_is_a_link(bench: Bench) -> None:
    """An agent that turned the repository into a link to the host's folders gets nothing."""
    workspace = await bench.workspace(BASE, WorkspaceState.STOPPED)
    upper = bench.layout.upper(workspace.id) / "workspace"
    upper.mkdir()
    os.mknod(upper / "repo", stat.S_IFCHR, 0)
    (upper / "repo").unlink()
    (upper / "repo").symlink_to(bench.tree)
    lay(bench.tree, BASE)
    before = picture(bench.tree)
    candidate = await bench.candidate(BASE, RESULT)
    with pytest.raises(WorkspaceError, match="symbolic links"):
        await bench.applications.apply_to_workspace(candidate, workspace.id)
    assert picture(bench.tree) == before


async def test_reads_contents_by_name_when_they_hold_anything(tmp_path: Path) -> None:
    """Newlines, zero bytes and nothing at all come out as they went in; a missing one is told."""
    store = ObjectStore(tmp_path / "objects")
    kept = [b"", b"\n", b"a\nb\x00c", b"x" * 200_000]
    names = []
    for content in kept:
        name = await store.check(["hash-object", "-w", "--stdin"], stdin=content)
        names.append(name.decode().strip())
    reader = StoredContents(store)
    assert [(await reader.read(names))[name] for name in names] == kept
    with pytest.raises(WorkspaceError, match="the object store does not have it"):
        await reader.read([names[0], "0" * 40])
