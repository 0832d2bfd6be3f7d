"""Removing trees that hostile code wrote: by descriptor, past no link and no mount.

A tree is renamed into the trash first, so that its old name is free and a crash half way leaves
nothing that looks alive. There each directory is emptied at the top level: its files are
unlinked, its directories renamed up into the trash. So depth costs neither stack nor descriptors,
and a path longer than the kernel's limit is no obstacle. A mount point refuses both (EBUSY): it
stays, what lies under it is not looked at, and it is reported.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from pathlib import Path

from forkyard.base.durable import make_directory, sync_directory
from forkyard.errors import WorkspaceError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def move_to_trash(path: Path, trash: Path) -> Path | None:
    """Rename a file or tree into the trash; None when it is not there (any more).

    Args:
        path: On the same file system as the trash. A link is moved, never what it points to.
        trash: Created when missing.

    Raises:
        WorkspaceError: It is a mount point, on another file system, or may not be moved.

    Durability:
        The old name is gone from the disk when this returns.
    """
    make_directory(trash)
    target = trash / f"{path.name[:100]}.{uuid.uuid4().hex}"
    try:
        path.rename(target)
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"cannot remove {path}: {error.strerror or error}"
        raise WorkspaceError(
            msg, hint="Unmount what lies on it, or look at its permissions."
        ) from error
    sync_directory(path.parent)
    return target


def empty_trash(trash: Path) -> tuple[str, ...]:
    """Remove everything in the trash. Others may add to it or remove from it meanwhile.

    Returns:
        What could not be removed, each with its reason; empty when all is gone.
    """
    try:
        top = os.open(trash, _DIRECTORY)
    except FileNotFoundError:
        return ()
    stuck: dict[str, str] = {}
    try:
        while names := [name for name in os.listdir(top) if name not in stuck]:  # noqa: PTH208 - by descriptor
            for name in names:
                _remove(top, name, stuck)
    finally:
        os.close(top)
    return tuple(f"{trash / name}: {reason}" for name, reason in sorted(stuck.items()))


def remove_tree(path: Path, trash: Path) -> None:
    """Remove one file or tree by way of the trash; one that is not there is fine.

    Raises:
        WorkspaceError: Something of it could not be removed; the rest is gone.
    """
    if move_to_trash(path, trash) is None:
        return
    left = empty_trash(trash)
    mine = [line for line in left if path.name[:100] in line]
    if mine:
        msg = f"cannot remove all of {path}: {mine[0]}"
        raise WorkspaceError(msg, hint="Unmount what lies in it; it is removed at the next start.")


def _remove(top: int, name: str, stuck: dict[str, str]) -> None:
    """Remove one entry of the trash, moving its directories up beside it."""
    try:
        directory = _open_directory(top, name)
        if directory is None:
            os.unlink(name, dir_fd=top)
            return
        try:
            reason = _empty(top, directory, name)
        finally:
            os.close(directory)
        if reason is None:
            os.rmdir(name, dir_fd=top)
        else:
            stuck[name] = reason
    except FileNotFoundError:
        return  # another remover was faster
    except OSError as error:
        stuck[name] = error.strerror or str(error)


def _empty(top: int, directory: int, name: str) -> str | None:
    """Unlink a directory's files and move its directories up; say what refused."""
    refused: str | None = None
    with os.scandir(directory) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for entry, is_directory in listed:
        try:
            if is_directory:
                _move_up(top, directory, entry, name)
            else:
                os.unlink(entry, dir_fd=directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            refused = f"{entry}: {error.strerror or error}"
    return refused


def _move_up(top: int, directory: int, entry: str, name: str) -> None:
    # the first part of the name goes along, so that a refusal can be told to the tree's owner
    target = f"{name[:-33]}.{uuid.uuid4().hex}"
    try:
        os.rename(entry, target, src_dir_fd=directory, dst_dir_fd=top)
    except PermissionError:
        # moving a directory rewrites its `..`, which needs the right to write it
        _make_accessible(directory, entry)
        os.rename(entry, target, src_dir_fd=directory, dst_dir_fd=top)


def _open_directory(top: int, name: str) -> int | None:
    """Open an entry of the trash when it is a directory; None for everything else."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=top)
    except NotADirectoryError:
        return None
    except PermissionError:
        _make_accessible(top, name)
        return os.open(name, _DIRECTORY, dir_fd=top)
    except OSError:
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                return None
        raise


def _make_accessible(parent: int, name: str) -> None:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{handle}").chmod(0o700)
    finally:
        os.close(handle)
