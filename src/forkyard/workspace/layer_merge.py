"""Merging layers into one that shows the same, in a process of its own.

Standard input: one JSON object with `layers` (folders, topmost first), `target` (an empty folder),
`has_below` (whether other layers will lie under the result) and `opaque` (the name of overlayfs's
mark). Standard output: one JSON object, the report. Layers never change, so a file is not copied:
the result holds another name of it, and only folders are made. Every name is reached by descriptor
and no link is followed.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from forkyard.workspace.upper_copy import DEEPEST, FOLDER, CannotCopy, Copier, copy_facts

_ONLY_A_COPY = frozenset({errno.EMLINK, errno.EPERM, errno.EXDEV})


@dataclass(slots=True)
class Merger:
    """One merge under way."""

    copier: Copier
    opaque: str

    def folder(self, sources: list[int], target: int, path: str, *, shows_below: bool) -> None:
        """Fill a folder with what its sources (topmost first) hold together.

        Args:
            sources: Open folders that overlayfs would merge.
            target: Empty.
            path: Of the target, from the top.
            shows_below: Whether names of layers under the result appear in it, unless hidden.
        """
        if path.count("/") > DEEPEST:
            raise CannotCopy(f"{path[:80]}... is nested more than {DEEPEST} folders deep")
        known: set[str] = set()
        for index, source in enumerate(sources):
            with os.scandir(source) as entries:
                found = [entry for entry in entries if entry.name not in known]
            for entry in found:
                known.add(entry.name)
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    self.subfolder(
                        sources[index:], target, entry.name, path, shows_below=shows_below
                    )
                elif shows_below or not is_whiteout(facts):
                    self.name(source, target, entry, path)

    def subfolder(
        self, sources: list[int], target: int, name: str, path: str, *, shows_below: bool
    ) -> None:
        """Merge one folder that the first of the sources has."""
        with ExitStack() as stack:
            merged: list[int] = []
            is_opaque = False
            for source in sources:
                try:
                    facts = os.stat(name, dir_fd=source, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not stat.S_ISDIR(facts.st_mode):
                    is_opaque = True
                    break
                merged.append(os.open(name, FOLDER, dir_fd=source))
                stack.callback(os.close, merged[-1])
                if self.hides_below(merged[-1]):
                    is_opaque = True
                    break
            os.mkdir(name, 0o700, dir_fd=target)
            into = os.open(name, FOLDER, dir_fd=target)
            stack.callback(os.close, into)
            shows = shows_below and not is_opaque
            self.folder(merged, into, f"{path}{name}/", shows_below=shows)
            copy_facts(merged[0], into, without=self.opaque)
            if shows_below and is_opaque:
                os.setxattr(into, self.opaque, b"y")
                facts = os.fstat(merged[0])
                os.utime(into, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    def hides_below(self, folder: int) -> bool:
        """Say whether overlayfs shows nothing of what lies under this folder."""
        try:
            return os.getxattr(folder, self.opaque) == b"y"
        except OSError:
            return False

    def name(self, source: int, target: int, entry: os.DirEntry[str], path: str) -> None:
        """Give what is no folder another name."""
        name = entry.name
        try:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _ONLY_A_COPY:
                raise
            self.copier.entry(source, target, entry, f"{path}{name}", 0)


def is_whiteout(facts: os.stat_result) -> bool:
    """Say whether an entry marks a deletion."""
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def main() -> None:
    """Do what standard input asks for and report."""
    sys.setrecursionlimit(8 * DEEPEST)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asked = json.load(sys.stdin)
    report: dict[str, object] = {"error": None, "full": False}
    sources = [os.open(layer, FOLDER) for layer in asked["layers"]]
    target = os.open(asked["target"], FOLDER)
    merger = Merger(Copier(top=target), asked["opaque"])
    try:
        merger.folder(sources, target, "", shows_below=asked["has_below"])
        copy_facts(sources[0], target, without=asked["opaque"])
    except CannotCopy as error:
        report["error"] = str(error)
    except OSError as error:
        reason = error.strerror or str(error)
        report["error"] = f"{error.filename}: {reason}" if error.filename else reason
        report["full"] = error.errno in (errno.ENOSPC, errno.EDQUOT)
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
