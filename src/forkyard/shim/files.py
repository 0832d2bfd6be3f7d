"""Small whole-file reads and writes, without pathlib: it would double what a fork copies."""

from __future__ import annotations

import os


def read_bytes(path: str) -> bytes:
    """Read a file whole."""
    with open(path, "rb") as file:
        return file.read()


def write_bytes(path: str, content: bytes) -> None:
    """Make or replace a file, not durably: for a private mount namespace or a hint."""
    with open(path, "wb") as file:
        file.write(content)


def find_program(name: str, search_path: str) -> str | None:
    """Find an executable file on a search path."""
    for folder in search_path.split(":"):
        path = f"{folder}/{name}"
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None
