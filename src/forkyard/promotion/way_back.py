"""The way back of an application: from whatever point the writing had reached.

It looks at what lies where, not at a log of steps: a path that has its former content is done, a
path that has the candidate's content gets the former back, and a path that has neither was
written by somebody else since and is left alone. What is taken from a path is compared once more
after it was taken, so that an edit saved in the last moment goes back, also after a crash.
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


class NothingTouchedError(OSError):
    """The way back could not begin; every path is as it was found."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error))


def take_back(tree: Tree, plan: Plan, record: Record) -> tuple[bytes, ...]:
    """Bring the tree back to how it was. Idempotent.

    Returns:
        Paths that were left alone; their former content stays in the record.

    Raises:
        NothingTouchedError: What is to come back could not be laid ready (full disk, rights).
        OSError: Something else did not work; some paths may be back already.

    Durability:
        Everything is on disk when this returns.
    """
    folder = os.fsencode(plan.staging)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700, dir_fd=tree.root)
    kept = record.kept()
    left = []
    with tree.folder(folder) as staged:
        try:
            _lay_ready(tree, staged, plan, record, kept)
        except OSError as error:
            _forget_laid(staged, plan)
            staging.remove_folder(tree, folder)
            raise NothingTouchedError(error) from error
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
        for entry in plan.entries:
            _drop_taken(staged, entry, record)
        os.fsync(staged)
    staging.sync_folders(tree, plan)
    failpoint("A14")
    staging.remove(tree, plan)
    failpoint("A15")
    return tuple(left)


def _lay_ready(tree: Tree, staged: int, plan: Plan, record: Record, kept: Before) -> None:
    # All of it first, so that a full disk is found before anything visible changes.
    for entry in plan.entries:
        if entry.old is None or _reaches(tree, entry, entry.old, record.before):
            continue
        written = _reaches(tree, entry, entry.new, record.after)
        if _displaced(staged, entry, record, written=written) is None:
            _recreate(staged, entry, record, kept.files[entry.path])


def _reaches(tree: Tree, entry: Entry, mode: str | None, read: Callable[[Entry], bytes]) -> bool:
    try:
        return _has(tree, entry, mode, read)
    except OSError as error:
        if not is_unreachable(error):
            raise
        return False


def _forget_laid(staged: int, plan: Plan) -> None:
    for entry in plan.entries:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staging.again(entry), dir_fd=staged)


def _take_away(tree: Tree, staged: int, entry: Entry, record: Record) -> bool:
    try:
        if not _returned_edit(tree, staged, entry, record):
            return False
        mode = tree.mode_of(entry.path)
        if mode is None or mode == "folder":
            return True  # not written yet, or the folder it was to replace
        return _has(tree, entry, entry.new, record.after) and _take(tree, staged, entry, record)
    except OSError as error:
        if not is_unreachable(error):
            raise
        # What it was to lie in was not made yet: a file or link of the base is still there.
    return True


def _take(tree: Tree, staged: int, entry: Entry, record: Record) -> bool:
    """Take the candidate's content from its path; put back what turns out to be an edit."""
    _drop_taken(staged, entry, record)  # of a way back that was cut short
    with tree.parent(entry.path) as (folder, name):
        staging.move(folder, name, staged, staging.taken(entry))
    failpoint("A16")
    return _returned_edit(tree, staged, entry, record)


def _returned_edit(tree: Tree, staged: int, entry: Entry, record: Record) -> bool:
    """Say whether nothing but the candidate's was taken; put back what was."""
    taken = staging.taken(entry)
    if _is_of_candidate(staged, taken, entry, record):
        return True
    with contextlib.suppress(FileExistsError), tree.parent(entry.path) as (folder, name):
        staging.move(staged, taken, folder, name)
    return False


def _is_of_candidate(staged: int, taken: bytes, entry: Entry, record: Record) -> bool:
    if not staging.exists(staged, taken):
        return True
    found = git_mode(os.stat(taken, dir_fd=staged, follow_symlinks=False))
    return found == entry.new and same_content(staged, taken, found, record.after(entry))


def _drop_taken(staged: int, entry: Entry, record: Record) -> None:
    taken = staging.taken(entry)
    if _is_of_candidate(staged, taken, entry, record):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(taken, dir_fd=staged)


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
        if not _returned_edit(tree, staged, entry, record):
            return False
        mode = tree.mode_of(entry.path)
        if _has(tree, entry, entry.old, record.before):
            return True
        written = _has(tree, entry, entry.new, record.after)
        if mode is not None and not written:
            return False
        source = _displaced(staged, entry, record, written=written)
        if source is None:
            source = staging.again(entry)
            if not staging.exists(staged, source):
                _recreate(staged, entry, record, before.files[entry.path])
        if written and not _take(tree, staged, entry, record):
            return False
        with tree.parent(entry.path) as (folder, name):
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


def _recreate(staged: int, entry: Entry, record: Record, kept: Kept) -> None:
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
