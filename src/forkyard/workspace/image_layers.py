"""Layers of images as layers of ours: each unpacked once, by its content, and shared by all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import forkyard
from forkyard.base.durable import failpoint
from forkyard.base.process import run_async
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.ids import LayerId, image_layer_id
from forkyard.shim.ids import IDS
from forkyard.workspace.image_layout import OciLayout
from forkyard.workspace.image_manifest import Blob, Unusable
from forkyard.workspace.image_pull import KEPT_FREE_BYTES, lowered, refuse_without_room, require
from forkyard.workspace.image_unpack import Job
from forkyard.workspace.layers import OPAQUE, Layers
from forkyard.workspace.trusted_git import last_words

RULES = 1
"""How a tar stream becomes a layer; another number, other layers."""
UNPACK_SECONDS = 3600.0
HELPERS_MOST = 2
"""At once: a layer takes a processor, and the machine has other work."""
_RATIO = 1032
"""More than this gzip cannot make of a byte."""


class _Report(TypedDict):
    error: str | None
    is_ours: bool
    entries: int
    size_bytes: int
    notes: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """Most that one layer of an image may be."""

    entries: int = 1_000_000
    size_bytes: int = 64 * 1024**3


@dataclass(slots=True, kw_only=True)
class ImageLayers:
    """Unpacks what is missing."""

    layout: Layout
    layers: Layers
    search_path: str
    limits: UnpackLimits = field(default_factory=UnpackLimits)
    _locks: dict[LayerId, asyncio.Lock] = field(default_factory=dict)

    @staticmethod
    def name(diff_id: str) -> LayerId:
        """Name the layer of a tar stream; the same stream is the same layer in every image."""
        content = f"{RULES} {IDS.storage} {diff_id}"
        return image_layer_id(hashlib.sha256(content.encode()).hexdigest())

    def is_here(self, diff_id: str) -> bool:
        """Say whether it is unpacked already."""
        return self.layout.layer(self.name(diff_id)).is_dir()

    async def unpack(
        self,
        blobs: Sequence[tuple[Blob, str]],
        source: OciLayout,
        scratch: Path,
        say: Callable[[str], None],
    ) -> None:
        """Unpack those layers that are not here; their names are in the journal.

        Args:
            blobs: Each with its diff-id.
            source: Holds them.
            scratch: For what is decompressed by another tool.
            say: Takes sentences for the build log.

        Raises:
            Unusable: One is not what the image says, or cannot be taken.
            WorkspaceError: The disk refused.

        Cancellation:
            The helpers are killed; what they made is removed with the image's row, or made anew.

        Durability:
            All of them are on disk when this returns: one wait for the disk, however many.
        """
        wanted = {self.name(diff_id): (blob, diff_id) for blob, diff_id in blobs}
        async with AsyncExitStack() as held:
            # In one order for everybody: two images may share more than one.
            for layer in sorted(wanted):
                await held.enter_async_context(self._locks.setdefault(layer, asyncio.Lock()))
            missing = {layer: of for layer, of in wanted.items() if not self.is_here(of[1])}
            turns = asyncio.Semaphore(HELPERS_MOST)
            tasks = [
                asyncio.ensure_future(self._unpack_one(*of, source, scratch, turns))
                for of in missing.values()
            ]
            try:
                for told in await asyncio.gather(*tasks):
                    say(told)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                raise
            if missing:
                failpoint("I02")
                await self.layers.finish(*missing)

    async def _unpack_one(
        self, blob: Blob, diff_id: str, source: OciLayout, scratch: Path, turns: asyncio.Semaphore
    ) -> str:
        """Unpack a layer below its half-made name; say what was done."""
        async with turns:
            root = self.layers.start(self.name(diff_id))
            descriptor = source.blob(blob.digest)
            try:
                size = os.fstat(descriptor).st_size
                if size != blob.size_bytes:
                    raise Unusable(
                        f"layer {blob.digest} has {size} bytes, the image says {blob.size_bytes}"
                    )
                if blob.compression == "zstd":
                    await self._refuse_other(descriptor, blob.digest)
                    descriptor = await self._from_zstd(descriptor, scratch, diff_id)
                report = await self._run(
                    {
                        "target": str(root),
                        "opaque": OPAQUE,
                        "is_compressed": blob.compression == "gzip",
                        "digest": None if blob.compression == "zstd" else blob.digest,
                        "diff_id": diff_id,
                        "entries_most": self.limits.entries,
                        "bytes_most": self._room(size),
                    },
                    descriptor,
                )
            finally:
                os.close(descriptor)
        if report["error"] is not None:
            reason = f"layer {blob.digest}: {report['error']}"
            if report["is_ours"]:
                raise WorkspaceError(
                    f"cannot unpack {reason}",
                    hint="Free space in the state directory, then build again.",
                )
            raise Unusable(reason)
        told = "".join(f"; {name}: {count}" for name, count in sorted(report["notes"].items()))
        megabytes = report["size_bytes"] / 1024**2
        return (
            f"unpacked {blob.digest[:19]}: {report['entries']} entries, {megabytes:.1f} MiB{told}"
        )

    def _room(self, compressed: int) -> int:
        free = shutil.disk_usage(self.layout.home).free - KEPT_FREE_BYTES
        return max(0, min(self.limits.size_bytes, free, max(compressed, 4096) * _RATIO))

    async def _run(self, job: Job, blob: int) -> _Report:
        package = Path(forkyard.__file__).parents[1]
        done = await run_async(
            [sys.executable, "-P", "-m", "forkyard.workspace.image_unpack", json.dumps(job)],
            variables={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            stdin_from=blob,
            timeout_seconds=UNPACK_SECONDS,
        )
        if not done.succeeded:
            raise Unusable(f"a layer could not be unpacked: {last_words(done.stderr)}")
        answer = json.loads(done.stdout)
        return {
            "error": answer["error"],
            "is_ours": answer["is_ours"],
            "entries": answer.get("entries", 0),
            "size_bytes": answer.get("size_bytes", 0),
            "notes": answer.get("notes", {}),
        }

    async def _refuse_other(self, descriptor: int, digest: str) -> None:
        found = await asyncio.to_thread(_digest, descriptor)
        if found != digest:
            raise Unusable(f"layer {digest} is {found} in truth")

    async def _from_zstd(self, descriptor: int, scratch: Path, diff_id: str) -> int:
        """Decompress by zstd's own tool, as nobody; the descriptor is exchanged."""
        program = require("zstd", self.search_path, "unpack a layer compressed by zstd")
        room = self._room(self.limits.size_bytes)
        refuse_without_room("unpack a layer compressed by zstd", scratch, 0)
        target = scratch / f"{diff_id.removeprefix('sha256:')}.tar"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        made = os.open(target, flags, 0o600)
        target.unlink()
        argv = [*lowered(scratch), "prlimit", f"--fsize={room}", "--core=0"]
        try:
            done = await run_async(
                [*argv, program, "-dc", "-M512MB"],
                variables={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                stdin_from=descriptor,
                stdout_to=made,
                timeout_seconds=UNPACK_SECONDS,
            )
        except BaseException:
            os.close(made)
            raise
        if not done.succeeded:
            os.close(made)
            raise Unusable(f"a layer could not be decompressed: {last_words(done.stderr)}")
        os.lseek(made, 0, os.SEEK_SET)
        os.close(descriptor)
        return made


def _digest(descriptor: int) -> str:
    digest = hashlib.sha256()
    position = 0
    while chunk := os.pread(descriptor, 1024**2, position):
        digest.update(chunk)
        position += len(chunk)
    return f"sha256:{digest.hexdigest()}"
