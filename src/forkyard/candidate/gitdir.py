"""Reading HEAD and the base commit out of an untrusted .git, as text and checked bytes.

No git runs here. Nothing outside the .git directory is read: no link, gitdir file, common
directory or alternate store is followed. A commit counts only when its bytes have its hash.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from forkyard.candidate.gitobjects import ObjectReader
from forkyard.candidate.reading import LIST, LOOK, READ
from forkyard.shim import kernel

TEXT_BYTES = 64 * 1024
PACKED_REFS_BYTES = 64 * 1024**2
LINK_DEPTH = 5
_ID = re.compile(rb"[0-9a-f]{40}")
_LONG_ID = re.compile(rb"[0-9a-f]{64}")
_REF = re.compile(rb"refs/[^\0\n]+")


class Head(NamedTuple):
    """What HEAD says, as far as it can be believed."""

    commit: str | None = None
    tree: str | None = None
    """The commit's own tree."""
    branch: str | None = None
    notes: tuple[str, ...] = ()


def read_head(repository: int) -> Head:
    """Read the base commit of a repository, given its open directory."""
    try:
        status = os.stat(b".git", dir_fd=repository, follow_symlinks=False)
    except FileNotFoundError:
        return Head(notes=("there is no .git: the base commit is unknown",))
    if not stat.S_ISDIR(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "a file"
        return Head(notes=(f".git is {kind}, which is not followed: the base commit is unknown",))
    directory = kernel.open_beneath(repository, b".git", LIST)
    try:
        return _Reader(directory).read()
    finally:
        os.close(directory)


@contextlib.contextmanager
def open_objects(repository: int) -> Iterator[ObjectReader]:
    """Open the object store of a repository whose HEAD could be read."""
    directory = kernel.open_beneath(repository, b".git", LIST)
    try:
        with contextlib.closing(ObjectReader(directory)) as reader:
            yield reader
    finally:
        os.close(directory)


class _UnreadableError(Exception):
    """Something in .git is not as it must be; the text says what."""


class _Reader:
    def __init__(self, directory: int) -> None:
        self._directory = directory

    def read(self) -> Head:
        branch: str | None = None
        try:
            self._refuse_other_stores()
            value = self._head()
            if value.startswith(b"refs/heads/"):
                branch = os.fsdecode(value.removeprefix(b"refs/heads/"))
            commit = self._resolve(value)
            if commit is None:
                return Head(branch=branch, notes=("HEAD has no commit yet",))
            with contextlib.closing(ObjectReader(self._directory)) as reader:
                tree = reader.commit_tree(commit)
        except (_UnreadableError, ValueError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            return Head(branch=branch, notes=(f"the base commit is unknown: {reason}",))
        return Head(commit=commit, tree=tree, branch=branch)

    def _refuse_other_stores(self) -> None:
        for name in (b"commondir", b"reftable"):
            if self._exists(name):
                raise _UnreadableError(f".git/{name.decode()} exists, which is not followed")

    def _exists(self, name: bytes) -> bool:
        try:
            os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _head(self) -> bytes:
        """Give an id, or the name of a reference."""
        try:
            status = os.stat(b"HEAD", dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            raise _UnreadableError("there is no .git/HEAD") from None
        if stat.S_ISLNK(status.st_mode):
            # the old form of a symbolic reference: the link's text, which is not followed
            target = os.readlink(b"HEAD", dir_fd=self._directory)
            if _REF.fullmatch(target) and _is_plain(target):
                return target
            raise _UnreadableError(".git/HEAD is a link that leads elsewhere")
        return self._value(self._text(b"HEAD", TEXT_BYTES) or b"", b"HEAD")

    @staticmethod
    def _value(text: bytes, name: bytes) -> bytes:
        line = text.split(b"\n", 1)[0].strip()
        if _ID.fullmatch(line):
            return line
        if _LONG_ID.fullmatch(line):
            raise _UnreadableError("the repository uses SHA-256 ids")
        target = line.removeprefix(b"ref:").strip()
        if line.startswith(b"ref:") and _REF.fullmatch(target) and _is_plain(target):
            return target
        shown = name.decode("utf-8", "replace")
        raise _UnreadableError(f".git/{shown} is neither an id nor a reference")

    def _resolve(self, value: bytes) -> str | None:
        for _ in range(LINK_DEPTH):
            if _ID.fullmatch(value):
                return value.decode()
            text = self._text(value, TEXT_BYTES)
            if text is None:
                packed = self._packed(value)
                return packed.decode() if packed is not None else None
            value = self._value(text, value)
        raise _UnreadableError(f"more than {LINK_DEPTH} references lead to each other")

    def _packed(self, name: bytes) -> bytes | None:
        text = self._text(b"packed-refs", PACKED_REFS_BYTES)
        for line in (text or b"").split(b"\n"):
            oid, _, found = line.partition(b" ")
            if found == name and _ID.fullmatch(oid):
                return oid
        return None

    def _text(self, name: bytes, limit: int) -> bytes | None:
        """Give a regular file's bytes; None where there is none (or a directory)."""
        try:
            looked = kernel.open_beneath(self._directory, name, LOOK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            mode = os.fstat(looked).st_mode
        finally:
            os.close(looked)
        if stat.S_ISDIR(mode):
            return None
        if not stat.S_ISREG(mode):
            raise _UnreadableError(f".git/{name.decode('utf-8', 'replace')} is no regular file")
        descriptor = kernel.open_beneath(self._directory, name, READ)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            text = file.read(limit + 1)
        if len(text) > limit:
            raise _UnreadableError(f".git/{name.decode('utf-8', 'replace')} is over {limit} bytes")
        return text


def _is_plain(name: bytes) -> bool:
    parts = name.split(b"/")
    return all(part not in (b"", b".", b"..") for part in parts)
