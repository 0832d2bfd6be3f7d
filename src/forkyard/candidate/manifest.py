r"""The manifest: everything that is known about a candidate, as one JSON file beside its patch.

On-disk format (version 1). The same tree, base and facts give the same bytes: nothing in it comes
from a clock or from chance. Paths that are no UTF-8 carry surrogate escapes (``\udcXX``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.base.durable import write_file
from forkyard.model.candidate import CandidateStatus, FileChange, LeftOut, SecretFinding
from forkyard.model.ids import AttemptId, CandidateId, RunId
from forkyard.model.workspace import RecordedBase

FORMAT = "forkyard-candidate/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What only the caller knows about how the candidate came to be."""

    run: RunId | None = None
    task: str = ""
    agent: str = ""
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """Of Forkyard, the agent and its driver, as far as known."""
    prompt_sha256: str = ""
    snapshot: str = ""
    limits: dict[str, str] = field(default_factory=dict)
    """In force while the agent ran."""
    isolation: dict[str, str] = field(default_factory=dict)
    """In force while the agent ran; among it the digest of the sandbox's configuration."""
    environment: dict[str, str] = field(default_factory=dict)
    """Whose programs it was made with: the digest of an image, or of this machine's packages."""
    evaluations: tuple[str, ...] = ()
    """Ids of evaluations that judge this candidate, where they are known beforehand."""
    started_at: str = ""
    ended_at: str = ""
    ending: str = ""
    """How its attempt is going to be called, such as `budget-exhausted`."""
    model: str = ""
    usage: dict[str, object] | None = None
    """What it spent, by the gateway's ledger; None: nothing was metered."""
    connections: dict[str, object] | None = None
    """What its workspace connected to by an allowlist's proxy; None: it could reach no host."""
    claims: dict[str, object] = field(default_factory=dict)
    """What the agent says of itself, its own words on its work's limits included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the collection found."""

    candidate: CandidateId
    attempt: AttemptId
    base: RecordedBase
    result_tree: str
    status: CandidateStatus
    patch_sha256: str
    patch_bytes: int
    files: Sequence[FileChange]
    left_out: Sequence[LeftOut]
    left_out_more: int
    ignored: Sequence[LeftOut]
    ignored_count: int
    ignored_bytes: int
    large: Sequence[tuple[str, int]]
    links_outside: Sequence[tuple[str, str]]
    problems: Sequence[str]
    outside_scope: Sequence[str]
    control_files: Sequence[str]
    protected: Sequence[str]
    secrets: Sequence[SecretFinding] = ()


_LIMITATIONS = (
    "empty directories, owners, times and extended attributes are not carried",
    "what only the agent's index, commits or stashes hold is not carried: files on disk are",
)


def write_manifest(path: Path, contents: Contents, facts: AttemptFacts) -> str:
    """Write a manifest.

    Returns:
        Its SHA-256.

    Durability:
        It is on disk when this returns.
    """
    base = contents.base
    document = {
        "format": FORMAT,
        "candidate": contents.candidate,
        "attempt": contents.attempt,
        "run": facts.run,
        "task": facts.task,
        "agent": {
            "name": facts.agent,
            "driver": facts.driver,
            "model": facts.model,
            "versions": facts.versions,
        },
        "ending": facts.ending,
        "usage": facts.usage,
        "claims": facts.claims,
        "prompt_sha256": facts.prompt_sha256,
        "snapshot": facts.snapshot,
        "started_at": facts.started_at,
        "ended_at": facts.ended_at,
        "base": {
            "repository": base.repository,
            "commit": base.commit,
            "branch": base.branch,
            "tree": base.tree,
            "uncommitted": base.uncommitted,
            "notes": list(base.notes),
        },
        "status": contents.status.value,
        "result_tree": contents.result_tree,
        "patch": {"sha256": contents.patch_sha256, "bytes": contents.patch_bytes},
        "files": [_file(change) for change in contents.files],
        "large_files": [{"path": path, "bytes": size} for path, size in contents.large],
        "links_outside": [
            {"path": path, "target": target} for path, target in contents.links_outside
        ],
        "left_out": [_left_out(item) for item in contents.left_out],
        "left_out_unlisted": contents.left_out_more,
        "ignored_new": {
            "count": contents.ignored_count,
            "bytes": contents.ignored_bytes,
            "entries": [_left_out(item) for item in contents.ignored],
        },
        "problems": list(contents.problems),
        "outside_scope": list(contents.outside_scope),
        "control_files": list(contents.control_files),
        "protected": list(contents.protected),
        "secret_findings": [{"path": one.path, "secret": one.secret} for one in contents.secrets],
        "connections": facts.connections,
        "limits": facts.limits,
        "isolation": facts.isolation,
        "environment": facts.environment,
        "evaluations": list(facts.evaluations),
        "known_limitations": [*_LIMITATIONS, *_stated(facts)],
    }
    content = json.dumps(document, indent=1, sort_keys=True).encode("ascii") + b"\n"
    write_file(path, content)
    return hashlib.sha256(content).hexdigest()


def _stated(facts: AttemptFacts) -> list[str]:
    stated = facts.claims.get("known_limitations")
    return [] if stated is None else [f"stated by the agent: {stated}"]


def _file(change: FileChange) -> dict[str, object]:
    return {
        "path": change.path,
        "kind": change.kind.value,
        "old_mode": change.old_mode,
        "new_mode": change.new_mode,
        "old_blob": change.old_blob,
        "new_blob": change.new_blob,
        "bytes": change.size_bytes,
        "added_lines": change.added_lines,
        "deleted_lines": change.deleted_lines,
    }


def _left_out(item: LeftOut) -> dict[str, str]:
    return {"path": item.path, "reason": item.reason}
