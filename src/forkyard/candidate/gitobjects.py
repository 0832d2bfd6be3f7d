"""Reading single objects from an untrusted object store, every byte checked by hash.

Loose objects, and packs of version 2 with their index and delta chains; sizes, depths and counts
are capped, so a crafted store costs a bounded amount of work and at worst gives no object.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator

from forkyard.candidate.reading import LIST, READ
from forkyard.candidate.trees import EMPTY_TREE, Entry, decode_tree
from forkyard.shim import kernel

OBJECT_BYTES = 32 * 1024**2
"""No commit or tree of a real history is larger."""
WORK_BYTES = 512 * 1024**2
"""So much is unpacked at most, deltas and what they are made from included."""
READ_BYTES = 16 * 1024
OPEN_PACKS = 200
"""So many stay open between one object and the next."""
DELTA_DEPTH = 60
PACKS = 2000
_OFS_DELTA, _REF_DELTA = 6, 7
_KINDS = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_INDEX_HEADER = 8
_FANOUT = 1024
_FIRST_TREE = re.compile(rb"tree ([0-9a-f]{40})\n")


class ObjectReader:
    """Reads objects below one open .git directory."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._bytes_left = WORK_BYTES
        self._packs: dict[bytes, _Pack] = {}
        self._names: tuple[bytes, ...] | None = None

    def close(self) -> None:
        """Let go of the packs."""
        for pack in self._packs.values():
            pack.close()
        self._packs.clear()

    def tree(self, oid: bytes) -> dict[bytes, Entry]:
        """Give the entries of a tree whose bytes have its hash.

        Raises:
            ValueError: It is missing here, damaged, or no tree; the text says which.
        """
        if oid == EMPTY_TREE:
            return {}
        kind, content = self._checked(oid, 0)
        if kind != b"tree":
            raise ValueError(f"object {oid.hex()} is no tree")
        return decode_tree(content)

    def commit_tree(self, commit: str) -> str:
        """Give the tree of a commit whose bytes have its hash.

        Raises:
            ValueError: It is missing here, damaged, or no commit; the text says which.
        """
        kind, content = self._checked(bytes.fromhex(commit), 0)
        match = _FIRST_TREE.match(content)
        if kind != b"commit" or match is None:
            raise ValueError(f"object {commit} is no commit")
        return match[1].decode()

    def _checked(self, oid: bytes, depth: int) -> tuple[bytes, bytes]:
        found = self._loose(oid) or self._packed(oid, depth)
        if found is None:
            where = " (its alternate stores are not read)" if self._has_alternates() else ""
            raise ValueError(f"object {oid.hex()} is not in the repository's own store{where}")
        kind, content = found
        head = b"%s %d\0" % (kind, len(content))
        if hashlib.sha1(head + content, usedforsecurity=False).digest() != oid:
            raise ValueError(f"object {oid.hex()} does not have the bytes of its name")
        return kind, content

    def _has_alternates(self) -> bool:
        descriptor = self._open(b"objects/info/alternates")
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    def _open(self, path: bytes) -> int | None:
        try:
            descriptor = kernel.open_beneath(self._directory, path, READ)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return descriptor

    def _spend(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ValueError(f"more than {WORK_BYTES} bytes of objects")

    def _loose(self, oid: bytes) -> tuple[bytes, bytes] | None:
        name = oid.hex().encode()
        descriptor = self._open(b"objects/%s/%s" % (name[:2], name[2:]))
        if descriptor is None:
            return None
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            packed = file.read(OBJECT_BYTES)
        whole = _inflate((packed,))
        self._spend(len(whole))
        head, _, content = whole.partition(b"\0")
        return head.split(b" ", 1)[0], content

    def _packed(self, oid: bytes, depth: int) -> tuple[bytes, bytes] | None:
        for name in self._pack_names():
            pack = self._packs.get(name) or self._open_pack(name)
            if pack is None:
                continue
            try:
                offset = pack.find(oid)
                if offset is not None:
                    return self._entry(pack.pages, offset, depth)
            except IndexError:
                raise ValueError("an entry of a pack is cut short") from None
            finally:
                if name not in self._packs:
                    pack.close()
        return None

    def _open_pack(self, name: bytes) -> _Pack | None:
        self._spend(_FANOUT)
        index = self._open(b"objects/pack/%s.idx" % name)
        pages = self._open(b"objects/pack/%s.pack" % name)
        if index is None or pages is None:
            for descriptor in (index, pages):
                if descriptor is not None:
                    os.close(descriptor)
            return None
        pack = _Pack(_Pages(index), _Pages(pages))
        if len(self._packs) < OPEN_PACKS:
            self._packs[name] = pack
        return pack

    def _pack_names(self) -> tuple[bytes, ...]:
        if self._names is None:
            self._names = tuple(self._list_packs())
        return self._names

    def _list_packs(self) -> Iterator[bytes]:
        try:
            directory = kernel.open_beneath(self._directory, b"objects/pack", LIST)
        except OSError:
            return
        try:
            names = sorted(os.fsencode(name) for name in os.listdir(directory))  # noqa: PTH208 - a descriptor
        finally:
            os.close(directory)
        packs = [name.removesuffix(b".idx") for name in names if name.endswith(b".idx")]
        yield from packs[:PACKS]

    def _entry(self, pages: _Pages, offset: int, depth: int) -> tuple[bytes, bytes]:
        if depth > DELTA_DEPTH:
            raise ValueError(f"a chain of more than {DELTA_DEPTH} deltas")
        raw = pages.read(offset, 32)
        kind = (raw[0] >> 4) & 7
        position = 1
        while raw[position - 1] & 0x80:
            position += 1
        if kind in _KINDS:
            return _KINDS[kind], self._unpacked(pages, offset + position)
        if kind == _OFS_DELTA:
            distance = raw[position] & 0x7F
            while raw[position] & 0x80:
                position += 1
                distance = ((distance + 1) << 7) | (raw[position] & 0x7F)
            base = self._entry(pages, offset - distance, depth + 1)
            position += 1
        elif kind == _REF_DELTA:
            base = self._checked(raw[position : position + 20], depth + 1)
            position += 20
        else:
            raise ValueError("an unknown kind of object in a pack")
        delta = self._unpacked(pages, offset + position)
        result = _apply_delta(base[1], delta)
        self._spend(len(result))
        return base[0], result

    def _unpacked(self, pages: _Pages, offset: int) -> bytes:
        content = _inflate(pages.chunks(offset))
        self._spend(len(content))
        return content


class _Pages:
    """An open file that is read at given places, and never past its end without saying so."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Give up to `size` bytes; at least one."""
        if offset < 0:
            raise ValueError("a place before the start of a pack")
        data = os.pread(self._descriptor, size, offset)
        if not data:
            raise ValueError("a place past the end of a pack")
        return data

    def exactly(self, offset: int, size: int) -> bytes:
        """Give `size` bytes."""
        data = self.read(offset, size)
        if len(data) != size:
            raise ValueError("a pack index is cut short")
        return data

    def chunks(self, offset: int) -> Iterator[bytes]:
        """Give what follows a place, piece by piece, up to the largest packed object."""
        end = offset + OBJECT_BYTES
        while offset < end:
            data = self.read(offset, READ_BYTES)
            offset += len(data)
            yield data


class _Pack:
    """One pack and its index, both open."""

    def __init__(self, index: _Pages, pages: _Pages) -> None:
        self._index = index
        self._fanout: tuple[int, ...] | None = None
        self.pages = pages

    def close(self) -> None:
        self._index.close()
        self.pages.close()

    def find(self, oid: bytes) -> int | None:
        """Give the place of an object in the pack."""
        index = self._index
        if self._fanout is None:
            if index.exactly(0, _INDEX_HEADER) == b"\xfftOc\0\0\0\2":
                self._fanout = struct.unpack(">256L", index.exactly(_INDEX_HEADER, _FANOUT))
            else:
                self._fanout = (0,) * 256
        fanout = self._fanout
        low, high, total = (fanout[oid[0] - 1] if oid[0] else 0), fanout[oid[0]], fanout[255]
        names = _INDEX_HEADER + _FANOUT
        while low < high:
            middle = (low + high) // 2
            name = index.exactly(names + middle * 20, 20)
            if name == oid:
                offsets = names + total * 24
                (offset,) = struct.unpack(">L", index.exactly(offsets + middle * 4, 4))
                if offset & 0x8000_0000:
                    place = offsets + total * 4 + (offset & 0x7FFF_FFFF) * 8
                    (offset,) = struct.unpack(">Q", index.exactly(place, 8))
                return int(offset)
            if name < oid:
                low = middle + 1
            else:
                high = middle
        return None


def _inflate(chunks: Iterable[bytes]) -> bytes:
    opener = zlib.decompressobj()
    content = bytearray()
    try:
        for chunk in chunks:
            content += opener.decompress(chunk, OBJECT_BYTES + 1 - len(content))
            if opener.eof or len(content) > OBJECT_BYTES:
                break
    except zlib.error:
        raise ValueError("an object that cannot be unpacked") from None
    if not opener.eof or len(content) > OBJECT_BYTES:
        raise ValueError(f"an object that is cut short or over {OBJECT_BYTES} bytes")
    return bytes(content)


class _Delta:
    """The orders of a delta; IndexError where they end too soon."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_over(self) -> bool:
        return self._position >= len(self._data)

    def byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1]

    def take(self, size: int) -> bytes:
        self._position += size
        return self._data[self._position - size : self._position]

    def number(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def little(self, order: int, count: int) -> int:
        """Give a little-endian number of which the order's low bits say which bytes are there."""
        return sum(self.byte() << (8 * bit) for bit in range(count) if order & (1 << bit))


def _apply_delta(base: bytes, data: bytes) -> bytes:
    delta = _Delta(data)
    result = bytearray()
    try:
        if delta.number() != len(base):
            raise ValueError("a delta for another object")
        size = delta.number()
        while not delta.is_over and len(result) <= OBJECT_BYTES:
            order = delta.byte()
            if order & 0x80:
                start = delta.little(order, 4)
                length = delta.little(order >> 4, 3) or 0x10000
                result += base[start : start + length]
            else:
                result += delta.take(order)
    except IndexError:
        raise ValueError("a delta that is cut short") from None
    if len(result) != size:
        raise ValueError("a delta that gives another size")
    return bytes(result)
