"""The four things done to a tree, as one call that runs in a thread or in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from enum import StrEnum

from forkyard.promotion.record import Record
from forkyard.promotion.tree import Difference, Tree, before, compare
from forkyard.promotion.tree_writer import EditedMeanwhileError, write
from forkyard.promotion.way_back import NothingTouchedError, take_back


class Action(StrEnum):
    """What to do with the tree and the record."""

    COMPARE = "compare"
    """Compare with the base; where nothing differs, complete the record."""
    WRITE = "write"
    """Write; when it does not work, take the way back at once."""
    COMPARE_UNDO = "compare-undo"
    """Compare with the candidate, to see whether the way back would lose anything."""
    TAKE_BACK = "take-back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an action found."""

    differences: tuple[Difference, ...] = ()
    left: tuple[bytes, ...] = ()
    """Paths that the way back left as somebody else wrote them since."""
    error: str | None = None
    """Why it did not work."""
    taken_back: bool = False
    """With error: the tree is as it was before."""
    untouched: bool = False
    """With error: the way back could not begin."""

    def to_json(self) -> bytes:
        """Write it for the process that asked."""
        return json.dumps(
            {
                "differences": [[os.fsdecode(d.path), d.reason] for d in self.differences],
                "left": [os.fsdecode(path) for path in self.left],
                "error": self.error,
                "taken_back": self.taken_back,
                "untouched": self.untouched,
            }
        ).encode()

    @staticmethod
    def from_json(text: bytes) -> Outcome:
        """Read what the other process wrote."""
        loaded = json.loads(text)
        return Outcome(
            differences=tuple(
                Difference(path=os.fsencode(path), reason=reason)
                for path, reason in loaded["differences"]
            ),
            left=tuple(os.fsencode(path) for path in loaded["left"]),
            error=loaded["error"],
            taken_back=loaded["taken_back"],
            untouched=loaded["untouched"],
        )


def act(action: Action, root: int, record: Record) -> Outcome:
    """Do one action on an open tree; only one process at a time works on a record."""
    lock = os.open(record.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _act(action, Tree(root), record)
    except OSError as error:
        return Outcome(error=_reason(error))
    finally:
        os.close(lock)


def _act(action: Action, tree: Tree, record: Record) -> Outcome:
    plan = record.plan()
    match action:
        case Action.COMPARE:
            differences = compare(tree, plan, record)
            if not differences:
                record.write_kept(before(tree, plan))
            return Outcome(differences=differences)
        case Action.COMPARE_UNDO:
            differences = compare(tree, plan.turned_round(), record.turned_round())
            return Outcome(differences=differences)
        case Action.TAKE_BACK:
            try:
                return Outcome(left=take_back(tree, plan, record), taken_back=True)
            except NothingTouchedError as error:
                return Outcome(error=_reason(error), untouched=True)
        case Action.WRITE:
            try:
                write(tree, plan, record)
            except EditedMeanwhileError as error:
                left = take_back(tree, plan, record)
                edited = Difference(path=error.path, reason="was edited meanwhile")
                return Outcome(differences=(edited,), left=left, taken_back=True)
            except OSError as error:
                reason = _reason(error)
                return Outcome(error=reason, left=take_back(tree, plan, record), taken_back=True)
            return Outcome()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
