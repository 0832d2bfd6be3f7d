"""Words about changed files that could have swayed the judge. Pure.

A protected file that was changed had no effect: it was put back before the checks ran. It is
told all the same, because a person wants to know who tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from forkyard.candidate import rules
from forkyard.evaluation.words import names
from forkyard.model.candidate import Candidate, ChangeKind


def tampered_paths(candidate: Candidate) -> tuple[str, ...]:
    """Give the protected files that were changed or removed, and runner settings that were added.

    A new file in a protected folder is most often an honest test, so it alone is no tampering.
    """
    added = {one.path for one in candidate.files if one.kind is ChangeKind.ADDED}
    return tuple(
        path
        for path in candidate.protected
        if path not in added or rules.matches(path, rules.RUNNER_FILES)
    )


def remarks(candidate: Candidate) -> tuple[str, ...]:
    """Say in words what a reviewer should know about a candidate's files."""
    said: list[str] = []
    if candidate.secrets:
        carried = tuple(sorted({one.secret for one in candidate.secrets}))
        where = tuple(dict.fromkeys(one.path for one in candidate.secrets))
        said.append(f"carries the value of secret {', '.join(carried)} in {names(where)}")
    tampered = tampered_paths(candidate)
    if tampered:
        files = _files(tampered)
        said.append(f"touched {files}, put back before the checks: {names(tampered)}")
    added = tuple(path for path in candidate.protected if path not in tampered)
    if added:
        said.append(f"added {_files(added)}, left out of the checks: {names(added)}")
    if candidate.outside_scope:
        outside = candidate.outside_scope
        count = f"{len(outside)} {'file' if len(outside) == 1 else 'files'}"
        said.append(f"changes {count} outside the scope: {names(outside)}")
    if candidate.control_files:
        control = candidate.control_files
        said.append(f"changes what runs when it is built or opened: {names(control)}")
    return tuple(said)


def steering(candidate: Candidate, settings: Sequence[str]) -> tuple[str, ...]:
    """Say which changed files may decide what the checks run, for the verdict itself.

    Args:
        candidate: Whose files.
        settings: Those in which the runners' settings were put back, the rest left as it is.
    """
    said: list[str] = []
    if settings:
        said.append(
            f"changed the test runner's settings in {names(tuple(settings))}; the checks ran with"
            " the base's"
        )
    changed = tuple(
        change.path
        for change in candidate.files
        if rules.matches(change.path, rules.STEERING_FILES)
        and change.path not in candidate.protected
    )
    if changed:
        said.append(
            f"changed what may decide how the checks run, and is not put back: {names(changed)};"
            " read the patch"
        )
    return tuple(said)


def _files(paths: tuple[str, ...]) -> str:
    return f"{len(paths)} protected {'file' if len(paths) == 1 else 'files'}"
