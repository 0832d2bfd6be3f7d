"""The log of a build: written as things happen, without secrets."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forkyard.base.masking import Masker
from forkyard.workspace.build_log import BuildLog

SECRET = "sk-test-0123456789"  # noqa: S105 - a test's own


def test_secret_is_masked_when_a_task_prints_it_in_pieces(tmp_path: Path) -> None:
    """In the log and in the task's own files, also when it is written while it is being read."""
    log = BuildLog(tmp_path / "build", Masker({"KEY": SECRET}))
    log.begin(tmp_path / "trash")
    output = tmp_path / "exec"

    async def build() -> None:
        log.say(f"task with {SECRET}")
        async with log.following(output, "task-1"):
            output.mkdir()
            for stream in ("stdout", "stderr"):
                with (output / stream).open("wb", buffering=0) as file:
                    for piece in (b"before ", SECRET[:9].encode(), SECRET[9:].encode(), b" sk-te"):
                        file.write(piece)
                        await asyncio.sleep(0)

    asyncio.run(build())

    written = {path.name: path.read_bytes() for path in log.folder.iterdir()}
    assert written["task-1.stdout"] == b"before [secret KEY] sk-te"
    assert written["task-1.stderr"] == b"before [secret KEY] sk-te"
    assert written["build.log"].startswith(b"task with [secret KEY]\nbefore [secret KEY] sk-te")
    assert not any(SECRET.encode() in content for content in written.values())


def test_bytes_are_copied_when_there_is_no_secret(tmp_path: Path) -> None:
    """Without secrets the log is what the task printed."""
    log = BuildLog(tmp_path / "build")
    log.begin(tmp_path / "trash")
    output = tmp_path / "exec"
    output.mkdir()
    (output / "stdout").write_bytes(b"\x00\xff" + SECRET.encode())

    async def build() -> None:
        async with log.following(output, "task-1"):
            pass

    asyncio.run(build())

    assert log.path.read_bytes() == b"\x00\xff" + SECRET.encode()
