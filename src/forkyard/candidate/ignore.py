"""Which new and untracked files the base's own ignore rules cover. The agent's hide nothing."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.walk import GONE
from forkyard.candidate.walker_main import raw, text
from forkyard.errors import WorkspaceError
from forkyard.model.candidate import LeftOut

LISTED = 200
_FIELDS = 4
_NONE_IGNORED = 1
_HERE = b"./"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """New and changed files that are not carried."""

    paths: tuple[str, ...] = ()
    entries: tuple[LeftOut, ...] = ()
    """For people: whole folders as one line, at most `LISTED` of them."""
    count: int = 0
    size_bytes: int = 0


async def find_ignored(
    store: ObjectStore,
    new_paths: Sequence[tuple[str, int]],
    touched: Sequence[tuple[str, int]],
    ignore_files: Sequence[tuple[str, str]],
    base_directories: frozenset[str],
) -> Ignored:
    """Ask git about paths, with nothing but the base's ignore files to go by.

    Args:
        store: Runs git.
        new_paths: Paths that the base does not have, with sizes.
        touched: Paths of the base that its commit does not have, with sizes or GONE.
        ignore_files: The base's .gitignore files and their contents in base64.
        base_directories: Directories of the base above the paths (the root is "").

    Returns:
        Those that are ignored, each with the rule.
    """
    asked = (*new_paths, *touched)
    if not asked or not ignore_files:
        return Ignored()
    async with store.scratch() as skeleton:
        for name, content in ignore_files:
            place = skeleton / os.fsdecode(raw(name))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(base64.b64decode(content))
        finished = await store.git(
            [
                "-c",
                "core.bare=false",
                "check-ignore",
                "--no-index",
                "-z",
                "-v",
                "-n",
                "--stdin",
            ],
            # a name such as ":(top)" is pathspec magic unless something stands before it
            stdin=b"".join(_HERE + raw(path) + b"\0" for path, _ in asked),
            work_tree=skeleton,
        )
    if finished.exit_code not in (0, _NONE_IGNORED):
        said = finished.stderr.decode("utf-8", "replace").strip()[:300]
        msg = f"cannot apply the base's ignore rules: {said}"
        raise WorkspaceError(msg, hint="Look at the .gitignore files of the base.")
    fields = finished.stdout.split(b"\0")
    rules: dict[str, str] = {}
    for start in range(0, len(fields) - _FIELDS + 1, _FIELDS):
        source, line, pattern, path = fields[start : start + _FIELDS]
        if source and not pattern.startswith(b"!"):
            shown = f"{text(source)}:{text(line)}: {text(pattern)}"
            rules[text(path.removeprefix(_HERE))] = f"ignored by the base's {shown}"
    sizes = dict(new_paths)
    summary = _summary(
        sizes, {path: rule for path, rule in rules.items() if path in sizes}, base_directories
    )
    return _with_kept(summary, _kept(touched, sizes.keys() - rules.keys(), rules), rules)


def _kept(
    touched: Sequence[tuple[str, int]], carried: AbstractSet[str], rules: Mapping[str, str]
) -> dict[str, int]:
    """Give the ignored files of the base that stay; not those whose place a carried file takes."""
    folders = {folder for path in carried for folder in _folders(path)}
    return {
        path: size
        for path, size in touched
        if path in rules
        and path not in folders
        and not any(folder in carried for folder in _folders(path))
    }


def _folders(path: str) -> Iterator[str]:
    while (cut := path.rfind("/")) >= 0:
        path = path[:cut]
        yield path


def _with_kept(new: Ignored, kept: Mapping[str, int], rules: Mapping[str, str]) -> Ignored:
    entries = [
        LeftOut(path=path, reason=f"{'deleted' if size == GONE else 'changed'}, {rules[path]}")
        for path, size in kept.items()
    ]
    everything = sorted((*new.entries, *entries), key=lambda entry: entry.path)
    return Ignored(
        paths=tuple(sorted((*new.paths, *kept))),
        entries=tuple(everything[:LISTED]),
        count=new.count + len(kept),
        size_bytes=new.size_bytes + sum(size for size in kept.values() if size != GONE),
    )


def _summary(
    new_paths: dict[str, int], rules: dict[str, str], base_directories: frozenset[str]
) -> Ignored:
    groups: dict[str, list[str]] = {}
    kept_tops = {_top(path, base_directories) for path in new_paths if path not in rules}
    for path in sorted(rules):
        top = _top(path, base_directories)
        groups.setdefault(path if top in kept_tops else top, []).append(path)
    entries = []
    for name, paths in sorted(groups.items()):
        reason = rules[paths[0]]
        if name != paths[0]:
            size = sum(new_paths[path] for path in paths)
            reason = f"{len(paths)} files, {size} bytes, {reason}"
        entries.append(LeftOut(path=name, reason=reason))
    return Ignored(
        paths=tuple(sorted(rules)),
        entries=tuple(entries),
        count=len(rules),
        size_bytes=sum(new_paths[path] for path in rules),
    )


def _top(path: str, base_directories: frozenset[str]) -> str:
    """Give the highest folder of a path that the base does not have, or the path itself."""
    position = path.find("/")
    while position >= 0:
        if path[:position] not in base_directories:
            return path[: position + 1]
        position = path.find("/", position + 1)
    return path
