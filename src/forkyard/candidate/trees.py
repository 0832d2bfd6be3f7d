"""Git's tree and pack formats, as far as we write them ourselves. Standard library only."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, Protocol

FILE = 0o100644
EXECUTABLE = 0o100755
LINK = 0o120000
DIRECTORY = 0o040000

_PACK_KIND = {b"commit": 1, b"tree": 2, b"blob": 3}
_MAGIC = b"FYTREES2"
_WHOLE_MAGIC = b"FYTREES1"
_HEADER = struct.Struct(">8sQ")
_RECORD = struct.Struct(">20sQL")
_ID_BYTES = 20
HEAD_BYTES = _HEADER.size + _ID_BYTES
"""Of an index: what `below_of` reads."""
_COMPRESSION = 1
"""Packs are local and short-lived in the page cache; speed wins over size."""


class Entry(NamedTuple):
    """One name in a tree: git's mode and the object's id."""

    mode: int
    oid: bytes

    @property
    def is_tree(self) -> bool:
        """Whether it is a directory."""
        return self.mode == DIRECTORY


class TreeSource(Protocol):
    """Gives the entries of trees by id."""

    def entries(self, oid: bytes) -> dict[bytes, Entry]:
        """Give a tree's entries by name; KeyError where it is not known."""
        ...


def object_id(kind: bytes, content: bytes) -> bytes:
    """Give git's id of an object."""
    return hashlib.sha1(b"%s %d\0" % (kind, len(content)) + content, usedforsecurity=False).digest()


def mode_of(status: os.stat_result) -> int:
    """Give git's mode of a regular file or link."""
    if stat.S_ISLNK(status.st_mode):
        return LINK
    return EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE


def encode_tree(entries: Mapping[bytes, Entry]) -> bytes:
    """Write a tree object's content."""

    def order(item: tuple[bytes, Entry]) -> bytes:
        # git sorts directories as if their names ended in a slash
        return item[0] + b"/" if item[1].is_tree else item[0]

    return b"".join(
        b"%o %s\0%s" % (entry.mode, name, entry.oid)
        for name, entry in sorted(entries.items(), key=order)
    )


def decode_tree(content: bytes) -> dict[bytes, Entry]:
    """Read a tree object's content.

    Raises:
        ValueError: It is no tree.
    """
    entries: dict[bytes, Entry] = {}
    position = 0
    while position < len(content):
        space = content.index(b" ", position)
        end = content.index(b"\0", space)
        following = end + 1 + _ID_BYTES
        if following > len(content):
            raise ValueError("a tree entry is cut short")
        mode = int(content[position:space], 8)
        entries[content[space + 1 : end]] = Entry(mode, content[end + 1 : following])
        position = following
    return entries


EMPTY_TREE = object_id(b"tree", b"")


class NoTrees:
    """A source that knows only the empty tree."""

    def entries(self, oid: bytes) -> dict[bytes, Entry]:
        """Give nothing for the empty tree."""
        if oid != EMPTY_TREE:
            raise KeyError(oid.hex())
        return {}


class _IndexFile:
    """One mapped file of an index."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        magic, self._count = _HEADER.unpack_from(self._map, 0)
        if magic not in (_MAGIC, _WHOLE_MAGIC):
            raise ValueError("not a tree index")
        self._records = _HEADER.size + (_ID_BYTES if magic == _MAGIC else 0)

    def close(self) -> None:
        self._map.close()

    def all(self) -> Iterator[tuple[bytes, bytes]]:
        for number in range(self._count):
            yield self._record(number)

    def find(self, oid: bytes) -> bytes | None:
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            found, content = self._record(middle)
            if found == oid:
                return content
            if found < oid:
                low = middle + 1
            else:
                high = middle
        return None

    def _record(self, number: int) -> tuple[bytes, bytes]:
        oid, offset, length = _RECORD.unpack_from(self._map, self._records + number * _RECORD.size)
        return oid, self._map[offset : offset + length]


class TreeIndex:
    """All trees of one base, looked up by id without reading the rest.

    They lie in one file, or in several of which each adds to the next: so a base that differs
    little from another takes little. Layout of one: magic, count, the tree whose index it adds to
    (zeros: it is whole), records (id, offset, length) in order of id, then the contents. So
    looking at one directory costs the same in a base of any size.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Map open files, the newest first; the descriptors may be closed afterwards.

        Raises:
            ValueError: One of them is no tree index.
        """
        self._files = [_IndexFile(descriptor) for descriptor in descriptors]

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()

    def entries(self, oid: bytes) -> dict[bytes, Entry]:
        """Give a tree's entries, its content checked against its id."""
        return {} if oid == EMPTY_TREE else decode_tree(self[oid])

    def all(self) -> Iterator[tuple[bytes, bytes]]:
        """Give every tree with its content, unchecked; one may come more than once."""
        for file in self._files:
            yield from file.all()

    def __getitem__(self, oid: bytes) -> bytes:
        """Give a tree's content, checked against its id; KeyError where it is not there."""
        for file in self._files:
            content = file.find(oid)
            if content is None:
                continue
            if object_id(b"tree", content) != oid:
                raise ValueError(f"tree {oid.hex()} is damaged in the base's index")
            return content
        raise KeyError(oid.hex())


class TreesOver:
    """The contents of some trees, and those of an index where they are not among them."""

    def __init__(self, own: Mapping[bytes, bytes], index: TreeIndex) -> None:
        """Keep both."""
        self._own = own
        self._index = index

    def __getitem__(self, oid: bytes) -> bytes:
        """Give a tree's content; KeyError where neither has it."""
        return self._own[oid] if oid in self._own else self._index[oid]


def write_tree_index(file: BinaryIO, trees: Mapping[bytes, bytes], below: str = "") -> None:
    """Write a file that `TreeIndex` reads.

    Args:
        file: Empty.
        trees: Contents by id.
        below: The tree whose index this one adds to; nothing where it is whole.
    """
    file.write(_HEADER.pack(_MAGIC, len(trees)))
    file.write(bytes.fromhex(below) or bytes(_ID_BYTES))
    offset = HEAD_BYTES + len(trees) * _RECORD.size
    ordered = sorted(trees.items())
    for oid, content in ordered:
        file.write(_RECORD.pack(oid, offset, len(content)))
        offset += len(content)
    for _oid, content in ordered:
        file.write(content)


def below_of(head: bytes) -> str | None:
    """Read from an index's first bytes which tree's index it adds to; None where it is whole."""
    oid = head[_HEADER.size : HEAD_BYTES]
    return oid.hex() if head.startswith(_MAGIC) and any(oid) else None


class PackWriter:
    """Writes a git pack of whole objects to a stream; the number of objects is known before."""

    def __init__(self, file: BinaryIO, count: int) -> None:
        self._file = file
        self._left = count
        self._digest = hashlib.sha1(usedforsecurity=False)
        self._write(struct.pack(">4sLL", b"PACK", 2, count))

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def add(self, kind: bytes, size: int, chunks: Iterable[bytes]) -> None:
        """Add one object; its chunks must amount to its size.

        Raises:
            ValueError: They do not, or there are more objects than announced.
        """
        if self._left == 0:
            raise ValueError("more objects than announced")
        self._left -= 1
        head = (_PACK_KIND[kind] << 4) | (size & 0xF)
        rest = size >> 4
        header = bytearray()
        while rest:
            header.append(head | 0x80)
            head = rest & 0x7F
            rest >>= 7
        header.append(head)
        self._write(bytes(header))
        packer = zlib.compressobj(_COMPRESSION)
        seen = 0
        for chunk in chunks:
            seen += len(chunk)
            self._write(packer.compress(chunk))
        self._write(packer.flush())
        if seen != size:
            raise ValueError(f"an object of {size} bytes gave {seen}")

    def finish(self) -> None:
        """Write the trailer.

        Raises:
            ValueError: Fewer objects were added than announced.
        """
        if self._left:
            raise ValueError(f"{self._left} announced objects are missing")
        self._file.write(self._digest.digest())
        self._file.flush()


def files_below(
    trees: TreeSource, oid: bytes, prefix: bytes = b""
) -> Iterator[tuple[bytes, Entry]]:
    """Give every file and link below a tree, with its path, in order of name."""
    for name, entry in sorted(trees.entries(oid).items()):
        if entry.is_tree:
            yield from files_below(trees, entry.oid, prefix + name + b"/")
        else:
            yield prefix + name, entry
