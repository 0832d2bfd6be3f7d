"""The log of a template's build: a plain file that is written as things happen."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from forkyard.base.durable import make_directory
from forkyard.base.removal import remove_tree

LOG_NAME = "build.log"
_POLL_SECONDS = 0.1
_CHUNK_BYTES = 256 * 1024


class BuildLog:
    """One build's folder: its log, and the whole output of each task beside it."""

    def __init__(self, folder: Path) -> None:
        """Know the folder; `begin` makes it."""
        self.folder = folder

    @property
    def path(self) -> Path:
        """The file to follow."""
        return self.folder / LOG_NAME

    def begin(self, trash: Path) -> None:
        """Start afresh: the log of an earlier build is removed."""
        remove_tree(self.folder, trash)
        make_directory(self.folder)
        self.path.touch(mode=0o600)

    def say(self, sentence: str) -> None:
        """Add a line."""
        self._append(f"{sentence}\n".encode(errors="replace"))

    @contextlib.asynccontextmanager
    async def following(self, output: Path, task: str) -> AsyncIterator[None]:
        """Copy what a running command prints into the log, and into files of its own.

        Args:
            output: The exec's folder, which may not exist yet.
            task: Names the files.
        """
        offsets = {"stdout": 0, "stderr": 0}

        async def follow() -> None:
            while True:
                self._take(output, task, offsets)
                await asyncio.sleep(_POLL_SECONDS)

        follower = asyncio.create_task(follow())
        try:
            yield
        finally:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower
            self._take(output, task, offsets)

    def _take(self, output: Path, task: str, offsets: dict[str, int]) -> None:
        for stream, offset in offsets.items():
            try:
                with (output / stream).open("rb") as file:
                    file.seek(offset)
                    while chunk := file.read(_CHUNK_BYTES):
                        self._append(chunk)
                        self._append(chunk, f"{task}.{stream}")
                        offsets[stream] += len(chunk)
            except FileNotFoundError:
                continue

    def _append(self, data: bytes, name: str = LOG_NAME) -> None:
        descriptor = os.open(
            self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)
