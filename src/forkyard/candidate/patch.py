"""The patch of a candidate, and the proof that replaying it gives the candidate's tree."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.durable import sync_directory
from forkyard.candidate.answers import Changed
from forkyard.candidate.compose import Changes, compose, touched_files
from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.trees import Entry, TreeIndex, files_below

_RAW = (
    "-r",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--diff-algorithm=myers",
    "--ignore-submodules=all",
)
_PATCH = (
    "-p",
    "--binary",
    "--full-index",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
)
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchFile:
    """A patch on disk."""

    sha256: str
    size_bytes: int
    lines: dict[bytes, tuple[int | None, int | None]]
    """Added and deleted lines by path; None for binary content."""


async def write_patch(
    store: ObjectStore, base: str, result: str, path: Path, changed: Sequence[bytes]
) -> PatchFile:
    """Write the difference of two trees as a patch.

    Args:
        store: Runs git.
        base: Tree before.
        result: Tree after.
        path: Where the patch goes.
        changed: All paths that differ.

    Durability:
        The file has its name and is on disk when this returns; the same trees give the same bytes.
    """
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(
        temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        await store.check(["diff-tree", *_PATCH, *_RAW, base, result], output=descriptor)
        ambiguous = _ambiguous_headers(changed)
        if ambiguous:
            await asyncio.to_thread(_rewrite, descriptor, ambiguous)
        digest, size = await asyncio.to_thread(_sync_and_digest, descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    counted = await store.check(["diff-tree", "--numstat", "-z", *_RAW, base, result])
    temporary.rename(path)
    sync_directory(path.parent)
    return PatchFile(sha256=digest, size_bytes=size, lines=_line_counts(counted))


def _ambiguous_headers(changed: Sequence[bytes]) -> dict[bytes, bytes]:
    """Give header lines that `git diff` writes and `git apply` cannot read, with a form it can.

    A directory whose name ends in a space cuts the unquoted header in two. Where there are no
    lines of text below (an empty file, a mode, binary content) the header alone has the name.
    """
    return {
        b"diff --git a/%s b/%s\n" % (path, path): b'diff --git "a/%s" "b/%s"\n' % (path, path)
        for path in changed
        if b" /" in path
    }


def _rewrite(descriptor: int, headers: dict[bytes, bytes]) -> None:
    """Put other header lines in; no line of content starts as a header does."""
    with tempfile.TemporaryFile() as copy:
        os.lseek(descriptor, 0, os.SEEK_SET)
        with open(descriptor, "rb", closefd=False) as patch:
            copy.writelines(headers.get(line, line) for line in patch)
        copy.seek(0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.ftruncate(descriptor, 0)
        with open(descriptor, "wb", closefd=False) as patch:
            shutil.copyfileobj(copy, patch)


def _sync_and_digest(descriptor: int) -> tuple[str, int]:
    os.fsync(descriptor)
    os.lseek(descriptor, 0, os.SEEK_SET)
    digest, size = hashlib.sha256(), 0
    while chunk := os.read(descriptor, 1 << 20):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def _line_counts(counted: bytes) -> dict[bytes, tuple[int | None, int | None]]:
    lines: dict[bytes, tuple[int | None, int | None]] = {}
    for record in counted.split(b"\0"):
        if record:
            added, deleted, path = record.split(b"\t", 2)
            lines[path] = (
                None if added == b"-" else int(added),
                None if deleted == b"-" else int(deleted),
            )
    return lines


async def prove(
    store: ObjectStore,
    trees: TreeIndex,
    *,
    base: str,
    result: str,
    changes: Sequence[Changed],
    patch: Path,
    full: bool,
) -> tuple[str, ...]:
    """Replay a candidate two ways, and say what does not come out as it should.

    First the changed paths go into an index, where git refuses names that no checkout may hold;
    then the patch is applied to an index of the base. Both must give the candidate's tree. The
    indexes hold the touched paths and their siblings, or with `full` the whole base.

    Returns:
        Problems in words; empty when the candidate is proved.
    """
    if not changes:
        return () if base == result else ("no change was found, yet the tree differs",)
    root = bytes.fromhex(base)
    wanted: Changes = {change.path: change.new for change in changes}
    whole = await asyncio.to_thread(compose, trees, root, wanted, touched_only=False)
    if whole.hex() != result:
        return (f"the changed paths give tree {whole.hex()}, the walk gave {result}",)

    def known() -> dict[bytes, Entry]:
        if full:
            return dict(files_below(trees, root))
        return touched_files(trees, root, wanted)

    async with store.scratch() as scratch:
        replay = _Replay(store, scratch)
        refused = await replay.index_base(await asyncio.to_thread(known))
        if changed := sorted(wanted.keys() & set(refused)):
            shown = changed[0].decode("utf-8", "backslashreplace")[:_SHOWN]
            return (f"git refuses a path that the base has and the candidate changes: {shown}",)
        # what git refuses of the base itself is in neither index, whatever the candidate did
        expected = await asyncio.to_thread(
            compose, trees, root, {**dict.fromkeys(refused), **wanted}, touched_only=not full
        )
        by_paths = await replay.by_paths(changes, expected.hex())
        by_patch = await replay.by_patch(patch, expected.hex())
    return (*by_paths, *by_patch)


class _Replay:
    def __init__(self, store: ObjectStore, scratch: Path) -> None:
        self._store = store
        self._base = scratch / "base"
        self._index = scratch / "index"

    async def index_base(self, files: dict[bytes, Entry]) -> tuple[bytes, ...]:
        """Put the base's files into an index; give the paths that git refuses."""
        finished = await self._store.git(
            ["update-index", "-z", "--add", "--index-info"],
            stdin=b"".join(_line(path, entry) for path, entry in sorted(files.items())),
            index=self._base,
        )
        if not files or not finished.stderr:
            return ()
        listed = await self._store.check(["ls-files", "-z"], index=self._base)
        return tuple(sorted(files.keys() - set(listed.split(b"\0"))))

    def _fresh_index(self) -> Path:
        self._index.unlink(missing_ok=True)
        if self._base.exists():
            shutil.copyfile(self._base, self._index)
        return self._index

    async def by_paths(self, changes: Sequence[Changed], expected: str) -> tuple[str, ...]:
        """Put the changed paths into an index of the base."""
        index = self._fresh_index()
        gone = b"".join(b"0 %s\t%s\0" % (b"0" * 40, c.path) for c in changes if c.new is None)
        stay = b"".join(_line(c.path, c.new) for c in changes if c.new is not None)
        finished = await self._store.git(
            ["update-index", "-z", "--add", "--replace", "--index-info"],
            stdin=gone + stay,
            index=index,
        )
        if not finished.succeeded or finished.stderr:
            return (f"git refuses a path: {_said(finished.stderr)}",)
        return await self._compare(index, expected, "the changed paths")

    async def by_patch(self, patch: Path, expected: str) -> tuple[str, ...]:
        """Apply the patch to an index of the base."""
        index = self._fresh_index()
        finished = await self._store.git(
            ["apply", "--cached", "--binary", "--whitespace=nowarn", "-p1", str(patch)],
            index=index,
        )
        if not finished.succeeded:
            return (f"the patch does not apply to its own base: {_said(finished.stderr)}",)
        return await self._compare(index, expected, "the patch")

    async def _compare(self, index: Path, expected: str, what: str) -> tuple[str, ...]:
        # the base's contents are in its layers, not in the store, so git must not look for them
        finished = await self._store.git(["write-tree", "--missing-ok"], index=index)
        tree = finished.stdout.decode("ascii", "replace").strip()
        if not finished.succeeded:
            return (f"replaying {what} gives no tree: {_said(finished.stderr)}",)
        if tree != expected:
            return (f"replaying {what} gives tree {tree}, not {expected}",)
        return ()


def _line(path: bytes, entry: Entry) -> bytes:
    return b"%o %s\t%s\0" % (entry.mode, entry.oid.hex().encode(), path)


def _said(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return "; ".join(lines)[:_SHOWN] or "without a word"
