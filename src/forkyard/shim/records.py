"""The files by which a shim's work outlives it: an exec's output and its exit record.

A record is complete or absent (written beside and renamed). It must survive the death of any
process, not a power cut: after that no sandbox is left to speak of, and the journal, which is
synced, says what had ended before.
"""

from __future__ import annotations

import contextlib
import json
import os

from forkyard.shim.files import read_bytes
from forkyard.shim.protocol import Message

EXIT_RECORD = "exit.json"
STDOUT = "stdout"
STDERR = "stderr"
SPEC = "spec.json"


def write_record(directory: int, name: str, content: Message) -> None:
    """Put a record into an open directory, whole or not at all."""
    temporary = f".{name}.new"
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=directory
    )
    try:
        os.write(descriptor, json.dumps(content).encode())
    finally:
        os.close(descriptor)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def read_record(directory: str, name: str = EXIT_RECORD) -> Message | None:
    """Read a record; None where there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        content = json.loads(read_bytes(f"{directory}/{name}"))
        if isinstance(content, dict):
            return content
    return None
