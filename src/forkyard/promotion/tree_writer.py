"""Writing a plan into a tree that was compared.

New content is first staged in one folder at the tree's root, so that a full disk is found before
anything visible changes. Then each path is swapped by rename: what was there moves into the
staging folder and is compared once more, so an edit saved in the last moment is put back, not
lost. `way_back` undoes it from any point, also after SIGKILL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from forkyard.base.durable import failpoint
from forkyard.promotion import staging
from forkyard.promotion.plan import EXECUTABLE, LINK, Entry, Plan, parents
from forkyard.promotion.record import Before, Record
from forkyard.promotion.tree import Tree, git_mode, same_content


class EditedMeanwhileError(OSError):
    """A path changed between the comparison and the swap; it was put back as it was found."""

    def __init__(self, path: bytes) -> None:
        super().__init__(errno.EBUSY, "it was edited meanwhile", os.fsdecode(path))
        self.path = path


def write(tree: Tree, plan: Plan, record: Record) -> None:
    """Carry a compared plan out.

    Raises:
        EditedMeanwhileError: Somebody saved a touched path in the last moment.
        OSError: Something did not work. In both cases the caller takes the way back.

    Durability:
        Everything is on disk when this returns.
    """
    kept = record.kept()
    folder = os.fsencode(plan.staging)
    os.mkdir(folder, 0o700, dir_fd=tree.root)
    failpoint("A02")
    with tree.folder(folder) as staged:
        for entry in plan.written:
            _stage(tree, staged, entry, record, kept)
            failpoint("A03")
        os.fsync(staged)
        for entry in plan.removed:
            _take_out(tree, staged, entry, record)
            failpoint("A04")
        _remove_emptied(tree, plan)
        failpoint("A05")
        for path in kept.missing_folders:
            _make_folder(tree, path)
        for entry in plan.written:
            _put_in(tree, staged, entry, record)
            failpoint("A06")
    staging.sync_folders(tree, plan)
    failpoint("A07")
    staging.remove(tree, plan)
    failpoint("A08")


def _stage(tree: Tree, staged: int, entry: Entry, record: Record, before: Before) -> None:
    kept = before.files[entry.path] if entry.old not in {None, LINK} else None
    with _nearest_folder(tree, entry.path) as folder:
        near = os.fstat(folder)
    owner = (kept.user_id, kept.group_id) if kept else tree.owner_for(near)
    name, content = staging.incoming(entry), record.after(entry)
    if entry.new == LINK:
        staging.create_link(staged, name, content, owner=owner)
        return
    # Something new may be read and written by whom the folder's own mode lets do so.
    bits = kept.mode & 0o777 if kept else stat.S_IMODE(near.st_mode) & 0o666 | 0o600
    bits = bits | (bits & 0o444) >> 2 if entry.new == EXECUTABLE else bits & 0o666
    staging.create_file(staged, name, content, owner=owner, mode=bits, like=kept)


@contextlib.contextmanager
def _nearest_folder(tree: Tree, path: bytes) -> Iterator[int]:
    above = next((p for p in parents(path) if tree.is_folder(p)), b"")
    with tree.folder(above) as folder:
        yield folder


def _take_out(tree: Tree, staged: int, entry: Entry, record: Record) -> None:
    taken = staging.outgoing(entry)
    with tree.parent(entry.path) as (folder, name):
        staging.move(folder, name, staged, taken)
        if not _is_as_before(staged, taken, entry, record):
            staging.move(staged, taken, folder, name)
            raise EditedMeanwhileError(entry.path)


def _put_in(tree: Tree, staged: int, entry: Entry, record: Record) -> None:
    with tree.parent(entry.path) as (folder, name):
        if entry.old is None:
            try:
                staging.move(staged, staging.incoming(entry), folder, name)
            except FileExistsError as error:
                raise EditedMeanwhileError(entry.path) from error
            return
        staging.swap(staged, entry, folder, name)
        if not _is_as_before(staged, staging.incoming(entry), entry, record):
            staging.swap(staged, entry, folder, name)
            raise EditedMeanwhileError(entry.path)


def _is_as_before(folder: int, name: bytes, entry: Entry, record: Record) -> bool:
    found = git_mode(os.stat(name, dir_fd=folder, follow_symlinks=False))
    return found == entry.old and same_content(folder, name, found, record.before(entry))


def _remove_emptied(tree: Tree, plan: Plan) -> None:
    needed = {above for entry in plan.written for above in parents(entry.path)}
    emptied = {above for entry in plan.removed for above in parents(entry.path)} - needed
    for path in sorted(emptied, key=len, reverse=True):
        staging.remove_folder(tree, path)


def _make_folder(tree: Tree, path: bytes) -> None:
    with tree.parent(path) as (folder, name):
        above = os.fstat(folder)
        mode = stat.S_IMODE(above.st_mode) & 0o2777
        staging.create_folder(folder, name, owner=tree.owner_for(above), mode=mode)
