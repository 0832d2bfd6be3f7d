"""Checks, per-test outcomes, verdicts and rankings as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forkyard.model.ids import CandidateId, EvaluationId


class ReportFormat(StrEnum):
    """How a check tells its tests apart."""

    EXIT = "exit"
    """No report: the check is one test, passed when it exits 0."""
    JUNIT = "junit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One command with a rule."""

    name: str
    run: str
    report: ReportFormat = ReportFormat.EXIT
    timeout_seconds: float = 1200.0
    must_fail: tuple[str, ...] = ()
    """Test ids that no candidate can make pass: a report that does not say so is not believed."""


class TestOutcome(StrEnum):
    """What a report says of one test id in one execution."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSING = "missing"


class TestState(StrEnum):
    """What base and candidate together say of one test id."""

    __test__ = False

    FAIL_TO_PASS = "fail-to-pass"  # noqa: S105 - an outcome, no password
    PASS_TO_PASS = "pass-to-pass"  # noqa: S105 - an outcome, no password
    STILL_FAILING = "still-failing"
    REGRESSED = "regressed"
    MISSING = "missing"
    """Reported on the base, absent now: counts as failed."""
    FLAKY = "flaky"
    """Disagreed with itself on the base: shown, decides nothing."""
    NEW_PASSED = "new-passed"
    NEW_FAILED = "new-failed"
    SKIPPED = "skipped"


class CheckState(StrEnum):
    """Whether one check speaks for the candidate."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    NO_REPORT = "no-report"
    """It asked for a report and none that can be read was written: all its tests are missing."""
    COULD_NOT_RUN = "could-not-run"
    """Trouble of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRun:
    """One execution of one check: on the base or on a candidate."""

    name: str
    state: CheckState
    exit_code: int | None
    elapsed_seconds: float
    outcomes: dict[str, TestOutcome] = field(default_factory=dict)
    detail: str | None = None
    log: str | None = None
    """Path of the kept output, relative to the state directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check of a candidate, compared with the base."""

    name: str
    state: CheckState
    exit_code: int | None
    elapsed_seconds: float
    tests: dict[str, TestState] = field(default_factory=dict)
    detail: str | None = None
    log: str | None = None


class VerdictKind(StrEnum):
    """The outcome of an evaluation (design section 8), best first."""

    SOLVED = "solved"
    NO_REGRESSION_SHOWN = "no-regression-shown"
    PARTIAL = "partial"
    REGRESSED = "regressed"
    FAILED = "failed"
    INVALID = "invalid"
    INCOMPLETE = "incomplete"
    NOT_EVALUATED = "not-evaluated"


class Assurance(StrEnum):
    """How far a verdict can be trusted against a candidate that cheats."""

    IN_PROCESS = "in-process"
    """Candidate code runs in the process that writes the report."""
    ISOLATED = "isolated"
    NONE = "none"
    """Nothing was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the checks say of the base itself, before any candidate."""

    checks: tuple[CheckRun, ...]
    """All runs, in order; a check appears once per repeat."""
    trouble: str | None = None
    """Why the base could not be judged: then no candidate is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All checks of one candidate on a clean fork."""

    id: EvaluationId
    candidate: CandidateId
    result_tree: str
    """The exact tree that was judged."""
    verdict: VerdictKind
    assurance: Assurance
    created_at: str
    checks: tuple[CheckResult, ...] = ()
    reasons: tuple[str, ...] = ()
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """One place in a ranking; candidates of equal rank are tied."""

    candidate: CandidateId
    rank: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Ordered candidates with reasons; no winner is a result."""

    places: tuple[RankedCandidate, ...] = ()
    winner: CandidateId | None = None
    summary: str = ""
