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
from forkyard.candidate.reading import CHUNK_BYTES, LOOK, read_blob
from forkyard.candidate.settings import MOST_BYTES, with_base_settings
from forkyard.candidate.tree_writer import TreeWriter
from forkyard.candidate.trees import EXECUTABLE, FILE, LINK, Entry, TreeIndex, mode_of
from forkyard.candidate.walk import Change, Walk
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
    index: list[int]
    """Descriptors of the files of the base's tree index."""
    patterns: list[str]
    mixed: list[str]
    """Names of files of which only the runners' settings are put back."""


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
    # what ran in the workspace may have removed the very directory, or made it a link
    repository = TreeWriter(views.merged).directory(os.fsencode(job["repository"]).strip(b"/"))
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


class RestoreWalk(Walk):
    """Looks for protected paths that are not as the base has them.

    The tree may have been changed by code of the candidate since, so nothing is read that need
    not be: only files that match, and of the size that they should have.
    """

    def __init__(self, trees: TreeIndex, base_view: int, patterns: list[str]) -> None:
        """Keep what to look for."""
        super().__init__(trees=trees, limits=BASE_LIMITS, base_view=base_view)
        self._patterns = patterns

    def _leaf(
        self, merged: int, path: bytes, status: os.stat_result, old: Entry | None
    ) -> Entry | None:
        is_link = stat.S_ISLNK(status.st_mode)
        name = text(path)
        if not rules.matches(name, self._patterns) and not (
            is_link and rules.could_hold(name, self._patterns)
        ):
            return old
        if old is not None and not self._differs(merged, path, status, old):
            return old
        self.found.changes.append(Change(path, old, Entry(mode_of(status), _UNREAD), 0, 0))
        return old

    def _special(self, path: bytes, status: os.stat_result) -> None:
        super()._special(path, status)
        self.found.changes.append(Change(path, None, Entry(0, _UNREAD), 0, 0))


_UNREAD = bytes(20)


def restore(
    job: WriteJob, views: jail.OpenViews, writer: TreeWriter, repository: int
) -> dict[str, object]:
    """Put matching paths back: changed and deleted ones as in the base, added ones away."""
    base = jail.open_repository(views.base, job["repository"])
    if base is None or views.upper is None:
        raise RuntimeError("the base's layers do not hold the repository")
    hint = jail.open_repository(views.upper, job["repository"])
    if hint is None:
        return {"removed": [], "written": [], "settings": []}
    walk = RestoreWalk(TreeIndex(job["index"]), base, [*job["patterns"], *job["mixed"]])
    walk.run(repository, hint, bytes.fromhex(job["base"]))
    # a fifo in a protected file's place is two findings: the file is gone, and the fifo is there
    found = {
        change.path: change
        for change in sorted(walk.found.changes, key=lambda change: change.old is not None)
    }
    settings = _restore_settings(job, found, writer, base, repository)
    wanted = {
        path: change
        for path, change in found.items()
        if path not in settings
        and (
            rules.matches(text(path), job["patterns"])
            or LINK in {entry.mode for entry in (change.old, change.new) if entry is not None}
        )
    }
    removed = [
        path
        for path, change in sorted(wanted.items(), reverse=True)
        if change.old is None and writer.remove(path)
    ]
    written = []
    for path, change in sorted(wanted.items()):
        if change.old is not None:
            permissions, chunks = _from_base(base, path, change.old)
            writer.write(path, change.old.mode, permissions, chunks)
            written.append(path)
    return {
        "removed": [text(path) for path in sorted(removed)],
        "written": [text(path) for path in written],
        "settings": [text(path) for path in sorted(settings) if settings[path]],
    }


def _restore_settings(
    job: WriteJob, found: dict[bytes, Change], writer: TreeWriter, base: int, repository: int
) -> dict[bytes, bool]:
    """Put the runners' settings back in files that hold more; give which of them differed.

    What is no ordinary file now, or was none in the base, is put back whole.
    """
    done: dict[bytes, bool] = {}
    for path, change in found.items():
        name = text(path.rpartition(b"/")[2])
        if name not in job["mixed"] or rules.matches(text(path), job["patterns"]):
            continue
        old, new = change.old, change.new
        if old is not None and old.mode == LINK:
            continue  # what it leads to is the base's own choice
        before = None if old is None else _content(base, path, old.mode)
        if new is not None and new.mode not in _ORDINARY:
            content, differs = before, True
        else:
            now = None if new is None else _content(repository, path, new.mode)
            content = with_base_settings(name, now, before)
            differs = content != now
        done[path] = differs
        if not differs:
            continue
        if content is None:
            writer.remove(path)
        else:
            mode = EXECUTABLE if new is not None and new.mode == EXECUTABLE else FILE
            permissions = 0o755 if mode == EXECUTABLE else 0o644
            writer.write(path, mode, permissions, iter((content,)))
    return done


_ORDINARY = frozenset({FILE, EXECUTABLE})


def _content(root: int, path: bytes, mode: int) -> bytes:
    """Read a file; one that is too large for a settings file is cut, and so never read as one."""
    size, chunks = read_blob(root, path, mode)
    if size > MOST_BYTES:
        return bytes(MOST_BYTES + 1)
    return b"".join(chunks)


def _from_base(base: int, path: bytes, old: Entry) -> tuple[int, Iterator[bytes]]:
    descriptor = kernel.open_beneath(base, path, LOOK)
    try:
        permissions = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
    finally:
        os.close(descriptor)
    return permissions, read_blob(base, path, old.mode)[1]


if __name__ == "__main__":
    main()
