"""The durable record of one application: plan, contents before and after, and how things were.

    plan.json       what changes
    new/<index>     content after        base/<index>    content before (a link's text for links)
    kept.json       modes, owners, times and extended attributes before; folders made and removed
    lock            held by whoever writes into the tree
    view/           where a helper mounts a workspace's files, in a mount namespace of its own

It is complete and synced before the first byte of the tree is touched.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.base import durable
from forkyard.promotion.plan import Entry, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How a file or folder was, apart from its content."""

    mode: int
    user_id: int
    group_id: int
    modified_ns: int
    attributes: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """How the touched part of a tree was before the first byte."""

    files: dict[bytes, Kept]
    """By path, for every entry that existed."""
    folders: dict[bytes, Kept]
    """Folders that may be removed since their last file goes."""
    missing_folders: tuple[bytes, ...]
    """Folders to be made, outermost first."""


class Record:
    """One application's folder."""

    def __init__(self, folder: Path, *, turned: bool = False) -> None:
        self.folder = folder
        self._before, self._after = ("new", "base") if turned else ("base", "new")

    def turned_round(self) -> Record:
        """See the candidate's content as what was before, to compare for an undo."""
        return Record(self.folder, turned=True)

    def write(self, plan: Plan) -> None:
        """Start the record; contents are added by `write_content`.

        Durability:
            On disk when this returns.
        """
        for part in (self.folder / "new", self.folder / "base"):
            durable.make_directory(part)
        durable.write_file(self.folder / "lock", b"")
        durable.write_file(self.folder / "plan.json", plan.to_json())

    def write_content(self, entry: Entry, *, before: bytes | None, after: bytes | None) -> None:
        """Keep one entry's content before and after, durably."""
        if before is not None:
            durable.write_file(self.folder / "base" / str(entry.index), before)
        if after is not None:
            durable.write_file(self.folder / "new" / str(entry.index), after)

    def is_there(self) -> bool:
        """Say whether the record has not been removed."""
        return (self.folder / "plan.json").is_file()

    def plan(self) -> Plan:
        """Read the plan."""
        return Plan.from_json((self.folder / "plan.json").read_bytes())

    def before(self, entry: Entry) -> bytes:
        """Read an entry's content in the recorded base."""
        return (self.folder / self._before / str(entry.index)).read_bytes()

    def after(self, entry: Entry) -> bytes:
        """Read an entry's content in the candidate."""
        return (self.folder / self._after / str(entry.index)).read_bytes()

    def view(self) -> Path:
        """Give a folder to mount a workspace's files on."""
        view = self.folder / "view"
        view.mkdir(mode=0o700, exist_ok=True)
        return view

    def write_kept(self, kept: Before) -> None:
        """Keep how the tree was, durably."""
        text = json.dumps(
            {
                "files": {os.fsdecode(p): _row(k) for p, k in kept.files.items()},
                "folders": {os.fsdecode(p): _row(k) for p, k in kept.folders.items()},
                "missing_folders": [os.fsdecode(p) for p in kept.missing_folders],
            }
        )
        durable.write_file(self.folder / "kept.json", text.encode())

    def kept(self) -> Before:
        """Read how the tree was."""
        loaded = json.loads((self.folder / "kept.json").read_bytes())
        return Before(
            files={os.fsencode(p): _kept(*r) for p, r in loaded["files"].items()},
            folders={os.fsencode(p): _kept(*r) for p, r in loaded["folders"].items()},
            missing_folders=tuple(os.fsencode(p) for p in loaded["missing_folders"]),
        )


def _row(kept: Kept) -> list[object]:
    attributes = {n: base64.b64encode(v).decode() for n, v in kept.attributes.items()}
    return [kept.mode, kept.user_id, kept.group_id, kept.modified_ns, attributes]


def _kept(
    mode: int, user_id: int, group_id: int, modified_ns: int, attributes: dict[str, str]
) -> Kept:
    return Kept(
        mode=mode,
        user_id=user_id,
        group_id=group_id,
        modified_ns=modified_ns,
        attributes={name: base64.b64decode(value) for name, value in attributes.items()},
    )
