"""Copying between this machine and a workspace: the end that is here, as the user who asks.

What comes out of a workspace is hostile: names, links, sizes. It is written by `TreeWriter`, past
no link, each file whole and then moved into its place; what cannot be is left out and told.
"""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import IO

from forkyard.errors import ConflictError, ForkyardError, NotFoundError, WorkspaceError
from forkyard.shim import tree_records
from forkyard.shim.copying import place
from forkyard.shim.tree_reader import read_tree
from forkyard.shim.tree_records import CopyError
from forkyard.shim.tree_writer import TreeWriter, stays_inside

MOST_BYTES = 64 * 1024**3
"""Of content in one copy out of a workspace, unless more is asked for."""
BATCH_BYTES = 256 * 1024
MOST_NAMED = 10_000
"""Of what was left out: a workspace may send such names without end."""
COMMAND = "forkyard-copy"
"""What a copy is called among a workspace's commands."""
_ABSENT = "no such file or directory"


@dataclass(slots=True)
class Copied:
    """What a copy did."""

    files: int = 0
    size_bytes: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason of what was not copied, as far as it is named."""
    left_out_more: int = 0
    """What was not copied and is not named."""
    has_failed: bool = False
    """Whether anything could not be copied, and was not left out as a rule."""

    @property
    def failed(self) -> list[tuple[str, str]]:
        """What is named because it could not be copied, and not as a rule."""
        return [one for one in self.left_out if not tree_records.is_by_rule(one[1])]

    def note(self, path: str, reason: str) -> None:
        """Take in that something was not copied."""
        self.has_failed |= not tree_records.is_by_rule(reason)
        if len(self.left_out) < MOST_NAMED:
            self.left_out.append((path, reason))
        else:
            self.left_out_more += 1


async def batches(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Give what an iterator that blocks gives, in larger pieces."""

    def more() -> bytes:
        batch = bytearray()
        for piece in pieces:
            batch += piece
            if len(batch) >= BATCH_BYTES:
                break
        return bytes(batch)

    while batch := await asyncio.to_thread(more):
        yield batch


def outgoing(source: str) -> Iterator[bytes]:
    """Give the stream of something on this machine, after the line that names it.

    Raises:
        ForkyardError: It is not there, or cannot be read.
    """
    head, tail = os.path.split(source.rstrip("/") or "/")
    if tail in ("", ".", ".."):
        head, tail = os.path.split(os.path.realpath(source))
    try:
        folder = os.open(head or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot("copy", source, error.strerror or str(error)) from error
    try:
        yield json.dumps({"name": tail or None}).encode() + b"\n"
        yield from read_tree(folder, tail or ".", is_followed=source.endswith("/"))
    except CopyError as error:
        raise cannot("copy", source, str(error)) from error
    finally:
        os.close(folder)


def outgoing_tar(stream: IO[bytes]) -> Iterator[bytes]:
    """Give the stream of a tar archive, whose members go into a folder."""
    yield json.dumps({"name": None}).encode() + b"\n"
    yield tree_records.entry_record({"path": "", "kind": "folder", "mode": 0o755})
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                yield from _member(archive, member)
    except (tarfile.TarError, EOFError) as error:
        raise cannot("copy", "-", f"what comes is no tar archive: {error}") from error
    yield tree_records.entry_record({"kind": "end"})


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    path = "/".join(part for part in member.name.split("/") if part not in ("", "."))
    if not path:
        return
    entry: tree_records.Entry = {
        "path": path,
        "mode": member.mode & 0o777,
        "mtime": int(member.mtime * 1_000_000_000),
    }
    if member.isdir():
        yield tree_records.entry_record({**entry, "kind": "folder"})
    elif member.issym():
        yield tree_records.entry_record({**entry, "kind": "link", "target": member.linkname})
    elif member.isreg() and (content := archive.extractfile(member)) is not None:
        yield tree_records.entry_record({**entry, "kind": "file", "size": member.size})
        while chunk := content.read(tree_records.CHUNK_BYTES):
            yield tree_records.record(tree_records.DATA, chunk)
        yield tree_records.HEADER.pack(tree_records.FILE_END, 0)
    else:
        yield tree_records.entry_record(tree_records.left_out(path, tree_records.NO_KIND))


class Incoming:
    """The end of a copy out of a workspace that writes here."""

    def __init__(self, target: str, name: str, most_bytes: int) -> None:
        """Find the place.

        Raises:
            ConflictError: There is no folder to put it into.
        """
        self.copied = Copied()
        try:
            self._folder, called = place(target, name)
        except CopyError as error:
            raise ConflictError(
                f"cannot copy to {target}: {error}", hint="Make the folder first."
            ) from error
        self._target = target
        self._writer = TreeWriter(
            self._folder,
            called,
            note=lambda path, reason: self.copied.note(path or name, reason),
            keeps_links_inside=True,
            most_bytes=most_bytes,
        )

    def feed(self, chunk: bytes) -> None:
        """Write what comes.

        Raises:
            WorkspaceError: It cannot go on.
        """
        try:
            self._writer.feed(chunk)
        except CopyError as error:
            raise cannot("copy to", self._target, str(error)) from error

    def close(self) -> Copied:
        """Say what was copied; a file that is not whole is gone."""
        self._writer.close()
        os.close(self._folder)
        self.copied.files, self.copied.size_bytes = self._writer.files, self._writer.size_bytes
        return self.copied


class IncomingTar:
    """The end of a copy out of a workspace that writes a tar archive."""

    def __init__(self, stream: IO[bytes], name: str, most_bytes: int) -> None:
        """Write to a stream; members are below a name."""
        self.copied = Copied()
        self._stream, self._name = stream, name
        self._left = most_bytes
        self._left_entries = tree_records.MOST_ENTRIES
        self._rest = bytearray()
        self._wanted = self._written = 0
        self._is_whole = False

    def feed(self, chunk: bytes) -> None:
        """Write what comes.

        Raises:
            WorkspaceError: It makes no sense, or is larger than the limit.
        """
        self._rest += chunk
        try:
            self._take_whole()
        except CopyError as error:
            raise cannot("copy", self._name, str(error)) from error

    def _take_whole(self) -> None:
        while len(self._rest) >= tree_records.HEADER.size:
            kind, size = tree_records.HEADER.unpack_from(self._rest)
            follows = 0 if kind == tree_records.HOLE else size
            end = tree_records.HEADER.size + follows
            if follows > 4 * tree_records.CHUNK_BYTES:
                raise CopyError(tree_records.NO_COPY)
            if len(self._rest) < end:
                return
            content = bytes(memoryview(self._rest)[tree_records.HEADER.size : end])
            del self._rest[:end]
            self._take(kind, size, content)

    def _take(self, kind: bytes, size: int, content: bytes) -> None:
        if kind == tree_records.ENTRY:
            self._enter(tree_records.parse_entry(content))
        elif kind == tree_records.DATA:
            self._write(content)
        elif kind == tree_records.HOLE:
            self._fill(size)
        elif kind == tree_records.FILE_END:
            self._pad()
        else:
            raise CopyError(tree_records.NO_COPY)

    def _enter(self, entry: tree_records.Entry) -> None:
        self._pad()
        path, kind = entry.get("path", ""), entry.get("kind")
        parts = path.split("/") if path else []
        self._left_entries -= 1
        if self._left_entries < 0:
            raise CopyError(f"it has more than {tree_records.MOST_ENTRIES:,} entries")
        if kind == "note":
            self.copied.note(path or self._name, entry.get("reason", "")[:200])
        elif kind == "end":
            self._is_whole = True
        elif not all(tree_records.is_name(part) for part in parts):
            self.copied.note(path, tree_records.NO_NAME)
        else:
            self._begin(entry, kind, parts)

    def _begin(self, entry: tree_records.Entry, kind: str | None, parts: list[str]) -> None:
        """Write a member's head."""
        info = tarfile.TarInfo("/".join((self._name, *parts)))
        info.mode = entry.get("mode", 0o644) & 0o777
        info.mtime = max(0, entry.get("mtime", 0) // 1_000_000_000)
        if kind == "folder":
            info.type = tarfile.DIRTYPE
        elif kind == "link":
            info.type, info.linkname = tarfile.SYMTYPE, entry.get("target", "")
            if not stays_inside(info.linkname, max(0, len(parts) - 1), is_top=not parts):
                self.copied.note(info.name, tree_records.OUTWARD_LINK)
                return
        elif kind == "file":
            info.size = max(0, entry.get("size", 0))
            # What is announced is written, be it as zeros.
            self._left -= info.size
            if self._left < 0:
                raise CopyError(f"{info.name} is larger than the limit of this copy")
            self.copied.files += 1
        else:
            self.copied.note(info.name, tree_records.NO_KIND)
            return
        self._stream.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._wanted = info.size

    def _write(self, content: bytes) -> None:
        content = content[: self._wanted - self._written]
        self._written += len(content)
        self.copied.size_bytes += len(content)
        self._stream.write(content)

    def _fill(self, size: int) -> None:
        """Write zeros, to the end of the file at most."""
        size = min(size, self._wanted - self._written)
        while size:
            piece = min(size, BATCH_BYTES)
            self._write(bytes(piece))
            size -= piece

    def _pad(self) -> None:
        """End a file: one that became shorter while it was read is filled up, and that is told."""
        missing = self._wanted - self._written
        if missing:
            self.copied.note(self._name, f"{missing} bytes of a file went meanwhile")
        self._fill(missing)
        self._stream.write(bytes(-self._wanted % tarfile.BLOCKSIZE))
        self._wanted = self._written = 0

    def close(self) -> Copied:
        """End the archive and say what was copied.

        One that was cut short ends in what is no header: whoever reads it, and does not know how
        the copy ended, must not take it for a whole one.
        """
        is_cut = self._wanted > self._written  # then what is missing tells
        end = bytes(2 * tarfile.BLOCKSIZE) if self._is_whole else b"\xff" * tarfile.BLOCKSIZE
        self._stream.write(b"" if is_cut else end)
        self._stream.flush()
        return self.copied


def report_of(content: bytes, place: str) -> Copied:
    """Read what the end inside says of a copy to a place in a workspace.

    Raises:
        WorkspaceError: It makes no sense.
    """
    copied = Copied()
    position = 0
    try:
        while len(content) - position >= tree_records.HEADER.size:
            _, size = tree_records.HEADER.unpack_from(content, position)
            position += tree_records.HEADER.size
            entry = tree_records.parse_entry(content[position : position + size])
            position += size
            if entry.get("kind") == "note":
                copied.note(entry.get("path") or place, entry.get("reason", ""))
            else:
                copied.files, copied.size_bytes = entry.get("files", 0), entry.get("size", 0)
    except CopyError as error:
        raise cannot("copy to", place, f"the workspace's end says nonsense: {error}") from error
    return copied


def cannot(verb: str, what: str, reason: str) -> ForkyardError:
    """Give the error of a copy that cannot be; absent things are told as such."""
    if reason.lower().endswith(_ABSENT):
        return NotFoundError(
            f"cannot {verb} {what}: {reason[:1].lower()}{reason[1:]}",
            hint="Look at the path; a folder to copy into must be there.",
        )
    return WorkspaceError(f"cannot {verb} {what}: {reason}")
