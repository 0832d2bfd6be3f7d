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


def read_at(directory: int, name: str) -> bytes:
    """Read a file of an open directory whole."""
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        return file.read()


def write_at(directory: int, name: str, content: bytes) -> None:
    """Make or replace a file of an open directory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=directory), "wb") as file:
        file.write(content)


def find_program(name: str, search_path: str) -> str | None:
    """Find an executable file on a search path."""
    for folder in search_path.split(":"):
        path = f"{folder}/{name}"
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None
