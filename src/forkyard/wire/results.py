"""Runs and what they yield, as JSON: names that scripts rely on (design section 10)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from forkyard.model.hosts import MOST_ENTRIES
from forkyard.wire.bodies import AnswerModel, RequestModel, Text, Vars
from forkyard.wire.schema import FileChangeInfo, LeftOutInfo
from forkyard.wire.units import MOST_MICRO_USD, MOST_TOKENS

FINAL_RUN_STATES = frozenset({"finished", "cancelled", "interrupted"})
"""Of a run that nothing will change any more by itself."""


class QuickRequest(RequestModel):
    """The quick form of a task: everything that fits a command line."""

    prompt: str
    agents: list[str]
    """Each ``NAME=SHELL COMMAND`` (which gets the prompt as $PROMPT), DRIVER or DRIVER:MODEL."""
    cwd: Annotated[str, Field(pattern=r"^/")]
    """Where relative paths start."""
    attempts: int = 1
    """Of each agent."""
    checks: list[str] = []
    repository: str = "."
    include_uncommitted: bool = True
    setup: list[str] = []
    """Shell commands run once in the repository's copy, with the network open."""
    snapshot: str | None = None
    """Start from this snapshot instead of the repository."""
    template: str | None = None
    """Start from this template's snapshot instead of the repository."""
    vars: Vars = {}
    """With template: values of its `vars`."""
    protected: list[str] = []
    scope: list[str] = []
    held_out: list[str] = []
    allow: Annotated[list[str], Field(max_length=MOST_ENTRIES)] = []
    """Hosts that the attempts may reach, beside the model."""
    parallel: Annotated[int, Field(ge=1, le=64)] | None = None
    attempt_timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    budget_tokens: Annotated[int, Field(gt=0, le=MOST_TOKENS)] | None = None
    budget_micro_usd: Annotated[int, Field(gt=0, le=MOST_MICRO_USD)] | None = None
    """Millionths of a US dollar, for all attempts together."""

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
    reasoning_tokens: int | None = None
    """The part of the output that was reasoning, where the provider tells."""
    cost_usd: float | None = None
    """Null where a model has no known price, too."""
    requests: int | None = None
    estimated_requests: int | None = None
    """Counted at their upper bound, since nobody knows what they really used."""


class LiveInfo(AnswerModel):
    """What the gateway says of an attempt that runs."""

    spent_tokens: int = 0
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    queue_position: int | None = None
    """1 is next; null where nothing waits."""
    refused: int = 0
    refusal: Text | None = None
    fault: Text | None = None
    """How its newest request ended, where that was no success."""


class BudgetInfo(AnswerModel):
    """Most that a run may spend; null: no limit."""

    tokens: int | None = None
    usd: float | None = None


class UsageLine(UsageInfo):
    """What one run, attempt, agent, model or day spent."""

    key: Text
    name: Text = ""
    """For people: a run's name, an attempt's agent."""
    first_byte_milliseconds: int | None = None
    """On the average."""


class UsageReport(AnswerModel):
    """What was spent, grouped."""

    by: str
    lines: list[UsageLine] = []
    total: UsageInfo = UsageInfo()
    price_versions: list[Text] = []


class BaseSummary(AnswerModel):
    """What a task started from."""

    commit: str | None
    tree: str | None
    snapshot: str
    uncommitted: bool = False


class SecretFindingInfo(AnswerModel):
    """A file that carries a secret, by the secret's name."""

    path: Text
    secret: str


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
    secrets: list[SecretFindingInfo] = []
    """Secrets that the patch carries."""


class CandidateInfo(CandidateSummary):
    """A candidate by itself, with everything that is not carried."""

    attempt: str
    run: str
    source: Text | None = None
    """Folder of this machine that the run's repository was taken from."""
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
    failure: str | None = None
    """`provider`, `agent`, `budget` or `ours`; null where the agent ended as agents do."""
    model: str = ""
    agent_version: Text | None = None
    known_limitations: Text | None = None
    """As the agent itself states them; null: none stated."""
    claims_success: bool | None = None
    """What the agent said of its end: a claim, never a finding."""
    usage: UsageInfo = UsageInfo()
    live: LiveInfo | None = None


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
    budget: BudgetInfo | None = None
    """Null where nothing limits the run as a whole."""


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


class UndoRequest(RequestModel):
    """Take an application back."""

    dry_run: bool = False
    """Compare only: an error says what would refuse."""


class ApplicationInfo(AnswerModel):
    """One candidate put into one working tree."""

    id: str
    candidate: str
    target: str
    paths: list[Text] = []
    state: str
    """`applied`, `undone`, or `writing`: its way back was not gone to its end."""
    created_at: str
    left: list[Text] = []
    """Of `undone`: paths that were edited meanwhile and left alone."""
