"""Removing from the store of candidate trees what no candidate and no base needs any more.

Only what is older than a grace time goes, and nothing that was taken in again meanwhile: taking a
pack in touches it, also where it was there before. So a collection that is under way, or one whose
candidate is not journalled yet, never loses an object. Contents of a base that no candidate
changed are not in the store, so reachability stops at what is missing.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.base.durable import sync_directory
from forkyard.base.removal import empty_trash, move_to_trash
from forkyard.candidate.base_index import with_those_below
from forkyard.candidate.objects import ObjectStore

GRACE_SECONDS = 3600.0
"""Far beyond what lies between taking objects in and journalling who needs them."""

MOST_PACKS = 50
"""Git looks through all of them for each object."""
WASTE = 0.25
"""Share of unneeded bytes in the packs that makes writing the rest anew worth it."""

_IDX_MAGIC = b"\377tOc\0\0\0\2"
_FANOUT = struct.Struct(">256L")
_ID_BYTES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What must stay."""

    trees: frozenset[str]
    """With everything below them."""
    blobs: frozenset[str]
    bases: frozenset[str]
    """Trees whose index in `bases` is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """One thing that went, or would."""

    what: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    index: Path
    modified: float
    objects: dict[str, int] = field(default_factory=dict)
    """Id to bytes in the pack."""

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted(self.index.parent.glob(f"{self.index.stem}.*")))


class Pruner:
    """Prunes one store."""

    def __init__(self, store: ObjectStore, *, grace_seconds: float = GRACE_SECONDS) -> None:
        """Keep the store; nothing is touched yet."""
        self._store = store
        self._grace = grace_seconds

    async def prune(self, needed: Needed, trash: Path, *, is_dry: bool) -> tuple[Freed, ...]:
        """Remove what nothing needs.

        Args:
            needed: Computed from the journal before the call.
            trash: On the store's file system; what goes is renamed into it.
            is_dry: Say it only.

        Raises:
            WorkspaceError: The store could not be read or written; nothing that is needed is gone.

        Cancellation:
            Safe at any point.

        Durability:
            What stays is on disk before what goes is removed.
        """
        await self._store.prepare()
        cutoff = time.time() - self._grace
        packs = [pack for pack in self._packs() if pack.modified < cutoff]
        keep = await self._reachable(needed)
        freed = [*self._bases(needed, cutoff), *self._strays(cutoff), *self._loose(keep, cutoff)]
        useless = [pack for pack in packs if not keep.intersection(pack.objects)]
        mixed = [pack for pack in packs if keep.intersection(pack.objects)]
        told = [Freed(what=str(path), size_bytes=_size(path)) for path in freed]
        told += [_freed(pack, sum(map(_size, pack.files))) for pack in useless]
        if not is_dry:
            # This first: on a full disk it makes the room for what comes.
            async with self._store.packing:
                for pack in useless:
                    _remove_pack(pack, trash)
                for path in freed:
                    if _is_old(path, cutoff):
                        move_to_trash(path, trash)
            await asyncio.to_thread(empty_trash, trash)
        if self._is_worth_it(mixed, keep):
            wastes = [_waste(pack, keep) for pack in mixed]
            told += [_freed(p, waste) for p, waste in zip(mixed, wastes, strict=True) if waste]
            if not is_dry:
                await self._write_anew(mixed, keep)
                async with self._store.packing:
                    for pack in mixed:
                        _remove_pack(pack, trash)
        return tuple(told)

    def _packs(self) -> Iterator[_Pack]:
        for index in sorted((self._store.directory / "objects" / "pack").glob("pack-*.idx")):
            pack = index.with_suffix(".pack")
            if pack.exists():
                yield _Pack(
                    index=index, modified=pack.stat().st_mtime, objects=read_pack_index(index, pack)
                )

    async def _reachable(self, needed: Needed) -> set[str]:
        """Close over the trees that are there; what is missing ends there."""
        present = await self._present([*needed.trees, *needed.blobs])
        keep = set(needed.blobs & present)
        tips = sorted(needed.trees & present)
        if tips:
            listed = await self._store.check(
                [
                    "rev-list",
                    "--objects",
                    "--no-object-names",
                    "--filter=blob:none",
                    "--missing=allow-any",
                    "--stdin",
                ],
                stdin="".join(f"{tip}\n" for tip in tips).encode(),
            )
            keep.update(listed.decode().split())
        return keep

    async def _present(self, names: list[str]) -> set[str]:
        answer = await self._store.check(
            ["cat-file", "--batch-check=%(objectname)"],
            stdin="".join(f"{name}\n" for name in names).encode(),
        )
        lines = (line.split() for line in answer.decode().splitlines())
        return {words[0] for words in lines if len(words) == 1}

    @staticmethod
    def _is_worth_it(packs: list[_Pack], keep: set[str]) -> bool:
        whole = sum(sum(pack.objects.values()) for pack in packs)
        waste = sum(size for pack in packs for oid, size in pack.objects.items() if oid not in keep)
        return len(packs) > MOST_PACKS or waste > WASTE * whole

    async def _write_anew(self, packs: list[_Pack], keep: set[str]) -> None:
        """Write what is needed of some packs into one; each is in it before this returns."""
        wanted = sorted({oid for pack in packs for oid in pack.objects} & keep)
        folder = self._store.directory / "objects" / "pack"
        answer = await self._store.check(
            ["-c", "pack.threads=1", "pack-objects", "-q", "--no-reuse-delta", "--window=0",
             str(folder / "pack")],
            stdin="".join(f"{oid}\n" for oid in wanted).encode(),
        )  # fmt: skip
        index = folder / f"pack-{answer.decode().strip()}.idx"
        if set(read_pack_index(index, index.with_suffix(".pack"))) != set(wanted):
            raise RuntimeError(f"{index} does not hold what was asked for")
        os.utime(index.with_suffix(".pack"))
        sync_directory(folder)

    def _bases(self, needed: Needed, cutoff: float) -> Iterator[Path]:
        bases = with_those_below(self._store, needed.bases)
        for path in sorted(self._store.bases.glob("*.trees")):
            if path.stem not in bases and _is_old(path, cutoff):
                yield path

    def _strays(self, cutoff: float) -> Iterator[Path]:
        """List what a git that was killed left among the packs."""
        folder = self._store.directory / "objects" / "pack"
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            is_whole = path.with_suffix(".idx").exists() and path.with_suffix(".pack").exists()
            if not is_whole and _is_old(path, cutoff):
                yield path

    def _loose(self, keep: set[str], cutoff: float) -> Iterator[Path]:
        for folder in sorted((self._store.directory / "objects").glob("[0-9a-f][0-9a-f]")):
            for path in sorted(folder.iterdir()):
                if f"{folder.name}{path.name}" not in keep and _is_old(path, cutoff):
                    yield path


def read_pack_index(index: Path, pack: Path) -> dict[str, int]:
    """Read which objects a pack holds, each with the bytes that it takes there.

    Raises:
        ValueError: It is no index of version 2.
    """
    content = index.read_bytes()
    if not content.startswith(_IDX_MAGIC):
        raise ValueError(f"{index} is no pack index of version 2")
    count = _FANOUT.unpack_from(content, len(_IDX_MAGIC))[-1]
    names = len(_IDX_MAGIC) + _FANOUT.size
    offsets = names + count * (_ID_BYTES + 4)
    small = struct.unpack_from(f">{count}L", content, offsets)
    beyond = offsets + count * 4
    places = [
        struct.unpack_from(">Q", content, beyond + (place & 0x7FFF_FFFF) * 8)[0]
        if place & 0x8000_0000
        else place
        for place in small
    ]
    oids = [
        content[names + at * _ID_BYTES : names + (at + 1) * _ID_BYTES].hex() for at in range(count)
    ]
    ordered = sorted(range(count), key=places.__getitem__)
    ends = [*(places[at] for at in ordered[1:]), pack.stat().st_size - _ID_BYTES]
    return {
        oids[at]: end - places[at] for at, end in zip(ordered, ends[: len(ordered)], strict=True)
    }


def _remove_pack(pack: _Pack, trash: Path) -> None:
    """Remove a pack unless it was taken in again, or written anew under its name, meanwhile."""
    try:
        if pack.index.with_suffix(".pack").stat().st_mtime != pack.modified:
            return
    except FileNotFoundError:
        return
    # The index first: without it git does not look for the pack, whatever comes between.
    for path in sorted(pack.files, key=lambda one: one.suffix != ".idx"):
        move_to_trash(path, trash)


def _waste(pack: _Pack, keep: set[str]) -> int:
    return sum(size for oid, size in pack.objects.items() if oid not in keep)


def _freed(pack: _Pack, size: int) -> Freed:
    return Freed(what=str(pack.index.with_suffix(".pack")), size_bytes=size)


def _is_old(path: Path, cutoff: float) -> bool:
    try:
        return path.lstat().st_mtime < cutoff
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
