"""Which files of a base its commit does not have: the only ones that ignore rules may leave out.

They are kept as a tree of their own, so that looking one up costs the same in a base of any size,
and so that the tree's id says all: it is the empty tree where everything is tracked, and the
base's own where no commit is known. Standard library only.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from forkyard.candidate.trees import (
    DIRECTORY,
    EMPTY_TREE,
    Entry,
    TreeSource,
    decode_tree,
    encode_tree,
    object_id,
)

NAMED = 3
"""So many directories that could not be read are named."""


class CommittedTrees(Protocol):
    """Gives the entries of a commit's trees."""

    def tree(self, oid: bytes) -> dict[bytes, Entry]:
        """Give a tree's entries; ValueError where it cannot be had."""
        ...


class TreeContents(Protocol):
    """Gives the contents of trees by id."""

    def __getitem__(self, oid: bytes, /) -> bytes:
        """Give a tree's content; KeyError where it is not known."""
        ...


class Untracked(NamedTuple):
    """The untracked files of a base, as a tree."""

    root: bytes
    trees: dict[bytes, bytes]
    """All tree objects of it."""
    notes: tuple[str, ...] = ()


def find_untracked(
    trees: TreeContents, base: bytes, commit_tree: bytes, committed: CommittedTrees
) -> Untracked:
    """Take what a commit has out of a base's tree.

    A directory that is the same in both is not looked into, so the cost follows the difference.

    Args:
        trees: Knows all tree objects of the base.
        base: Its root.
        commit_tree: The root of the commit.
        committed: Reads the commit's trees; what it cannot read counts as not committed.
    """
    difference = _Difference(trees, committed)
    found = difference.without(base, commit_tree, b"") if base != EMPTY_TREE else None
    root = found.oid if found is not None else EMPTY_TREE
    return Untracked(root, difference.made, _notes(difference.unread))


class _Difference:
    def __init__(self, trees: TreeContents, committed: CommittedTrees) -> None:
        self._trees = trees
        self._committed = committed
        self.made: dict[bytes, bytes] = {}
        self.unread: list[tuple[bytes, str]] = []

    def without(self, oid: bytes, committed_oid: bytes, path: bytes) -> Entry | None:
        """Give a directory without what the commit has in it; None where that is all."""
        if oid == committed_oid:
            return None
        try:
            known = self._committed.tree(committed_oid)
        except ValueError as error:
            self.unread.append((path, str(error)))
            return self._whole(oid)
        left: dict[bytes, Entry] = {}
        for name, entry in decode_tree(self._trees[oid]).items():
            there = known.get(name)
            if there is not None and entry.is_tree and there.is_tree:
                rest = self.without(entry.oid, there.oid, path + name + b"/")
            elif entry.is_tree:
                # a submodule's files are in commits of its own, not in this one
                rest = self._whole(entry.oid)
            else:
                rest = entry if there is None or there.is_tree else None
            if rest is not None:
                left[name] = rest
        if not left:
            return None
        content = encode_tree(left)
        made = object_id(b"tree", content)
        self.made[made] = content
        return Entry(DIRECTORY, made)

    def _whole(self, oid: bytes) -> Entry:
        if oid not in self.made:
            self.made[oid] = self._trees[oid]
            for entry in decode_tree(self._trees[oid]).values():
                if entry.is_tree:
                    self._whole(entry.oid)
        return Entry(DIRECTORY, oid)


def _notes(unread: list[tuple[bytes, str]]) -> tuple[str, ...]:
    notes = [
        f"which files of {path.decode('utf-8', 'replace') or './'} are committed is unknown:"
        f" {reason}"
        for path, reason in unread[:NAMED]
    ]
    if len(unread) > NAMED:
        notes.append(f"so it is for {len(unread) - NAMED} more directories")
    return tuple(notes)


class UntrackedPaths:
    """Answers whether a path of the base is untracked."""

    def __init__(self, trees: TreeSource, root: bytes) -> None:
        """Keep the tree; nothing is read before the first question."""
        self._trees = trees
        self._directories: dict[bytes, dict[bytes, Entry]] = {b"": trees.entries(root)}

    def __contains__(self, path: object) -> bool:
        """Say whether it names an untracked file or link."""
        if not isinstance(path, bytes):
            return False
        directory, _, name = path.rpartition(b"/")
        entry = self._entries(directory).get(name)
        return entry is not None and not entry.is_tree

    def _entries(self, directory: bytes) -> dict[bytes, Entry]:
        found = self._directories.get(directory)
        if found is None:
            above, _, name = directory.rpartition(b"/")
            entry = self._entries(above).get(name)
            is_tree = entry is not None and entry.is_tree
            found = self._trees.entries(entry.oid) if entry is not None and is_tree else {}
            self._directories[directory] = found
        return found
