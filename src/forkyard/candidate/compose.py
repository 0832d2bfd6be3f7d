"""Trees made from a base and a list of changes: the expectation that git's replay must meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forkyard.candidate.trees import (
    DIRECTORY,
    Entry,
    TreeSource,
    encode_tree,
    object_id,
)

Changes = Mapping[bytes, Entry | None]
"""New entry by path; None where the path is gone."""


def compose(trees: TreeSource, base: bytes, changes: Changes, *, touched_only: bool) -> bytes:
    """Give the id of the base's tree with the changes made.

    Args:
        trees: Knows the base.
        base: Id of the base's tree.
        changes: Never both a file and something below it.
        touched_only: Leave out the directories in which nothing changes. Then an index of the
            touched paths and their siblings must give the same id.
    """
    entries = _compose(trees, base, _grouped(changes), touched_only=touched_only)
    return object_id(b"tree", encode_tree(entries))


_Node = dict[bytes, "_Node | Entry | None"]


def _grouped(changes: Changes) -> _Node:
    """Nest the changes by directory; where a file becomes a directory, the directory wins."""
    root: _Node = {}
    # longer paths first: a gone file that is now a directory must not hide what is below it
    for path, entry in sorted(changes.items(), key=lambda item: -item[0].count(b"/")):
        *parents, name = path.split(b"/")
        node = root
        for parent in parents:
            deeper = node.setdefault(parent, {})
            if not isinstance(deeper, dict):
                raise ValueError(f"{path!r} lies below a changed file")  # noqa: TRY004 - a wrong value, not a wrong type
            node = deeper
        standing = node.get(name)
        if isinstance(standing, dict):
            _settle_over(node, name, standing, entry)
        else:
            node[name] = entry
    return root


def _settle_over(node: _Node, name: bytes, below: _Node, entry: Entry | None) -> None:
    """Join a change at a path with changes below it: one of the two only removes."""
    if entry is not None:
        if any(True for _ in _added(below)):
            raise ValueError(f"{name!r} is both a file and a directory")
        node[name] = entry


def _added(node: _Node) -> Iterator[Entry]:
    for value in node.values():
        if isinstance(value, dict):
            yield from _added(value)
        elif value is not None:
            yield value


def _compose(
    trees: TreeSource, base: bytes | None, changes: _Node, *, touched_only: bool
) -> dict[bytes, Entry]:
    old = trees.entries(base) if base is not None else {}
    result = {
        name: entry
        for name, entry in old.items()
        if not (touched_only and entry.is_tree and name not in changes)
    }
    for name, change in changes.items():
        if isinstance(change, dict):
            standing = old.get(name)
            deeper = standing.oid if standing is not None and standing.is_tree else None
            below = _compose(trees, deeper, change, touched_only=touched_only)
            if below:
                result[name] = Entry(DIRECTORY, object_id(b"tree", encode_tree(below)))
            else:
                result.pop(name, None)
        elif change is None:
            result.pop(name, None)
        else:
            result[name] = change
    return result


def touched_files(trees: TreeSource, base: bytes, changes: Changes) -> dict[bytes, Entry]:
    """Give the base's files in every directory above a changed path."""
    directories = {b""}
    for path in changes:
        while (cut := path.rfind(b"/")) >= 0:
            path = path[:cut]  # noqa: PLW2901 - the way up
            if path in directories:
                break
            directories.add(path)
    found: dict[bytes, Entry] = {}
    pending: list[tuple[bytes, bytes]] = [(b"", base)]
    while pending:
        prefix, oid = pending.pop()
        for name, entry in trees.entries(oid).items():
            path = prefix + name
            if not entry.is_tree:
                found[path] = entry
            elif path in directories:
                pending.append((path + b"/", entry.oid))
    return found
