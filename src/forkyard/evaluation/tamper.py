"""Words about changed files that could have swayed the judge. Pure.

A protected file that was changed had no effect: it was put back before the checks ran. It is
told all the same, because a person wants to know who tried.
"""

from __future__ import annotations

from forkyard.candidate import rules
from forkyard.evaluation.verdict import names
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


def _files(paths: tuple[str, ...]) -> str:
    return f"{len(paths)} protected {'file' if len(paths) == 1 else 'files'}"
