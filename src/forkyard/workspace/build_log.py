"""The log of a template's build: a plain file that is written as things happen."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.durable import make_directory
from forkyard.base.masking import MaskedStream, Masker
from forkyard.base.removal import remove_tree
from forkyard.workspace.task_records import TaskRecord, write_records

LOG_NAME = "build.log"
STREAMS = ("stdout", "stderr")
_POLL_SECONDS = 0.1
_CHUNK_BYTES = 256 * 1024
TAIL_BYTES = 2048


class BuildLog:
    """One build's folder: its log, and the whole output of each task beside it."""

    def __init__(self, folder: Path, masker: Masker | None = None) -> None:
        """Know the folder; `begin` makes it. Secrets are masked in whatever is written."""
        self.folder = folder
        self._masker = masker or Masker()
        self._records: dict[int, TaskRecord] = {}

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
        self._append(self._masker.mask(f"{sentence}\n".encode(errors="replace")))

    def record(self, record: TaskRecord) -> None:
        """Keep what is known of a task, in place of what was known before."""
        self._records[record.number] = record
        records = tuple(self._records[number] for number in sorted(self._records))
        write_records(self.folder, records)

    def tail(self, task: str) -> str:
        """Give the last lines of what a task printed: of its errors, where it printed any."""
        for stream in reversed(STREAMS):
            with (
                contextlib.suppress(FileNotFoundError),
                (self.folder / f"{task}.{stream}").open("rb") as file,
            ):
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                if text := file.read().decode(errors="replace").strip():
                    return text
        return ""

    @contextlib.asynccontextmanager
    async def following(self, output: Path, task: str) -> AsyncIterator[None]:
        """Copy what a running command prints into the log, and into files of its own.

        Args:
            output: The exec's folder, which may not exist yet.
            task: Names the files.
        """
        streams = {name: _Followed(output / name, self._masker.stream()) for name in STREAMS}

        def take(*, is_last: bool) -> None:
            for name, stream in streams.items():
                for chunk in stream.take(is_last=is_last):
                    self._append(chunk)
                    self._append(chunk, f"{task}.{name}")

        async def follow() -> None:
            while True:
                take(is_last=False)
                await asyncio.sleep(_POLL_SECONDS)

        follower = asyncio.create_task(follow())
        try:
            yield
        finally:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower
            take(is_last=True)

    def _append(self, data: bytes, name: str = LOG_NAME) -> None:
        descriptor = os.open(
            self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)


@dataclass(slots=True)
class _Followed:
    """How far one output file was read, and what may be the beginning of a secret."""

    path: Path
    masked: MaskedStream
    offset: int = 0

    def take(self, *, is_last: bool) -> Iterator[bytes]:
        """Give what is new."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.offset)
            while chunk := file.read(_CHUNK_BYTES):
                self.offset += len(chunk)
                yield self.masked.feed(chunk)
        if is_last:
            yield self.masked.finish()
