"""The helper process that writes into trees: ``python -m forkyard.candidate.writer_main``.

One job as JSON on its standard input, one answer as JSON on its standard output; contents come
from a descriptor in the format of `git cat-file --batch`. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO, TypedDict

from forkyard.candidate import jail, rules
from forkyard.candidate.tree_writer import TreeWriter
from forkyard.candidate.trees import EXECUTABLE, LINK, TreeIndex
from forkyard.candidate.walk import CHUNK_BYTES, LOOK, Change, Walk, read_blob
from forkyard.candidate.walker_main import BASE_LIMITS, raw, text
from forkyard.shim import kernel


class WriteJob(TypedDict):
    """What the helper is asked."""

    mode: str
    """`lay` (removals, then writes) or `restore` (matching paths back to the base)."""
    mount_point: str
    layers: list[str]
    upper: str
    work: str
    repository: str
    user: int
    removals: list[str]
    writes: list[tuple[str, int]]
    """Path and git mode, in the order of the contents."""
    contents: int
    base: str
    index: int
    patterns: list[str]


def main() -> None:
    """Do one job."""
    sys.setrecursionlimit(10_000)
    job: WriteJob = json.load(sys.stdin)
    views = jail.open_views(
        jail.Views(
            mount_point=job["mount_point"],
            layers=tuple(job["layers"]),
            upper=job["upper"],
            work=job["work"],
        )
    )
    jail.confine(user=job["user"], capability=jail.CAP_DAC_OVERRIDE)
    repository = jail.open_repository(views.merged, job["repository"])
    if repository is None:
        raise RuntimeError(f"{job['repository']} is no directory")
    writer = TreeWriter(repository)
    is_restoring = job["mode"] == "restore"
    answer = restore(job, views, writer, repository) if is_restoring else lay(job, writer)
    answer["replaced"] = [text(path) for path in writer.replaced]
    json.dump(answer, sys.stdout)


def lay(job: WriteJob, writer: TreeWriter) -> dict[str, object]:
    """Remove and write the paths of a candidate."""
    # deepest first: so a directory that a file replaces is empty by then
    removals = sorted(map(raw, job["removals"]), key=lambda path: -path.count(b"/"))
    removed = [path for path in removals if writer.remove(path)]
    if job["writes"]:
        with open(job["contents"], "rb") as contents:  # noqa: PTH123 - a descriptor
            for path, mode in job["writes"]:
                permissions = 0o755 if mode == EXECUTABLE else 0o644
                writer.write(raw(path), mode, permissions, _next_content(contents))
    return {
        "removed": [text(path) for path in sorted(removed)],
        "written": [path for path, _mode in job["writes"]],
    }


def _next_content(contents: BinaryIO) -> Iterator[bytes]:
    head = contents.readline().split()
    if len(head) != 3 or head[1] != b"blob":  # noqa: PLR2004 - id, kind, size
        raise RuntimeError(f"a blob is missing from the store: {head!r}")
    left = int(head[2])
    while left:
        chunk = contents.read(min(left, CHUNK_BYTES))
        if not chunk:
            raise RuntimeError("the contents are cut short")
        left -= len(chunk)
        yield chunk
    contents.read(1)


def restore(
    job: WriteJob, views: jail.OpenViews, writer: TreeWriter, repository: int
) -> dict[str, object]:
    """Put matching paths back: changed and deleted ones as in the base, added ones away."""
    base = jail.open_repository(views.base, job["repository"])
    if base is None or views.upper is None:
        raise RuntimeError("the base's layers do not hold the repository")
    hint = jail.open_repository(views.upper, job["repository"])
    if hint is None:
        return {"removed": [], "written": []}
    walk = Walk(trees=TreeIndex(job["index"]), limits=BASE_LIMITS, base_view=base)
    walk.run(repository, hint, bytes.fromhex(job["base"]))
    wanted = sorted(c for c in walk.found.changes if _is_wanted(c, job["patterns"]))
    removed = [c.path for c in reversed(wanted) if c.old is None and writer.remove(c.path)]
    written = []
    for change in wanted:
        if change.old is not None:
            permissions, chunks = _from_base(base, change)
            writer.write(change.path, change.old.mode, permissions, chunks)
            written.append(change.path)
    return {
        "removed": [text(path) for path in sorted(removed)],
        "written": [text(path) for path in written],
    }


def _is_wanted(change: Change, patterns: list[str]) -> bool:
    path = text(change.path)
    if rules.matches(path, patterns):
        return True
    is_link = change.new is not None and change.new.mode == LINK
    return is_link and rules.could_hold(path, patterns)


def _from_base(base: int, change: Change) -> tuple[int, Iterator[bytes]]:
    if change.old is None:
        raise RuntimeError("an added path has nothing in the base")
    descriptor = kernel.open_beneath(base, change.path, LOOK)
    try:
        permissions = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
    finally:
        os.close(descriptor)
    return permissions, read_blob(base, change.path, change.old.mode)[1]


if __name__ == "__main__":
    main()
