"""An attempt's output: files of its exec while the workspace is there, of the run afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path

from forkyard.base.durable import make_directory, sync_directory
from forkyard.base.masked_files import keep_masked
from forkyard.base.masking import Masker
from forkyard.config import Layout
from forkyard.model.ids import ExecId
from forkyard.model.run import Attempt

STREAMS = ("stdout", "stderr")


def log_files(layout: Layout, attempt: Attempt) -> tuple[Path, ...]:
    """Say where standard output and standard error lie now, or will."""
    kept = layout.attempt(attempt.run, attempt.id)
    live = None
    if attempt.workspace is not None and attempt.exec is not None:
        live = layout.exec(attempt.workspace, ExecId(attempt.exec))
    return tuple(
        kept / stream if live is None or (kept / stream).exists() else live / stream
        for stream in STREAMS
    )


def keep_logs(layout: Layout, attempt: Attempt, masker: Masker) -> None:
    """Move the exec's output beside the attempt's other results; doing so twice is fine.

    Where no secret is in it, a rename on one file system: who follows them keeps reading.

    Durability:
        The new names are on disk when this returns.
    """
    if attempt.workspace is None or attempt.exec is None:
        return
    kept = layout.attempt(attempt.run, attempt.id)
    make_directory(kept)
    for stream in STREAMS:
        with contextlib.suppress(FileNotFoundError):
            source = layout.exec(attempt.workspace, ExecId(attempt.exec)) / stream
            keep_masked(source, kept / stream, masker)
    sync_directory(kept)


def set_aside(layout: Layout, attempt: Attempt) -> None:
    """Move the results of an epoch into a folder of its own, so that a retry starts clean."""
    kept = layout.attempt(attempt.run, attempt.id)
    if not kept.is_dir():
        return
    aside = kept / f"epoch-{attempt.epoch}"
    make_directory(aside)
    for path in sorted(kept.iterdir()):
        if not path.name.startswith("epoch-"):
            path.rename(aside / path.name)
    sync_directory(aside)
    sync_directory(kept)
