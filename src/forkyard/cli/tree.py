"""Which working tree of the user a command means."""

from __future__ import annotations

from pathlib import Path


def root_of(folder: Path) -> Path | None:
    """Find the repository that a folder lies in; None where there is none."""
    folder = folder.absolute()
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def is_bare(folder: Path) -> bool:
    """Say whether a folder looks like a repository without files: for words, decides nothing."""
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir()
