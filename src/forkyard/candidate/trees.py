"""Git's tree and pack formats, as far as we write them ourselves. Standard library only."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple, Protocol

FILE = 0o100644
EXECUTABLE = 0o100755
LINK = 0o120000
DIRECTORY = 0o040000

_PACK_KIND = {b"commit": 1, b"tree": 2, b"blob": 3}
_MAGIC = b"FYTREES1"
_HEADER = struct.Struct(">8sQ")
_RECORD = struct.Struct(">20sQL")
_ID_BYTES = 20
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


class TreeIndex:
    """All trees of one base in one file, looked up by id without reading the rest.

    Layout: magic, count, records (id, offset, length) in order of id, then the contents. So
    looking at one directory costs the same in a base of any size.
    """

    def __init__(self, descriptor: int) -> None:
        """Map an open file; the descriptor may be closed afterwards.

        Raises:
            ValueError: It is no tree index.
        """
        self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        magic, self._count = _HEADER.unpack_from(self._map, 0)
        if magic != _MAGIC:
            raise ValueError("not a tree index")

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()

    def entries(self, oid: bytes) -> dict[bytes, Entry]:
        """Give a tree's entries, its content checked against its id."""
        return {} if oid == EMPTY_TREE else decode_tree(self[oid])

    def all(self) -> Iterator[tuple[bytes, bytes]]:
        """Give every tree with its content, unchecked."""
        for number in range(self._count):
            start = _HEADER.size + number * _RECORD.size
            oid, offset, length = _RECORD.unpack_from(self._map, start)
            yield oid, self._map[offset : offset + length]

    def __getitem__(self, oid: bytes) -> bytes:
        """Give a tree's content, checked against its id; KeyError where it is not there."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            found, offset, length = _RECORD.unpack_from(
                self._map, _HEADER.size + middle * _RECORD.size
            )
            if found == oid:
                content = self._map[offset : offset + length]
                if object_id(b"tree", content) != oid:
                    raise ValueError(f"tree {oid.hex()} is damaged in the base's index")
                return content
            if found < oid:
                low = middle + 1
            else:
                high = middle
        raise KeyError(oid.hex())


def write_tree_index(file: BinaryIO, trees: Mapping[bytes, bytes]) -> None:
    """Write the file that `TreeIndex` reads."""
    file.write(_HEADER.pack(_MAGIC, len(trees)))
    offset = _HEADER.size + len(trees) * _RECORD.size
    ordered = sorted(trees.items())
    for oid, content in ordered:
        file.write(_RECORD.pack(oid, offset, len(content)))
        offset += len(content)
    for _oid, content in ordered:
        file.write(content)


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
