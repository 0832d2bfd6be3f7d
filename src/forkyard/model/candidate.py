"""What an attempt yielded: a tree, the files that changed, and what could not be carried."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forkyard.model.ids import AttemptId, CandidateId


class ChangeKind(StrEnum):
    """How a path differs between base and result."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    MODE = "mode-changed"
    TYPE = "type-changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One path that differs. Paths are bytes in git; here surrogate-escaped text."""

    path: str
    kind: ChangeKind
    old_mode: str | None
    """Git's octal text, such as 100644; None when added."""
    new_mode: str | None
    old_blob: str | None
    new_blob: str | None
    size_bytes: int = 0
    """Of the new content."""
    added_lines: int | None = None
    """None for binary content."""
    deleted_lines: int | None = None


class CandidateStatus(StrEnum):
    """Whether the change could be carried whole."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """A hard limit stopped the collection; what was seen is kept."""
    INVALID = "invalid"
    """Git refuses a path of it, or replaying the patch did not give the same tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something in the workspace that the candidate does not carry, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFinding:
    """A file whose new content or name holds the value of a secret, in whatever coding."""

    path: str
    secret: str
    """Its name; the value is nowhere told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The journal's row of one candidate; patch and manifest lie beside it as files."""

    id: CandidateId
    attempt: AttemptId
    status: CandidateStatus
    base_tree: str
    result_tree: str
    patch_sha256: str
    patch_bytes: int
    manifest_sha256: str
    created_at: str
    files: tuple[FileChange, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    ignored: tuple[LeftOut, ...] = ()
    """New files, and changed ones that are not in the base commit, which the base's own ignore
    rules cover (build outputs, caches): not carried."""
    problems: tuple[str, ...] = ()
    outside_scope: tuple[str, ...] = ()
    control_files: tuple[str, ...] = ()
    """Changed files that run code when opened, built or merged."""
    protected: tuple[str, ...] = ()
    """Changed files that the evaluation puts back as they were in the base."""
    secrets: tuple[SecretFinding, ...] = ()
    """Secrets that the patch carries: it is not altered, so do not publish it."""
    facts: dict[str, str] = field(default_factory=dict)
