"""Walking a hostile tree by descriptor and comparing it with a base. Standard library only.

Every component is opened below an open directory by openat2, never through a link or into
another mount; a name is looked at before it is opened, and what was opened is compared with what
was looked at. Names are bytes. Nothing is passed over silently: what the result cannot carry is
listed with its reason, and a hard limit says that it struck.

With a hint (the overlay's upper directory, which names a superset of what was touched) only the
names in it are looked at in the merged view, so the cost follows the change.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Container
from typing import NamedTuple

from forkyard.candidate.kinds import is_litter, kind_of
from forkyard.candidate.reading import LIST, LOOK, read_file
from forkyard.candidate.trees import (
    DIRECTORY,
    EMPTY_TREE,
    Entry,
    TreeSource,
    encode_tree,
    mode_of,
    object_id,
)
from forkyard.shim import kernel

MIB = 1024**2

LISTED_LEFT_OUT = 1000
"""So many things left out are named; the rest is counted."""

GONE = -1
"""Size of a file that is no longer there."""


class WalkLimits(NamedTuple):
    """Limits of one walk."""

    large_bytes: int = 32 * MIB
    """Files above it are carried, and listed as large."""
    total_bytes: int = 768 * MIB
    """Hard: old and new content of all changes. `git apply` refuses a patch of 1 GiB and more,
    and base85 adds a quarter, so more than this could not be proved by replay."""
    file_bytes: int = 4096 * MIB
    """Hard: no file above it is ever read."""
    changes: int = 200_000
    """Hard: changed paths."""
    visited: int = 2_000_000
    """Hard: names looked at, ignored build outputs among them."""
    depth: int = 128
    """Hard: directories within each other."""
    path_bytes: int = 4000
    """Hard: git and the kernel stop at 4096."""


class Change(NamedTuple):
    """One path whose file or link differs from the base."""

    path: bytes
    old: Entry | None
    new: Entry | None
    old_size: int
    new_size: int


class Findings:
    """What a walk saw."""

    # no dataclass here or in the helpers' other modules: importing dataclasses takes a helper
    # longer than all the rest that it imports

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.new_paths: list[tuple[bytes, int]] = []
        """Files that the base does not have, with their sizes (when not hashing)."""
        self.trees: dict[bytes, bytes] = {}
        """Tree objects that were made."""
        self.touched: list[tuple[bytes, int]] = []
        """Untracked files of the base that differ, with their sizes, or GONE (when not hashing)."""
        self.left_out: list[tuple[bytes, str]] = []
        self.left_out_more = 0
        self.large: list[tuple[bytes, int]] = []
        self.stops: dict[str, int] = {}
        """Hard limits that struck, and how often."""
        self.files = 0

    def leave_out(self, path: bytes, reason: str) -> None:
        """Note something that is not carried."""
        if len(self.left_out) < LISTED_LEFT_OUT:
            self.left_out.append((path, reason))
        else:
            self.left_out_more += 1


class _Place(NamedTuple):
    """One directory of the view, open."""

    merged: int
    hint: int | None
    """The same directory in the upper; None to look at every name."""
    prefix: bytes
    depth: int


class Walk:
    """One walk over one view."""

    def __init__(
        self,
        *,
        trees: TreeSource,
        limits: WalkLimits,
        base_view: int | None = None,
        hashing: bool = True,
        keep_changes: bool = True,
        ignored: frozenset[bytes] = frozenset(),
        untracked: Container[bytes] = frozenset(),
    ) -> None:
        """Prepare a walk.

        Args:
            trees: The base's trees.
            limits: When to stop.
            base_view: Descriptor of the repository in a view of the base's layers alone.
            hashing: Without it, only new paths are listed, and untracked ones that differ.
            keep_changes: Without it, trees are made and changes are not kept (recording).
            ignored: Paths that are not carried; those of the base stay as they are there.
            untracked: Paths of the base that its commit does not have.
        """
        self._trees = trees
        self._limits = limits
        self._base_view = base_view
        self._hashing = hashing
        self._keep_changes = keep_changes
        self._ignored = ignored
        self._untracked = untracked
        self._bytes_left = limits.total_bytes
        self._visited = 0
        self.found = Findings()

    def run(self, merged: int | None, hint: int | None, base: bytes) -> bytes:
        """Walk a repository.

        Args:
            merged: Its directory in the view; None where it is gone.
            hint: The same directory in the upper; None to look at everything.
            base: Its tree in the base.

        Returns:
            The id of its tree.
        """
        if merged is None:
            kept = self._remove(b"", Entry(DIRECTORY, base)) if base != EMPTY_TREE else None
            return kept.oid if kept else self._tree({})
        entry = self._directory(_Place(merged, hint, b"", 0), base)
        return entry.oid if entry else self._tree({})

    def _tree(self, entries: dict[bytes, Entry]) -> bytes:
        content = encode_tree(entries)
        oid = object_id(b"tree", content)
        self.found.trees[oid] = content
        return oid

    def _stop(self, path: bytes, limit: str) -> None:
        self.found.stops[limit] = self.found.stops.get(limit, 0) + 1
        self.found.leave_out(path, f"hard limit: {limit}")

    def _directory(self, place: _Place, base: bytes | None) -> Entry | None:
        old = self._trees.entries(base) if base is not None else {}
        present = _names(place.merged)
        wanted = present if place.hint is None else present & _names(place.hint)
        result = dict(old)
        for name in sorted(old.keys() - present):
            self._settle(result, name, self._remove(place.prefix + name, old[name]))
        for name in sorted(wanted):
            self._visited += 1
            if self._visited > self._limits.visited:
                self._stop(place.prefix + name, f"{self._limits.visited} names looked at")
                break
            self._settle(result, name, self._name(place, name, old.get(name)))
        if not result:
            if place.prefix and not present:
                self.found.leave_out(place.prefix, "an empty directory, which git cannot hold")
            return None
        if base is not None and result == old:
            return Entry(DIRECTORY, base)
        return Entry(DIRECTORY, self._tree(result))

    @staticmethod
    def _settle(result: dict[bytes, Entry], name: bytes, entry: Entry | None) -> None:
        if entry is None:
            result.pop(name, None)
        else:
            result[name] = entry

    def _name(self, place: _Place, name: bytes, old: Entry | None) -> Entry | None:
        path = place.prefix + name
        if name.lower() == b".git":
            self._git_data(place.merged, name, path)
            return old
        if len(path) > self._limits.path_bytes:
            self._stop(path[:100] + b"...", f"a path of {self._limits.path_bytes} bytes")
            return old
        status = os.stat(name, dir_fd=place.merged, follow_symlinks=False)
        is_directory = stat.S_ISDIR(status.st_mode)
        is_leaf = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        kept = None
        if old is not None and (old.is_tree != is_directory or not (is_leaf or is_directory)):
            stops = self.found.stops.copy()
            kept = self._remove(path, old)
            if self.found.stops != stops:
                self.found.leave_out(path, "what stood there before is over a hard limit")
                return kept
            old = None
        new = None
        if is_directory:
            new = self._subdirectory(place, name, old)
        elif is_leaf:
            new = self._leaf(place.merged, path, status, old)
        else:
            self._special(path, status)
        # ignored files of the base are kept only where nothing that is carried takes their place
        return new if new is not None else kept

    def _special(self, path: bytes, status: os.stat_result) -> None:
        self.found.leave_out(path, kind_of(status.st_mode))

    def _git_data(self, merged: int, name: bytes, path: bytes) -> None:
        status = os.stat(name, dir_fd=merged, follow_symlinks=False)
        if path == b".git":
            if not stat.S_ISDIR(status.st_mode):
                self.found.leave_out(path, "git data, never carried; it is no directory here")
        elif b"/" in path:
            self.found.leave_out(path, "git data of a nested repository; its files are carried")
        else:
            self.found.leave_out(path, "a name that some systems take for .git")

    def _subdirectory(self, place: _Place, name: bytes, old: Entry | None) -> Entry | None:
        path = place.prefix + name
        if place.depth >= self._limits.depth:
            self._stop(path[:100] + b"...", f"{self._limits.depth} directories within each other")
            return old
        with contextlib.ExitStack() as stack:
            directory = kernel.open_beneath(place.merged, name, LIST)
            stack.callback(os.close, directory)
            hint = None
            if place.hint is not None:
                # without a directory in the upper everything is looked at, to be safe
                with contextlib.suppress(OSError):
                    hint = kernel.open_beneath(place.hint, name, LIST)
                    stack.callback(os.close, hint)
            base = old.oid if old is not None else None
            return self._directory(_Place(directory, hint, path + b"/", place.depth + 1), base)

    def _leaf(
        self, merged: int, path: bytes, status: os.stat_result, old: Entry | None
    ) -> Entry | None:
        self.found.files += 1
        if old is None and self._passed_over(path, status):
            return None
        if not self._hashing:
            if old is not None and path in self._untracked:
                self._compare(merged, path, status, old)
            return old
        if path in self._ignored or not self._readable(path, status, old):
            return old
        name = path.rpartition(b"/")[2]
        new = Entry(mode_of(status), self._content_id(merged, name, status))
        return old if new == old else self._change(path, old, new, status)

    def _compare(self, merged: int, path: bytes, status: os.stat_result, old: Entry) -> None:
        if self._differs(merged, path, status, old):
            self.found.touched.append((path, status.st_size))

    def _differs(self, merged: int, path: bytes, status: os.stat_result, old: Entry) -> bool:
        """Say whether a file is another than in the base; read only where its size is the same."""
        return (
            mode_of(status) != old.mode
            or self._size_in_base(path) != status.st_size
            or self._content_id(merged, path.rpartition(b"/")[2], status) != old.oid
        )

    def _passed_over(self, path: bytes, status: os.stat_result) -> bool:
        """Say whether a new path is not carried, and why."""
        if path in self._ignored:
            return True
        if self._keep_changes and is_litter(path.rpartition(b"/")[2], status):
            self.found.leave_out(path, "agent litter: an empty read-only placeholder")
            return True
        if not self._hashing:
            self.found.new_paths.append((path, status.st_size))
        return False

    def _readable(self, path: bytes, status: os.stat_result, old: Entry | None) -> bool:
        """Say whether a file is within the limits; a touched but equal one may be large."""
        size = status.st_size
        if size <= self._bytes_left and size <= self._limits.file_bytes:
            return True
        is_of_same_size = self._size_in_base(path) == size
        if size > self._limits.file_bytes:
            if is_of_same_size:
                self.found.leave_out(path, "too large to be recorded, in the base as well")
            else:
                self._stop(path, f"a file of {size} bytes")
            return False
        if old is not None and is_of_same_size:
            return True
        self._stop(path, f"{self._limits.total_bytes} bytes of changes")
        return False

    def _content_id(self, merged: int, name: bytes, status: os.stat_result) -> bytes:
        if stat.S_ISLNK(status.st_mode):
            return object_id(b"blob", os.readlink(name, dir_fd=merged))
        digest = hashlib.sha1(b"blob %d\0" % status.st_size, usedforsecurity=False)
        for chunk in read_file(merged, name, status):
            digest.update(chunk)
        return digest.digest()

    def _change(
        self, path: bytes, old: Entry | None, new: Entry, status: os.stat_result
    ) -> Entry | None:
        if not self._keep_changes:
            return new
        old_size = max(self._size_in_base(path), 0) if old is not None else 0
        if not self._charge(path, old_size + status.st_size):
            return old
        self.found.changes.append(Change(path, old, new, old_size, status.st_size))
        if status.st_size > self._limits.large_bytes:
            self.found.large.append((path, status.st_size))
        if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            self.found.leave_out(path, "its set-id bit only; the file itself is carried")
        return new

    def _remove(self, path: bytes, old: Entry) -> Entry | None:
        """Note that a path of the base is gone; what is kept, ignored or for a limit, is given."""
        if old.is_tree:
            prefix = path + b"/" if path else b""
            entries = self._trees.entries(old.oid)
            kept = {
                name: left
                for name, entry in sorted(entries.items())
                if (left := self._remove(prefix + name, entry)) is not None
            }
            return Entry(DIRECTORY, self._tree(kept)) if kept else None
        if path in self._ignored:
            return old
        if not self._hashing:
            if path in self._untracked:
                self.found.touched.append((path, GONE))
            return None
        size = max(self._size_in_base(path), 0)
        if not self._charge(path, size):
            return old
        self.found.changes.append(Change(path, old, None, size, 0))
        return None

    def _charge(self, path: bytes, size: int) -> bool:
        if len(self.found.changes) >= self._limits.changes:
            self._stop(path, f"{self._limits.changes} changed paths")
            return False
        if size > self._bytes_left:
            self._stop(path, f"{self._limits.total_bytes} bytes of changes")
            return False
        self._bytes_left -= size
        return True

    def _size_in_base(self, path: bytes) -> int:
        """Give a size, or -1 where the base's layers have nothing there."""
        if self._base_view is None:
            return -1
        try:
            descriptor = kernel.open_beneath(self._base_view, path, LOOK)
        except OSError:
            return -1
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)


def _names(directory: int) -> set[bytes]:
    # listdir moves the descriptor's position, so a repeated listing wants a fresh start
    os.lseek(directory, 0, os.SEEK_SET)
    return {os.fsencode(name) for name in os.listdir(directory)}
