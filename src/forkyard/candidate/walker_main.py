"""The helper process that reads trees: ``python -m forkyard.candidate.walker_main``.

It takes one job as JSON on its standard input and answers with JSON on its standard output;
trees and contents go to descriptors that it was given. It starts as root, mounts, and is confined
before it looks at the first name. Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO, TypedDict

from forkyard.candidate import gitdir, jail
from forkyard.candidate.reading import read_blob
from forkyard.candidate.trees import (
    EMPTY_TREE,
    FILE,
    LINK,
    Entry,
    NoTrees,
    PackWriter,
    TreeIndex,
    TreesOver,
    write_tree_index,
)
from forkyard.candidate.untracked import (
    TreeContents,
    Untracked,
    UntrackedPaths,
    find_untracked,
)
from forkyard.candidate.walk import Findings, Walk, WalkLimits

GIT_IGNORE = b".gitignore"
IGNORE_FILE_BYTES = 1024**2
BASE_LIMITS = WalkLimits(total_bytes=1 << 62, changes=1 << 40, visited=1 << 40)
"""A base is what it is; only single files of absurd size and depths are left out, and said."""


class Job(TypedDict):
    """What the helper is asked; paths of the repository are text with surrogate escapes."""

    mode: str
    """`record`; `take` (changes and their contents); or `collect`: the same, but first ask
    which new or untracked paths are ignored where the base has rules that could say so."""
    mount_point: str
    layers: list[str]
    upper: str | None
    repository: str
    user: int
    base: str
    full: bool
    ignored: list[str]
    limits: dict[str, int]
    index: list[int]
    """Descriptors of the files of the base's tree index, see `TreeIndex`. With `record`: of what
    the layers hold without the upper one, so that only what the upper names is looked at; none to
    look at everything."""
    made_index: int
    """Descriptor for the tree index that `record` writes; else -1."""
    made_below: str
    """The tree whose index that one adds to; nothing to write it whole."""
    untracked: str
    """The tree of the base's untracked files; not for `record`."""
    untracked_index: list[int]
    """Descriptors of the files of that tree's index; none where the base's has it."""
    made_untracked: int
    """Descriptor for the index of the untracked files' tree that `record` writes; else -1."""
    pack: int
    """Descriptor for the pack; -1 for none."""


def text(path: bytes) -> str:
    """Give a path as JSON carries it."""
    return path.decode("utf-8", "surrogateescape")


def raw(path: str) -> bytes:
    """Give the bytes of a path from JSON."""
    return path.encode("utf-8", "surrogateescape")


def main() -> None:
    """Do one job."""
    sys.setrecursionlimit(10_000)
    job: Job = json.load(sys.stdin)
    views = jail.open_views(
        jail.Views(mount_point=job["mount_point"], layers=tuple(job["layers"]), upper=job["upper"])
    )
    jail.confine(user=job["user"], capability=jail.CAP_DAC_READ_SEARCH)
    answer = record(job, views) if job["mode"] == "record" else collect(job, views)
    json.dump(answer, sys.stdout)


def record(job: Job, views: jail.OpenViews) -> dict[str, object]:
    """Walk a repository, whole or where it changed, write its trees, and read its HEAD."""
    repository = jail.open_repository(views.merged, job["repository"])
    if repository is None:
        return {"missing": True}
    trees: TreeContents
    if job["index"]:
        known = TreeIndex(job["index"])
        walk = Walk(trees=known, limits=BASE_LIMITS, keep_changes=False)
        changed = jail.open_repository(views.upper, job["repository"]) if views.upper else None
        root = bytes.fromhex(job["base"])
        if changed is not None:
            root = walk.run(repository, changed, root)
        trees = TreesOver(walk.found.trees, known)
        kept = walk.found.trees if job["made_below"] else {**dict(known.all()), **walk.found.trees}
    else:
        walk = Walk(trees=NoTrees(), limits=BASE_LIMITS, keep_changes=False)
        root = walk.run(repository, None, EMPTY_TREE)
        trees = kept = walk.found.trees
    head = gitdir.read_head(repository)
    untracked = _untracked(repository, head, trees, root)
    with open(job["made_index"], "wb") as file:  # noqa: PTH123 - a descriptor
        write_tree_index(file, kept, job["made_below"])
    with open(job["made_untracked"], "wb") as file:  # noqa: PTH123 - a descriptor
        write_tree_index(file, untracked.trees)
    with open(job["pack"], "wb") as file:  # noqa: PTH123 - a descriptor
        _write_trees(file, walk.found.trees)
    return {
        "missing": False,
        "root": root.hex(),
        "files": walk.found.files,
        "commit": head.commit,
        "commit_tree": head.tree,
        "branch": head.branch,
        "untracked": untracked.root.hex(),
        "notes": [*head.notes, *untracked.notes],
        **_left_out(walk.found),
    }


def _untracked(repository: int, head: gitdir.Head, trees: TreeContents, root: bytes) -> Untracked:
    if head.tree is None:
        return Untracked(root, {})
    with gitdir.open_objects(repository) as committed:
        return find_untracked(trees, root, bytes.fromhex(head.tree), committed)


def _write_trees(file: BinaryIO, trees: dict[bytes, bytes]) -> None:
    pack = PackWriter(file, len(trees))
    for content in trees.values():
        pack.add(b"tree", len(content), (content,))
    pack.finish()


def _left_out(found: Findings) -> dict[str, object]:
    return {
        "left_out": [[text(path), reason] for path, reason in found.left_out],
        "left_out_more": found.left_out_more,
        "stops": found.stops,
    }


def collect(job: Job, views: jail.OpenViews) -> dict[str, object]:
    """Compare the view with the base: look for new paths, or take the changes."""
    trees = TreeIndex(job["index"])
    merged = jail.open_repository(views.merged, job["repository"])
    base = jail.open_repository(views.base, job["repository"])
    if base is None:
        raise RuntimeError("the base's layers do not hold the repository")
    root = bytes.fromhex(job["base"])
    hint = None
    if not job["full"] and merged is not None:
        hint = jail.open_repository(views.upper, job["repository"]) if views.upper else None
        if hint is None:
            return _untouched(root)
    limits = WalkLimits(**job["limits"])
    if job["mode"] == "collect":
        own = job["untracked_index"]
        untracked = UntrackedPaths(
            TreeIndex(own) if own else trees, bytes.fromhex(job["untracked"])
        )
        look = Walk(trees=trees, limits=limits, base_view=base, hashing=False, untracked=untracked)
        look.run(merged, hint, root)
        question = _question(look.found, trees, root, base)
        if (question["new"] or question["touched"]) and question["ignore_files"]:
            return {"asks": True, **question}
    walk = Walk(
        trees=trees,
        limits=limits,
        base_view=base,
        ignored=frozenset(map(raw, job["ignored"])),
    )
    result = walk.run(merged, hint, root)
    if merged is None:
        walk.found.leave_out(b"", "the repository's directory is gone, or is a link")
    elif _exists(base, b".git") and not _exists(merged, b".git"):
        walk.found.leave_out(b".git", "git data, never carried; the agent removed it")
    objects = _write_objects(job["pack"], walk.found, merged, base)
    return {
        "root": result.hex(),
        "objects": objects,
        "changes": [
            [
                text(change.path),
                change.old.mode if change.old else None,
                change.new.mode if change.new else None,
                change.old.oid.hex() if change.old else None,
                change.new.oid.hex() if change.new else None,
                change.new_size,
            ]
            for change in sorted(walk.found.changes)
        ],
        "large": [[text(path), size] for path, size in walk.found.large],
        "links_outside": list(_links_outside(walk.found, merged)),
        **_left_out(walk.found),
    }


def _untouched(root: bytes) -> dict[str, object]:
    nothing: dict[str, object] = _left_out(Findings())
    return {
        "root": root.hex(),
        "objects": 0,
        "changes": [],
        "large": [],
        "links_outside": [],
        **nothing,
    }


def _links_outside(found: Findings, merged: int | None) -> Iterator[list[str]]:
    """Give the new links that lead out of the repository, and where to."""
    for change in sorted(found.changes):
        if merged is None or change.new is None or change.new.mode != LINK:
            continue
        target = b"".join(read_blob(merged, change.path, LINK)[1])
        depth = change.path.count(b"/")
        for part in target.split(b"/"):
            depth += {b"": 0, b".": 0, b"..": -1}.get(part, 1)
            if depth < 0:
                break
        if target.startswith(b"/") or depth < 0:
            yield [text(change.path), text(target)]


def _exists(directory: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _question(found: Findings, trees: TreeIndex, root: bytes, base: int) -> dict[str, object]:
    """List new and untracked paths, and the base's ignore files that may speak about them."""
    seen: dict[bytes, bytes | None] = {b"": root}
    ignore_files: dict[bytes, bytes] = {}

    def tree_at(directory: bytes) -> bytes | None:
        if directory not in seen:
            parent, _, name = directory.rpartition(b"/")
            above = tree_at(parent)
            entry = trees.entries(above).get(name) if above is not None else None
            seen[directory] = entry.oid if entry is not None and entry.is_tree else None
        oid = seen[directory]
        if oid is not None and directory not in visited:
            visited.add(directory)
            _ignore_file(trees.entries(oid), directory, base, ignore_files)
        return oid

    visited: set[bytes] = set()
    tree_at(b"")
    for path, _size in (*found.new_paths, *found.touched):
        tree_at(path.rpartition(b"/")[0])
    return {
        "new": [[text(path), size] for path, size in found.new_paths],
        "touched": [[text(path), size] for path, size in found.touched],
        "base_directories": [text(directory) for directory in sorted(visited)],
        "ignore_files": [
            [text(path), base64.b64encode(content).decode()]
            for path, content in sorted(ignore_files.items())
        ],
    }


def _ignore_file(
    entries: dict[bytes, Entry], directory: bytes, base: int, into: dict[bytes, bytes]
) -> None:
    entry = entries.get(GIT_IGNORE)
    if entry is None or entry.mode & 0o170000 != FILE & 0o170000:
        return
    path = directory + b"/" + GIT_IGNORE if directory else GIT_IGNORE
    size, chunks = read_blob(base, path, entry.mode)
    if size <= IGNORE_FILE_BYTES:
        into[path] = b"".join(_verified(chunks, size, entry.oid))


def _write_objects(descriptor: int, found: Findings, merged: int | None, base: int) -> int:
    wanted: dict[bytes, tuple[int, bytes, int]] = {}
    for change in found.changes:
        if change.new is not None and merged is not None:
            wanted.setdefault(change.new.oid, (merged, change.path, change.new.mode))
        if change.old is not None:
            wanted.setdefault(change.old.oid, (base, change.path, change.old.mode))
    count = len(wanted) + len(found.trees)
    if count == 0:
        return 0
    with open(descriptor, "wb") as file:
        pack = PackWriter(file, count)
        for content in found.trees.values():
            pack.add(b"tree", len(content), (content,))
        for oid, (root, path, mode) in wanted.items():
            size, chunks = read_blob(root, path, mode)
            pack.add(b"blob", size, _verified(chunks, size, oid))
        pack.finish()
    return count


def _verified(chunks: Iterator[bytes], size: int, oid: bytes) -> Iterator[bytes]:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.digest() != oid:
        raise RuntimeError(f"content of blob {oid.hex()} is not what was seen or recorded")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
