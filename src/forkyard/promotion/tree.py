"""A working tree by descriptor: look, compare, move; never through a link or a mount.

Every path is resolved below the root by openat2, parents first, so that a link which somebody
puts in the way leads to an error and never to a file outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from forkyard.promotion.plan import EXECUTABLE, FILE, LINK, Entry, Plan, parents
from forkyard.promotion.record import Before, Kept, Record
from forkyard.shim import kernel

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_CHUNK = 1 << 20
_NOT_CARRIED = frozenset({"security.capability"})
"""A capability belongs to the bytes it was given to; the kernel too drops it at a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One touched path that is not as the recorded base has it."""

    path: bytes
    reason: str


class Tree:
    """One working tree, held open by its root."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._own = os.fstat(root)

    @contextlib.contextmanager
    def folder(self, path: bytes) -> Iterator[int]:
        """Open a folder below the root; the empty path is the root itself."""
        descriptor = kernel.open_beneath(self.root, path, _FOLDER) if path else os.dup(self.root)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Open the folder that holds a path and give it with the last name."""
        above, _, name = path.rpartition(b"/")
        with self.folder(above) as descriptor:
            yield descriptor, name

    def mode_of(self, path: bytes) -> str | None:
        """Give the git mode of what lies at a path; None where nothing does.

        Returns:
            `folder` or `other` for what git has no mode for.
        """
        try:
            with self.parent(path) as (folder, name):
                return git_mode(os.stat(name, dir_fd=folder, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_folder(self, path: bytes) -> bool:
        """Say whether a path is a folder that only folders lead to."""
        try:
            with self.folder(path):
                return True
        except OSError as error:
            if not is_unreachable(error):
                raise
            return False

    def holds(self, path: bytes, mode: str, content: bytes) -> bool:
        """Say whether a path has exactly this type, x-bit and content."""
        if self.mode_of(path) != mode:
            return False
        with self.parent(path) as (folder, name):
            return same_content(folder, name, mode, content)

    def kept(self, path: bytes) -> Kept:
        """Note how a file or folder is."""
        with self.parent(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            attributes: dict[str, bytes] = {}
            if stat.S_ISREG(found.st_mode):
                descriptor = _open_file(folder, name)
                try:
                    attributes = _attributes(descriptor)
                finally:
                    os.close(descriptor)
        return Kept(
            mode=stat.S_IMODE(found.st_mode),
            user_id=found.st_uid,
            group_id=found.st_gid,
            modified_ns=found.st_mtime_ns,
            attributes=attributes,
        )

    def owner_for(self, folder: os.stat_result) -> tuple[int, int]:
        """Say whom something new in a folder belongs to: the tree's owner, as if they wrote it."""
        group = folder.st_gid if folder.st_mode & stat.S_ISGID else self._own.st_gid
        return self._own.st_uid, group


def is_unreachable(error: OSError) -> bool:
    """Say whether an error means that no folders lead to the path (any more)."""
    return error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV}


def git_mode(found: os.stat_result) -> str:
    """Give the git mode of a file, or `folder` or `other`."""
    if stat.S_ISREG(found.st_mode):
        return EXECUTABLE if found.st_mode & stat.S_IXUSR else FILE
    if stat.S_ISLNK(found.st_mode):
        return LINK
    return "folder" if stat.S_ISDIR(found.st_mode) else "other"


def same_content(folder: int, name: bytes, mode: str, content: bytes) -> bool:
    """Compare a file's bytes, or a link's text, in an open folder."""
    if mode == LINK:
        return os.readlink(name, dir_fd=folder) == content
    descriptor = _open_file(folder, name)
    try:
        if os.fstat(descriptor).st_size != len(content):
            return False
        place = 0
        while chunk := os.read(descriptor, _CHUNK):
            if content[place : place + len(chunk)] != chunk:
                return False
            place += len(chunk)
        return place == len(content)
    finally:
        os.close(descriptor)


def compare(tree: Tree, plan: Plan, record: Record) -> tuple[Difference, ...]:
    """Compare every touched path with the recorded base, byte for byte.

    Returns:
        What differs; empty where the plan can be carried out.
    """
    goes = {entry.path for entry in plan.entries if entry.old is not None}
    found = []
    for entry in plan.entries:
        reason = _difference(tree, entry, record, goes)
        if reason is not None:
            found.append(Difference(path=entry.path, reason=reason))
    if tree.mode_of(os.fsencode(plan.staging)) is not None:
        found.append(Difference(path=os.fsencode(plan.staging), reason="is in the way"))
    return tuple(found)


def _difference(tree: Tree, entry: Entry, record: Record, goes: set[bytes]) -> str | None:
    if entry.old is None and any(above in goes for above in parents(entry.path)):
        return None  # a file becomes the folder above it; that file's own entry is compared
    try:
        mode = tree.mode_of(entry.path)
        _check_parents(tree, entry)
        if entry.old is None:
            return _in_the_way(tree, entry.path, mode, goes)
        return _other_than(tree, entry, mode, record)
    except OSError as error:
        return _blocked(error)


def _other_than(tree: Tree, entry: Entry, mode: str | None, record: Record) -> str | None:
    if mode is None or entry.old is None:
        return "is missing"
    if mode != entry.old:
        return f"is {_words(mode)}, was {_words(entry.old)}"
    return None if tree.holds(entry.path, mode, record.before(entry)) else "has other content"


def _check_parents(tree: Tree, entry: Entry) -> None:
    for above in parents(entry.path):
        try:
            with tree.folder(above):
                return
        except FileNotFoundError:
            if entry.old is not None:
                raise


def _in_the_way(tree: Tree, path: bytes, mode: str | None, goes: set[bytes]) -> str | None:
    if mode is None:
        return None
    if mode != "folder":
        return f"exists already, as {_words(mode)}"
    # A folder becomes a file: fine when the candidate deletes everything that is in it.
    pending = [path]  # no recursion: whoever made the tree may have nested it thousands deep
    while pending:
        folder = pending.pop()
        listing = _listing(tree, folder)
        if not listing:
            return f"is a folder that also holds the empty {os.fsdecode(folder)!r}"
        for name, is_folder in listing:
            below = folder + b"/" + name
            if is_folder:
                pending.append(below)
            elif below not in goes:
                return f"is a folder that also holds {os.fsdecode(below)!r}"
    return None


def _listing(tree: Tree, path: bytes) -> list[tuple[bytes, bool]]:
    with tree.folder(path) as folder, os.scandir(folder) as listing:
        return [(os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in listing]


def before(tree: Tree, plan: Plan) -> Before:
    """Note how everything touched is, so that the way back can restore more than content."""
    files = {e.path: tree.kept(e.path) for e in plan.entries if e.old is not None}
    folders = {}
    for entry in plan.removed:
        for above in parents(entry.path):
            if above not in folders:
                folders[above] = tree.kept(above)
    missing: set[bytes] = set()
    for entry in plan.written:
        missing.update(p for p in parents(entry.path) if not tree.is_folder(p))
    return Before(files=files, folders=folders, missing_folders=tuple(sorted(missing)))


def _open_file(folder: int, name: bytes) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _attributes(descriptor: int) -> dict[str, bytes]:
    kept = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(descriptor):
            if name not in _NOT_CARRIED:
                with contextlib.suppress(OSError):
                    kept[name] = os.getxattr(descriptor, name)
    return kept


def _words(mode: str) -> str:
    return {
        FILE: "a file",
        EXECUTABLE: "an executable file",
        LINK: "a symbolic link",
        "folder": "a folder",
    }.get(mode, "neither file nor link")


def _blocked(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "lies behind a symbolic link"
    if error.errno == errno.EXDEV:
        return "lies on another mounted file system"
    if error.errno == errno.ENOTDIR:
        return "lies below something that is no folder"
    if error.errno == errno.ENOENT:
        return "is missing"
    return f"cannot be read ({os.strerror(error.errno or 0)})"
