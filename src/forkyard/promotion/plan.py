"""What one application changes, as values: no I/O, only paths, git modes and their order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from forkyard.errors import ConflictError, InternalError
from forkyard.model.candidate import Candidate, CandidateStatus

FILE = "100644"
EXECUTABLE = "100755"
LINK = "120000"
_MODES = frozenset({FILE, EXECUTABLE, LINK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path that changes; its contents lie in the record under its index."""

    index: int
    path: bytes
    """Relative to the tree's root."""
    old: str | None
    """Git mode in the recorded base; None where the path is new."""
    new: str | None
    """Git mode in the candidate; None where it deletes the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything one application changes, in path order."""

    staging: str
    """Folder at the tree's root that holds what is on its way in or out, while writing only."""
    entries: tuple[Entry, ...]

    @property
    def removed(self) -> Iterator[Entry]:
        """Entries whose path goes away."""
        return (entry for entry in self.entries if entry.new is None)

    @property
    def written(self) -> Iterator[Entry]:
        """Entries whose path has new content, or is new."""
        return (entry for entry in self.entries if entry.new is not None)

    def turned_round(self) -> Plan:
        """Give the plan that leads from the candidate back to the base."""
        return replace(
            self,
            entries=tuple(replace(e, old=e.new, new=e.old) for e in self.entries),
        )

    def to_json(self) -> bytes:
        """Write the plan as text; a path's undecodable bytes survive as escapes."""
        rows = [[os.fsdecode(e.path), e.old, e.new] for e in self.entries]
        return json.dumps({"staging": self.staging, "entries": rows}).encode()

    @staticmethod
    def from_json(text: bytes) -> Plan:
        """Read back what `to_json` wrote."""
        loaded = json.loads(text)
        return Plan(
            staging=loaded["staging"],
            entries=tuple(
                Entry(index=index, path=os.fsencode(path), old=old, new=new)
                for index, (path, old, new) in enumerate(loaded["entries"])
            ),
        )


def parents(path: bytes) -> Iterator[bytes]:
    """Give the folders above a path, nearest first, without the root."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def plan_of(candidate: Candidate, *, staging: str) -> Plan:
    """Turn a candidate's list of changed files into a plan.

    Raises:
        ConflictError: The candidate is not complete: half of a change is no change.
        InternalError: A path or mode that no collection could have let through.
    """
    if candidate.status is not CandidateStatus.COMPLETE:
        reasons = "; ".join(candidate.problems[:3]) or "its collection did not end well"
        raise ConflictError(
            f"cannot apply {candidate.id}: it is {candidate.status}, not complete ({reasons})",
            hint="Choose another candidate with `forkyard compare`.",
        )
    entries = []
    ordered = sorted(candidate.files, key=lambda change: os.fsencode(change.path))
    for index, change in enumerate(ordered):
        path = os.fsencode(change.path)
        parts = path.split(b"/")
        unfit = any(p in {b"", b".", b".."} or p.lower() == b".git" or b"\0" in p for p in parts)
        modes = {change.old_mode, change.new_mode} - {None}
        if unfit or not modes or not modes <= _MODES:
            raise InternalError(f"cannot apply {candidate.id}: unfit entry {change.path!r} {modes}")
        entries.append(Entry(index=index, path=path, old=change.old_mode, new=change.new_mode))
    return Plan(staging=staging, entries=tuple(entries))
