"""Trees and packs as git writes them, and trees composed of changes."""

from __future__ import annotations

import hashlib
import io
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.candidate.compose import compose, touched_files
from forkyard.candidate.trees import (
    DIRECTORY,
    EMPTY_TREE,
    FILE,
    Entry,
    PackWriter,
    TreeIndex,
    decode_tree,
    encode_tree,
    files_below,
    object_id,
    write_tree_index,
)

_NAMES = st.binary(min_size=1, max_size=6).filter(
    lambda name: b"\0" not in name and b"/" not in name
)
_ENTRIES = st.builds(
    Entry,
    st.sampled_from([FILE, 0o100755, 0o120000, DIRECTORY]),
    st.binary(min_size=20, max_size=20),
)


class Kept:
    """Trees in memory."""

    def __init__(self) -> None:
        """Start with none."""
        self.contents: dict[bytes, bytes] = {}

    def add(self, entries: dict[bytes, Entry]) -> bytes:
        """Keep a tree; give its id."""
        content = encode_tree(entries)
        oid = object_id(b"tree", content)
        self.contents[oid] = content
        return oid

    def entries(self, oid: bytes) -> dict[bytes, Entry]:
        """Give a tree's entries."""
        return {} if oid == EMPTY_TREE else decode_tree(self.contents[oid])

    def of(self, files: dict[bytes, Entry]) -> bytes:
        """Keep the trees of whole paths."""
        here: dict[bytes, Entry] = {}
        below: dict[bytes, dict[bytes, Entry]] = {}
        for path, entry in files.items():
            head, slash, rest = path.partition(b"/")
            if slash:
                below.setdefault(head, {})[rest] = entry
            else:
                here[path] = entry
        for name, inner in below.items():
            here[name] = Entry(DIRECTORY, self.of(inner))
        return self.add(here)


def _file(text: bytes) -> Entry:
    return Entry(FILE, object_id(b"blob", text))


def test_ids_are_those_of_git() -> None:
    """Known ids of git itself."""
    assert EMPTY_TREE.hex() == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    assert object_id(b"blob", b"hello\n").hex() == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_directories_sort_as_if_they_ended_in_a_slash() -> None:
    """Git's order, which decides about the tree's id."""
    entries = {name: _file(b"") for name in (b"a.b", b"a0")}
    entries[b"a"] = Entry(DIRECTORY, bytes(20))
    assert list(decode_tree(encode_tree(entries))) == [b"a.b", b"a", b"a0"]


@given(st.dictionaries(_NAMES, _ENTRIES, max_size=8))
def test_tree_survives_writing_and_reading(entries: dict[bytes, Entry]) -> None:
    """Whatever the names."""
    assert decode_tree(encode_tree(entries)) == entries


@pytest.mark.parametrize("content", [b"x", b"100644 a\0short", b"abc a\0" + bytes(20)])
def test_damaged_tree_is_refused(content: bytes) -> None:
    """Never half a tree."""
    with pytest.raises(ValueError, match=r".+"):
        decode_tree(content)


def test_index_finds_every_tree_and_nothing_else(tmp_path: Path) -> None:
    """Looked up by id; a damaged one is refused."""
    trees = Kept()
    for number in range(50):
        trees.add({b"%d" % number: _file(b"%d" % number)})
    place = tmp_path / "index"
    with place.open("wb") as file:
        write_tree_index(file, trees.contents)
    with place.open("rb") as file:
        index = TreeIndex([file.fileno()])
    for oid, content in trees.contents.items():
        assert index.entries(oid) == decode_tree(content)
    assert index.entries(EMPTY_TREE) == {}
    with pytest.raises(KeyError):
        index.entries(bytes(20))
    index.close()
    damaged = bytearray(place.read_bytes())
    damaged[-1] ^= 1
    place.write_bytes(damaged)
    with place.open("rb") as file:
        index = TreeIndex([file.fileno()])
    with pytest.raises(ValueError, match="damaged"):
        index.entries(max(trees.contents))
    index.close()


def test_pack_has_head_objects_and_digest() -> None:
    """The bytes of a pack, taken apart by hand."""
    out = io.BytesIO()
    pack = PackWriter(out, 2)
    pack.add(b"blob", 300, [b"a" * 100, b"b" * 200])
    pack.add(b"tree", 0, [])
    pack.finish()
    data = out.getvalue()
    assert data[:12] == b"PACK\0\0\0\2\0\0\0\2"
    assert data[12:14] == bytes([0x80 | 3 << 4 | 300 & 15, 300 >> 4])
    assert zlib.decompressobj().decompress(data[14:]) == b"a" * 100 + b"b" * 200
    assert data[-20:] == hashlib.sha1(data[:-20], usedforsecurity=False).digest()


def test_pack_that_breaks_its_word_is_refused() -> None:
    """Counts and sizes were announced."""
    with pytest.raises(ValueError, match="gave 2"):
        PackWriter(io.BytesIO(), 1).add(b"blob", 3, [b"ab"])
    with pytest.raises(ValueError, match="missing"):
        PackWriter(io.BytesIO(), 1).finish()
    with pytest.raises(ValueError, match="more objects"):
        PackWriter(io.BytesIO(), 0).add(b"blob", 0, [])


_PATHS = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3).map(b"/".join)
_FILES = st.dictionaries(_PATHS, st.builds(_file, st.sampled_from([b"1", b"2", b"3"])), max_size=8)


def _is_tree_of_files(files: dict[bytes, Entry]) -> bool:
    return not any(a != b and b.startswith(a + b"/") for a in files for b in files)


@given(_FILES.filter(_is_tree_of_files), _FILES.filter(_is_tree_of_files))
def test_composing_the_difference_gives_the_other_tree(
    before: dict[bytes, Entry], after: dict[bytes, Entry]
) -> None:
    """Also where files become directories and back; siblings alone are enough for the rest."""
    trees = Kept()
    base = trees.of(before)
    changes: dict[bytes, Entry | None] = {
        path: after.get(path)
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }
    assert compose(trees, base, changes, touched_only=False) == trees.of(after)
    siblings = touched_files(trees, base, changes)
    assert siblings.items() <= before.items()
    part = {**siblings, **changes}
    expected = trees.of({path: entry for path, entry in part.items() if entry is not None})
    assert compose(trees, base, changes, touched_only=True) == expected
    assert dict(files_below(trees, base)) == before
