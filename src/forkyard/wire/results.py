"""Runs and what they yield, as JSON: names that scripts rely on (design section 10)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from forkyard.wire.schema import (
    AnswerModel,
    FileChangeInfo,
    LeftOutInfo,
    RequestModel,
    Text,
)

FINAL_RUN_STATES = frozenset({"finished", "cancelled", "interrupted"})
"""Of a run that nothing will change any more by itself."""


class QuickRequest(RequestModel):
    """The quick form of a task: everything that fits a command line."""

    prompt: str
    agents: list[str]
    """Each ``NAME=SHELL COMMAND``; the command gets the prompt as $PROMPT."""
    cwd: Annotated[str, Field(pattern=r"^/")]
    """Where relative paths start."""
    attempts: int = 1
    """Of each agent."""
    checks: list[str] = []
    repository: str = "."
    include_uncommitted: bool = True
    snapshot: str | None = None
    """Start from this snapshot instead of the repository."""
    template: str | None = None
    """Start from this template's snapshot instead of the repository."""
    protected: list[str] = []
    scope: list[str] = []
    held_out: list[str] = []
    parallel: Annotated[int, Field(ge=1, le=64)] | None = None
    attempt_timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> QuickRequest:
        if self.snapshot is not None and self.template is not None:
            raise ValueError("needs at most one of snapshot and template")
        return self


class SubmitRequest(RequestModel):
    """A task file (its text and the absolute path it was read from), or the quick form."""

    text: str | None = None
    file: str | None = None
    quick: QuickRequest | None = None

    @model_validator(mode="after")
    def _one_form(self) -> SubmitRequest:
        if (self.text is None) == (self.quick is None):
            raise ValueError("needs exactly one of text (with file) and quick")
        if self.text is not None and (self.file is None or not self.file.startswith("/")):
            raise ValueError("text needs the absolute path of its file")
        return self


class UsageInfo(AnswerModel):
    """Tokens and money; null means not measured, never zero."""

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class BaseSummary(AnswerModel):
    """What a task started from."""

    commit: str | None
    tree: str | None
    snapshot: str
    uncommitted: bool = False


class CandidateSummary(AnswerModel):
    """The candidate inside its attempt."""

    id: str
    status: str
    base_tree: str
    result_tree: str
    patch_sha256: str
    patch_bytes: int
    files: list[FileChangeInfo] = []
    problems: list[Text] = []
    outside_scope: list[Text] = []
    control_files: list[Text] = []
    protected: list[Text] = []


class CandidateInfo(CandidateSummary):
    """A candidate by itself, with everything that is not carried."""

    attempt: str
    run: str
    created_at: str
    manifest_sha256: str
    left_out: list[LeftOutInfo] = []
    ignored: list[LeftOutInfo] = []
    facts: dict[str, Text] = {}


class CheckInfo(AnswerModel):
    """One check of a candidate, compared with the base."""

    name: str
    state: str
    exit_code: int | None = None
    elapsed_seconds: float | None = None
    tests: dict[Text, str] = {}
    detail: Text | None = None


class EvaluationInfo(AnswerModel):
    """All checks of one candidate on a clean fork."""

    id: str
    verdict: str
    assurance: str
    result_tree: str
    checks: list[CheckInfo] = []
    reasons: list[Text] = []
    trouble: Text | None = None


class AttemptInfo(AnswerModel):
    """One agent in one workspace."""

    id: str
    agent: str
    number: int
    state: str
    exit_code: int | None = None
    elapsed_seconds: float | None = None
    cleanup: str = "pending"
    trouble: Text | None = None
    detail: Text | None = None
    workspace: str | None = None
    candidate: CandidateSummary | None = None
    evaluation: EvaluationInfo | None = None
    usage: UsageInfo = UsageInfo()


class RankedInfo(AnswerModel):
    """One place in a ranking."""

    candidate: str
    rank: int
    reasons: list[Text] = []


class TaskInfo(AnswerModel):
    """One task of a run and what came of it."""

    name: str
    base: BaseSummary
    attempts: list[AttemptInfo] = []
    ranking: list[RankedInfo] = []
    winner: str | None = None
    summary: Text = ""
    trouble: Text | None = None


class RunInfo(AnswerModel):
    """One submission: the object that ``run --json`` ends with."""

    id: str
    name: str
    state: str
    created_at: str
    ended_at: str | None = None
    deadline_at: str | None = None
    cancel_requested: bool = False
    tasks: list[TaskInfo] = []
    usage: UsageInfo = UsageInfo()


class RunSummary(AnswerModel):
    """One line of ``forkyard status``."""

    id: str
    name: str
    state: str
    created_at: str
    ended_at: str | None = None
    attempts: int = 0
    attempts_ended: int = 0
    winners: list[str | None] = []
    """One per task."""


class ApplyRequest(RequestModel):
    """Put a candidate's bytes into a working tree: a folder of the host, or a workspace."""

    target: str | None = None
    """Absolute path."""
    workspace: str | None = None

    @model_validator(mode="after")
    def _one_target(self) -> ApplyRequest:
        if (self.target is None) == (self.workspace is None):
            raise ValueError("needs exactly one of target and workspace")
        if self.target is not None and not self.target.startswith("/"):
            raise ValueError("target must be an absolute path")
        return self


class ApplicationInfo(AnswerModel):
    """One candidate put into one working tree."""

    id: str
    candidate: str
    target: str
    paths: list[Text] = []
    state: str
    created_at: str
