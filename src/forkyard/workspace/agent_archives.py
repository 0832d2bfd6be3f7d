"""Unpacking published archives: nothing is looked at before its hash fits, no link is made.

A hash says that an archive is the one that was pinned, not that it is well-behaved. So even then
only ordinary files are written, each anew, below a folder that nobody else can reach, with a
limit on their number and size; no script in it is run.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from forkyard.agents.interface import Package
from forkyard.errors import WorkspaceError

MOST_FILES = 50_000
MOST_BYTES = 4 * 1024**3
"""Of one agent, unpacked."""
LONGEST_PATH = 1000
_CHUNK = 1024 * 1024


class Abandoned(Exception):  # noqa: N818 - whoever waited is gone; nothing went wrong
    """The installation was cancelled; what was unpacked so far is to be removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedFile:
    """One file that was written."""

    path: str
    """Below the agent's folder."""
    size: int
    sha256: str
    is_executable: bool


class Unpacker:
    """Unpacks the archives of one agent over one another; no two may hold the same file."""

    def __init__(self, target: Path, stop: threading.Event) -> None:
        """Take an empty folder of our own.

        Args:
            target: Where to unpack; nobody else may write in it.
            stop: Set from outside: give up.
        """
        self._target = target
        self._stop = stop
        self._bytes = 0
        self.files: list[UnpackedFile] = []

    def unpack(self, package: Package, archive: Path) -> None:
        """Check one archive and unpack what its package keeps.

        Raises:
            WorkspaceError: It is another than the pinned one, or holds what no archive of an
                agent may hold.
            Abandoned: `stop` was set.

        Durability:
            None; the caller makes the whole folder durable.
        """
        with _open(package, archive) as opened:
            _refuse(package, opened, self._stop)
            # The same open file is read again: what was checked is what is unpacked.
            opened.seek(0)
            before = len(self.files)
            try:
                self._unpack(package, opened)
            except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise _refusal(package, f"it cannot be read: {error}") from error
        if len(self.files) == before:
            raise _refusal(package, "it holds nothing of what is wanted of it")

    def _unpack(self, package: Package, opened: IO[bytes]) -> None:
        if package.file.endswith(".whl"):
            with zipfile.ZipFile(opened) as wheel:
                for path, content, is_executable in self._wheel(package, wheel):
                    self._write(package, path, content, is_executable=is_executable)
            return
        with tarfile.open(fileobj=opened, mode="r|gz", errorlevel=2) as archive:
            for path, content, is_executable in self._tar(package, archive):
                self._write(package, path, content, is_executable=is_executable)

    def _tar(
        self, package: Package, archive: tarfile.TarFile
    ) -> Iterator[tuple[str, IO[bytes], bool]]:
        for member in archive:
            if member.isdir():
                continue
            path = _path(package, member.name)
            if path is None:
                continue
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or member.issparse():
                raise _refusal(package, f"{member.name!r} in it is no ordinary file")
            yield path, content, bool(member.mode & 0o111)

    def _wheel(
        self, package: Package, archive: zipfile.ZipFile
    ) -> Iterator[tuple[str, IO[bytes], bool]]:
        for member in archive.infolist():
            if member.is_dir():
                continue
            path = _path(package, member.filename)
            if path is None:
                continue
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG) or member.flag_bits & 1:
                raise _refusal(package, f"{member.filename!r} in it is no ordinary file")
            with archive.open(member) as content:
                yield path, content, bool(mode & 0o111)

    def _write(
        self, package: Package, path: str, content: IO[bytes], *, is_executable: bool
    ) -> None:
        if len(self.files) >= MOST_FILES:
            raise _refusal(package, f"it makes more than {MOST_FILES} files")
        target = self._target / path
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        digest = hashlib.sha256()
        size = 0
        mode = 0o755 if is_executable else 0o644
        try:
            descriptor = os.open(
                target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode
            )
        except FileExistsError as error:
            raise _refusal(package, f"{path!r} in it is there already") from error
        with os.fdopen(descriptor, "wb") as file:
            while chunk := content.read(_CHUNK):
                if self._stop.is_set():
                    raise Abandoned
                self._bytes += len(chunk)
                if self._bytes > MOST_BYTES:
                    raise _refusal(package, f"it makes more than {MOST_BYTES} bytes")
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
            # Whatever the caller's umask is.
            os.fchmod(file.fileno(), mode)
        self.files.append(
            UnpackedFile(
                path=path, size=size, sha256=digest.hexdigest(), is_executable=is_executable
            )
        )


def refuse_other(package: Package, archive: Path) -> None:
    """Refuse an archive that is not the pinned one.

    Raises:
        WorkspaceError: Its hash is another.
    """
    with _open(package, archive) as opened:
        _refuse(package, opened, threading.Event())


def _refuse(package: Package, opened: IO[bytes], stop: threading.Event) -> None:
    digest = hashlib.sha512()
    while chunk := opened.read(_CHUNK):
        if stop.is_set():
            raise Abandoned
        digest.update(chunk)
    found = digest.hexdigest()
    if found != package.sha512:
        raise WorkspaceError(
            f"cannot install {package.file}: its SHA-512 is {found[:16]}…, the pinned one is"
            f" {package.sha512[:16]}…",
            hint="Remove it and fetch it again; if it stays so, do not use it.",
        )


def _path(package: Package, name: str) -> str | None:
    """Give where an entry belongs; None: it is not wanted.

    Raises:
        WorkspaceError: Its name points elsewhere.
    """
    if name.startswith("/") or "\0" in name or "\\" in name or len(name) > LONGEST_PATH:
        raise _refusal(package, f"{name[:200]!r} in it is no name of a file")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise _refusal(package, f"{name[:200]!r} in it leads out of its folder")
    parts = parts[package.strip :]
    if not parts:
        return None
    path = "/".join(parts)
    if package.keep and not any(
        path == kept or path.startswith(f"{kept}/") for kept in package.keep
    ):
        return None
    return path if package.place == "." else f"{package.place}/{path}"


def _open(package: Package, archive: Path) -> IO[bytes]:
    # A pipe or a device could keep us for ever.
    descriptor = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise WorkspaceError(
            f"cannot install {package.file}: {archive} is no ordinary file",
            hint="Put the archive itself there.",
        )
    return os.fdopen(descriptor, "rb")


def _refusal(package: Package, reason: str) -> WorkspaceError:
    return WorkspaceError(
        f"cannot install {package.file}: {reason}",
        hint="Report it: its hash is the pinned one, so the pin is wrong.",
    )
