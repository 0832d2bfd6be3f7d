"""Ordering candidates with reasons a person can read aloud. Pure.

Order: verdict, fewer broken tests, more fixed tests, inside the scope, no protected file
touched, smaller change, less time (in whole seconds). Equal in all of it is a tie and stays one.
Candidates that could not be judged because of us are listed apart, with rank 0: they did not
lose. There is a winner only when one candidate alone is first and solves the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forkyard.evaluation.tamper import remarks, tampered_paths
from forkyard.evaluation.verdict import tally_of
from forkyard.model.candidate import Candidate
from forkyard.model.run import Attempt
from forkyard.model.verdict import Evaluation, RankedCandidate, Ranking, VerdictKind

NOT_JUDGED = 0
"""Rank of a candidate that could not be judged through trouble of ours."""

_ORDER = {kind: place for place, kind in enumerate(VerdictKind)}
_BYTES_PER_LINE = 40
"""A binary file's size, told in lines."""
_NO_TIME = 10**9

_Key = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    candidate: Candidate
    evaluation: Evaluation
    attempt: Attempt | None
    key: _Key


def rank(
    candidates: Sequence[Candidate],
    evaluations: Sequence[Evaluation],
    attempts: Sequence[Attempt],
) -> Ranking:
    """Rank the candidates of one task.

    Args:
        candidates: All of them.
        evaluations: One for each; the last of a candidate counts.
        attempts: All attempts of the task, also those that yielded no candidate.

    Returns:
        Places from best to worst, those not judged last; independent of the order given.
    """
    judged = {evaluation.candidate: evaluation for evaluation in evaluations}
    by_id = {attempt.id: attempt for attempt in attempts}
    entries: list[_Entry] = []
    apart: list[RankedCandidate] = []
    for candidate in sorted(candidates, key=lambda one: one.id):
        evaluation = judged.get(candidate.id)
        if evaluation is None or evaluation.verdict is VerdictKind.NOT_EVALUATED:
            reasons = evaluation.reasons if evaluation else ("not judged yet",)
            apart.append(RankedCandidate(candidate=candidate.id, rank=NOT_JUDGED, reasons=reasons))
            continue
        attempt = by_id.get(candidate.attempt)
        entries.append(
            _Entry(
                candidate=candidate,
                evaluation=evaluation,
                attempt=attempt,
                key=_key(candidate, evaluation, attempt),
            )
        )
    entries.sort(key=lambda entry: (entry.key, entry.candidate.id))
    places = _places(entries)
    winner = None
    if places and _is_alone(places) and entries[0].evaluation.verdict is VerdictKind.SOLVED:
        winner = places[0].candidate
    return Ranking(
        places=(*places, *apart),
        winner=winner,
        summary=_summary(entries, len(apart), attempts, has_winner=winner is not None),
    )


def change_size(candidate: Candidate) -> int:
    """Give how much a reviewer has to read, in lines."""
    size = 0
    for change in candidate.files:
        if change.added_lines is None and change.deleted_lines is None:
            size += 1 + change.size_bytes // _BYTES_PER_LINE
        else:
            size += (change.added_lines or 0) + (change.deleted_lines or 0)
    return size


def _key(candidate: Candidate, evaluation: Evaluation, attempt: Attempt | None) -> _Key:
    tally = tally_of(evaluation.checks)
    elapsed = attempt.elapsed_seconds if attempt else None
    return (
        _ORDER[evaluation.verdict],
        len(tally.broken),
        -len(tally.fixed),
        len(candidate.outside_scope),
        len(tampered_paths(candidate)),
        change_size(candidate),
        _NO_TIME if elapsed is None else int(elapsed),
    )


def _is_alone(places: Sequence[RankedCandidate]) -> bool:
    return sum(place.rank == places[0].rank for place in places) == 1


def _places(entries: Sequence[_Entry]) -> list[RankedCandidate]:
    count = Counter(entry.key for entry in entries)
    places: list[RankedCandidate] = []
    current = 0
    for index, entry in enumerate(entries):
        is_tied = index > 0 and entries[index - 1].key == entry.key
        if not is_tied:
            current = index + 1
        reasons = [*entry.evaluation.reasons, *remarks(entry.candidate)]
        reasons.append(_size_reason(entry))
        if count[entry.key] > 1:
            others = count[entry.key] - 1
            reasons.append(f"tied with {others} {'other' if others == 1 else 'others'}")
        elif index > 0:
            difference = _difference(entries[index - 1], entry)
            if difference is not None:
                reasons.append(difference)
        places.append(
            RankedCandidate(candidate=entry.candidate.id, rank=current, reasons=tuple(reasons))
        )
    return places


def _size_reason(entry: _Entry) -> str:
    files = len(entry.candidate.files)
    if not files:
        return "changes nothing"
    changed = entry.candidate.files
    binary = sum(one.added_lines is None and one.deleted_lines is None for one in changed)
    lines = sum((one.added_lines or 0) + (one.deleted_lines or 0) for one in changed)
    what = f"{files} {'file' if files == 1 else 'files'}"
    rest = f", {binary} of them binary" if binary else ""
    return f"changes {lines} {'line' if lines == 1 else 'lines'} in {what}{rest}"


def _difference(better: _Entry, worse: _Entry) -> str | None:
    """Say what put one behind the other where the verdicts are the same."""
    if better.key[0] != worse.key[0]:
        return None
    words = (
        "",
        "more tests broke or vanished",
        "fixes fewer tests",
        "changes more outside the scope",
        "touched more protected files",
        "the change is larger",
        "it took longer",
    )
    for place, word in enumerate(words):
        if better.key[place] != worse.key[place]:
            return f"behind the one before it because {word}"
    return None


def _summary(
    entries: Sequence[_Entry], apart: int, attempts: Sequence[Attempt], *, has_winner: bool
) -> str:
    solved = [entry for entry in entries if entry.evaluation.verdict is VerdictKind.SOLVED]
    total = len(entries)
    parts: list[str] = []
    if not entries:
        parts.append("no candidate could be ranked")
    elif has_winner:
        parts.append(
            f"{_who(entries[0])} is the best of {total}: {entries[0].evaluation.reasons[0]}"
        )
        if len(solved) > 1:
            parts.append(f"{len(solved)} candidates solve the task")
    elif solved:
        tied = sum(entry.key == entries[0].key for entry in entries)
        parts.append(f"{tied} candidates solve the task and nothing tells them apart")
    elif entries[0].evaluation.verdict is VerdictKind.NO_REGRESSION_SHOWN:
        parts.append(
            "no test failed on the base, so no candidate could show that it solves the task"
        )
    else:
        best = f"{_who(entries[0])} {entries[0].evaluation.reasons[0]}"
        parts.append(f"none of {total} is good enough; the best: {best}")
    if apart:
        parts.append(f"{apart} could not be judged, through no fault of the agent")
    ours = sum(attempt.trouble is not None for attempt in attempts)
    if ours:
        parts.append(f"{ours} of {len(attempts)} attempts ended through trouble of ours")
    return "; ".join(parts)


def _who(entry: _Entry) -> str:
    if entry.attempt is None:
        return entry.candidate.id
    return f"{entry.attempt.agent} #{entry.attempt.number}"
