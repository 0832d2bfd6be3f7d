"""Where the trees of recorded bases lie: a file for each, named by its tree.

A base that was recorded on top of another has a file with what is its own only, and names the one
below. What a name stands for never changes, so a file that is there already stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from forkyard.base.durable import sync_directory
from forkyard.candidate.objects import ObjectStore
from forkyard.candidate.trees import HEAD_BYTES, below_of

MOST_FILES = 8
"""A base that would be looked up in more than these is written whole again."""


def index_path(store: ObjectStore, tree: str) -> Path:
    """Give where the trees of a base, or of its untracked files, lie."""
    return store.bases / f"{tree}.trees"


@contextlib.contextmanager
def open_index(store: ObjectStore, tree: str) -> Iterator[tuple[int, ...]]:
    """Open the files of a tree's index, as `TreeIndex` takes them.

    Raises:
        OSError: One of them is not there, or cannot be read.
    """
    with contextlib.ExitStack() as stack:
        descriptors: list[int] = []
        below: str | None = tree
        while below is not None:
            descriptor = os.open(index_path(store, below), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            descriptors.append(descriptor)
            below = below_of(os.pread(descriptor, HEAD_BYTES, 0))
        yield tuple(descriptors)


def keep_index(store: ObjectStore, tree: str, made: Path, below: str = "") -> None:
    """Keep a finished file as a tree's index, unless there is one.

    Its time, and that of the one below, is now: so neither is old before somebody says who needs
    it.

    Durability:
        The name is on disk when this returns; the content was before.
    """
    if below:
        os.utime(index_path(store, below))
    place = index_path(store, tree)
    try:
        os.utime(place)
    except FileNotFoundError:
        made.rename(place)
        sync_directory(store.bases)


def with_those_below(store: ObjectStore, trees: Iterable[str]) -> frozenset[str]:
    """Add to some trees all those whose files their indexes are looked up in."""
    found: set[str] = set()
    for tree in trees:
        below: str | None = tree
        while below is not None and below not in found:
            found.add(below)
            try:
                with index_path(store, below).open("rb") as file:
                    below = below_of(file.read(HEAD_BYTES))
            except FileNotFoundError:
                below = None
    return frozenset(found)
