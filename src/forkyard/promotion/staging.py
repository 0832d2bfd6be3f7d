"""The folder at a tree's root that holds what is on its way in or out, while writing only."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from forkyard.promotion.plan import Entry, Plan, parents
from forkyard.promotion.record import Kept
from forkyard.promotion.tree import Tree, is_unreachable
from forkyard.shim import kernel

_NO_SUCH_RENAME = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def incoming(entry: Entry) -> bytes:
    """Name of an entry's new content; after the swap, of what it displaced."""
    return b"new%d" % entry.index


def outgoing(entry: Entry) -> bytes:
    """Name of what a deletion took out."""
    return b"old%d" % entry.index


def aside(entry: Entry) -> bytes:
    """Name of what is displaced where the file system cannot swap two names."""
    return b"aside%d" % entry.index


def again(entry: Entry) -> bytes:
    """Name of what the way back makes, or takes away."""
    return b"again%d" % entry.index


def taken(entry: Entry) -> bytes:
    """Name of what the way back took from its path, until it is known to be the candidate's."""
    return b"taken%d" % entry.index


def create_file(
    folder: int,
    name: bytes,
    content: bytes,
    *,
    owner: tuple[int, int],
    mode: int,
    like: Kept | None = None,
) -> None:
    """Create a file durably with owner, mode and the extended attributes of another."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        for key, value in (like.attributes if like else {}).items():
            with contextlib.suppress(OSError):
                os.setxattr(descriptor, key, value)
        _give(descriptor, owner)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_link(folder: int, name: bytes, text: bytes, *, owner: tuple[int, int]) -> None:
    """Create a symbolic link with an owner."""
    os.symlink(text, name, dir_fd=folder)
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if (found.st_uid, found.st_gid) != owner:
        with _where_there_is_such_an_owner():
            os.chown(name, *owner, dir_fd=folder, follow_symlinks=False)


def create_folder(folder: int, name: bytes, *, owner: tuple[int, int], mode: int) -> None:
    """Create a folder with owner and mode."""
    os.mkdir(name, 0o700, dir_fd=folder)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        _give(descriptor, owner)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _give(descriptor: int, owner: tuple[int, int]) -> None:
    found = os.fstat(descriptor)
    if (found.st_uid, found.st_gid) != owner:
        with _where_there_is_such_an_owner():
            os.fchown(descriptor, *owner)


@contextlib.contextmanager
def _where_there_is_such_an_owner() -> Iterator[None]:
    """Leave a file with the user where a rootless server cannot name whose it was."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def remove_folder(tree: Tree, path: bytes) -> None:
    """Remove a folder if it is empty; one that holds something, or is gone, is fine."""
    try:
        with tree.parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST} and not is_unreachable(error):
            raise


def exists(folder: int, name: bytes) -> bool:
    """Say whether anything has this name."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def move(old_folder: int, old: bytes, new_folder: int, new: bytes) -> None:
    """Rename, never over something.

    Raises:
        FileExistsError: The new name is taken.
    """
    try:
        kernel.rename(old_folder, old, new_folder, new, kernel.RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _NO_SUCH_RENAME:
            raise
        # Some network file systems know plain rename only.
        if exists(new_folder, new):
            raise FileExistsError(errno.EEXIST, "exists already", os.fsdecode(new)) from error
        os.rename(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder)


def swap(staged: int, entry: Entry, folder: int, name: bytes) -> None:
    """Exchange the staged content with what lies at the path."""
    try:
        kernel.rename(staged, incoming(entry), folder, name, kernel.RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in _NO_SUCH_RENAME:
            raise
        os.rename(name, aside(entry), src_dir_fd=folder, dst_dir_fd=staged)
        os.rename(incoming(entry), name, src_dir_fd=staged, dst_dir_fd=folder)
        os.rename(aside(entry), incoming(entry), src_dir_fd=staged, dst_dir_fd=staged)


def sync_folders(tree: Tree, plan: Plan) -> None:
    """Make every rename in the touched folders durable."""
    touched = {above for entry in plan.entries for above in parents(entry.path)}
    for path in sorted(touched | {b""}, key=len, reverse=True):
        try:
            with tree.folder(path) as held:
                os.fsync(held)
        except OSError as error:
            if not is_unreachable(error):
                raise


def remove(tree: Tree, plan: Plan) -> None:
    """Remove the staging folder with what is ours in it; idempotent.

    What somebody else wrote and cannot go back to its path keeps the folder.
    """
    staging = os.fsencode(plan.staging)
    with contextlib.suppress(FileNotFoundError):
        with tree.folder(staging) as staged:
            for entry in plan.entries:
                for name in (incoming(entry), outgoing(entry), aside(entry), again(entry)):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=staged)
        remove_folder(tree, staging)
    os.fsync(tree.root)
