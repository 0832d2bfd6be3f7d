"""The untracked files of a base, as a tree."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from forkyard.candidate.trees import (
    DIRECTORY,
    EMPTY_TREE,
    FILE,
    Entry,
    decode_tree,
    encode_tree,
    files_below,
    object_id,
)
from forkyard.candidate.untracked import Untracked, UntrackedPaths, find_untracked

GITLINK = 0o160000
Files = Mapping[bytes, Entry]


class Trees:
    """Trees in memory, of a base or a commit; some may be lost."""

    def __init__(self) -> None:
        """Start with none."""
        self.contents: dict[bytes, bytes] = {}
        self.asked: list[bytes] = []
        self.lost: set[bytes] = set()

    def of(self, files: Files) -> bytes:
        """Keep the trees of whole paths."""
        below: dict[bytes, dict[bytes, Entry]] = {}
        here: dict[bytes, Entry] = {}
        for path, entry in files.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                below.setdefault(name, {})[rest] = entry
            else:
                here[name] = entry
        here |= {name: Entry(DIRECTORY, self.of(inner)) for name, inner in below.items()}
        content = encode_tree(here)
        oid = object_id(b"tree", content)
        self.contents[oid] = content
        return oid

    def tree(self, oid: bytes) -> dict[bytes, Entry]:
        """Give a tree as a commit's reader does."""
        self.asked.append(oid)
        if oid in self.lost:
            raise ValueError("it is lost")
        return decode_tree(self.contents[oid])


class Found:
    """The trees that were made, and nothing else."""

    def __init__(self, found: Untracked) -> None:
        """Keep them."""
        self._trees = found.trees

    def entries(self, oid: bytes) -> dict[bytes, Entry]:
        """Give a tree's entries."""
        return {} if oid == EMPTY_TREE else decode_tree(self._trees[oid])


def _file(content: bytes) -> Entry:
    return Entry(FILE, object_id(b"blob", content))


def _paths(found: Untracked) -> set[bytes]:
    return {path for path, _ in files_below(Found(found), found.root)}


_FILES = st.dictionaries(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=3, max_size=3).map(b"/".join),
    st.sampled_from([_file(b"1"), _file(b"2"), Entry(0o120000, bytes(20))]),
)


@given(in_base=_FILES, in_commit=_FILES)
def test_untracked_are_the_paths_that_the_commit_lacks(in_base: Files, in_commit: Files) -> None:
    """Whatever their contents; and each path is answered for alone."""
    trees = Trees()
    base, commit = trees.of(in_base), trees.of(in_commit)
    found = find_untracked(trees.contents, base, commit, trees)
    wanted = in_base.keys() - in_commit.keys()
    assert _paths(found) == wanted
    lookup = UntrackedPaths(Found(found), found.root)
    for path in in_base.keys() | in_commit.keys():
        assert (path in lookup) == (path in wanted)
    assert b"a/b" not in lookup
    assert "a" not in lookup


def test_equal_directories_are_not_looked_into() -> None:
    """The cost follows the difference."""
    trees = Trees()
    same = {b"same/%d/f" % number: _file(b"%d" % number) for number in range(9)}
    base = trees.of({**same, b"new.o": _file(b"")})
    commit = trees.of(same)
    found = find_untracked(trees.contents, base, commit, trees)
    assert _paths(found) == {b"new.o"}
    assert trees.asked == [commit]


def test_nothing_is_read_when_the_base_is_the_commit() -> None:
    """A clean checkout costs nothing."""
    trees = Trees()
    base = trees.of({b"a/f": _file(b"")})
    assert find_untracked(trees.contents, base, base, trees) == Untracked(EMPTY_TREE, {})
    assert trees.asked == []


def test_submodule_and_kinds_that_changed_are_not_tracked() -> None:
    """A path counts as tracked only where the commit has a file or link at it."""
    trees = Trees()
    base = trees.of({b"lib/f": _file(b""), b"was-dir": _file(b""), b"was-file/f": _file(b"")})
    commit = trees.of(
        {b"lib": Entry(GITLINK, bytes(20)), b"was-dir/f": _file(b""), b"was-file": _file(b"")}
    )
    found = find_untracked(trees.contents, base, commit, trees)
    assert _paths(found) == {b"lib/f", b"was-dir", b"was-file/f"}


def test_directory_whose_tree_is_lost_counts_as_untracked_and_is_told() -> None:
    """What cannot be read is not known to be tracked; the rest is."""
    trees = Trees()
    names = [b"d%d" % number for number in range(5)]
    base = trees.of({b"top": _file(b""), **{name + b"/f": _file(b"new") for name in names}})
    commit = trees.of({b"top": _file(b""), **{name + b"/f": _file(name) for name in names}})
    trees.lost = {entry.oid for entry in trees.tree(commit).values() if entry.is_tree}
    found = find_untracked(trees.contents, base, commit, trees)
    assert _paths(found) == {name + b"/f" for name in names}
    assert found.notes[0] == "which files of d0/ are committed is unknown: it is lost"
    assert found.notes[-1] == "so it is for 2 more directories"
