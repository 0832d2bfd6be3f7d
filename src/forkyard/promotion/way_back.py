"""The way back of an application: from whatever point the writing had reached.

It looks at what lies where, not at a log of steps: a path that has its former content is done, a
path that has the candidate's content gets the former back, and a path that has neither was
written by somebody else since and is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from forkyard.base.durable import failpoint
from forkyard.promotion import staging
from forkyard.promotion.plan import LINK, Entry, Plan
from forkyard.promotion.record import Before, Kept, Record
from forkyard.promotion.tree import Tree, git_mode, is_unreachable, same_content


def take_back(tree: Tree, plan: Plan, record: Record) -> tuple[bytes, ...]:
    """Bring the tree back to how it was. Idempotent.

    Returns:
        Paths that were left alone; their former content stays in the record.

    Durability:
        Everything is on disk when this returns.
    """
    folder = os.fsencode(plan.staging)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700, dir_fd=tree.root)
    kept = record.kept()
    left = []
    with tree.folder(folder) as staged:
        for entry in plan.written:
            if entry.old is None and not _take_away(tree, staged, entry, record):
                left.append(entry.path)
            failpoint("A11")
        for path in sorted(kept.missing_folders, key=len, reverse=True):
            staging.remove_folder(tree, path)
        for path in sorted(kept.folders, key=len):
            _restore_folder(tree, path, kept.folders[path])
        failpoint("A12")
        for entry in plan.entries:
            if entry.old is not None and not _restore(tree, staged, entry, record, kept):
                left.append(entry.path)
            failpoint("A13")
        os.fsync(staged)
    staging.sync_folders(tree, plan)
    failpoint("A14")
    staging.remove(tree, plan)
    failpoint("A15")
    return tuple(left)


def _take_away(tree: Tree, staged: int, entry: Entry, record: Record) -> bool:
    try:
        mode = tree.mode_of(entry.path)
        if mode is None or mode == "folder":
            return True  # not written yet, or the folder it was to replace
        if not _has(tree, entry, entry.new, record.after):
            return False
        with tree.parent(entry.path) as (folder, name):
            os.rename(name, staging.again(entry), src_dir_fd=folder, dst_dir_fd=staged)
    except OSError as error:
        if not is_unreachable(error):
            raise
        # What it was to lie in was not made yet: a file or link of the base is still there.
    return True


def _restore_folder(tree: Tree, path: bytes, kept: Kept) -> None:
    try:
        if tree.mode_of(path) is None:
            with tree.parent(path) as (folder, name):
                owner = (kept.user_id, kept.group_id)
                staging.create_folder(folder, name, owner=owner, mode=kept.mode)
    except OSError as error:
        if not is_unreachable(error):
            raise
        # Somebody put something else above it since; what lay in it is left alone and told.


def _restore(tree: Tree, staged: int, entry: Entry, record: Record, before: Before) -> bool:
    try:
        mode = tree.mode_of(entry.path)
        if _has(tree, entry, entry.old, record.before):
            return True
        written = _has(tree, entry, entry.new, record.after)
        if mode is not None and not written:
            return False
        source = _displaced(staged, entry, record, written=written)
        if source is None:
            source = _recreate(staged, entry, record, before.files[entry.path])
        with tree.parent(entry.path) as (folder, name):
            if written:
                os.rename(source, name, src_dir_fd=staged, dst_dir_fd=folder)
            else:
                staging.move(staged, source, folder, name)
    except OSError as error:
        if not is_unreachable(error) and error.errno != errno.EEXIST:
            raise
        return False  # somebody put something else in its place, or its folder's, since
    return True


def _has(tree: Tree, entry: Entry, mode: str | None, read: Callable[[Entry], bytes]) -> bool:
    return mode is not None and tree.holds(entry.path, mode, read(entry))


def _displaced(staged: int, entry: Entry, record: Record, *, written: bool) -> bytes | None:
    """Find what lay at the path, also when it was edited in the last moment before the swap."""
    for name in (staging.outgoing(entry), staging.aside(entry)):
        if staging.exists(staged, name):
            return name
    name = staging.incoming(entry)
    if not written or not staging.exists(staged, name):
        return None
    found = git_mode(os.stat(name, dir_fd=staged, follow_symlinks=False))
    is_new = found == entry.new and same_content(staged, name, found, record.after(entry))
    return None if is_new else name


def _recreate(staged: int, entry: Entry, record: Record, kept: Kept) -> bytes:
    name = staging.again(entry)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=staged)
    content = record.before(entry)
    owner = (kept.user_id, kept.group_id)
    if entry.old == LINK:
        staging.create_link(staged, name, content, owner=owner)
    else:
        staging.create_file(staged, name, content, owner=owner, mode=kept.mode, like=kept)
    times = (kept.modified_ns, kept.modified_ns)
    os.utime(name, ns=times, dir_fd=staged, follow_symlinks=False)
    return name
