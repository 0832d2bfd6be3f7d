"""A candidate's list of changes becomes a plan, or is refused."""

from __future__ import annotations

import pytest

from forkyard.errors import ConflictError, InternalError
from forkyard.model.candidate import Candidate, CandidateStatus, ChangeKind, FileChange
from forkyard.model.ids import new_attempt_id, new_candidate_id
from forkyard.promotion.plan import Plan, parents, plan_of


def _candidate(*files: FileChange, status: CandidateStatus = CandidateStatus.COMPLETE) -> Candidate:
    return Candidate(
        id=new_candidate_id(),
        attempt=new_attempt_id(),
        status=status,
        base_tree="0" * 40,
        result_tree="1" * 40,
        patch_sha256="",
        patch_bytes=0,
        manifest_sha256="",
        created_at="",
        files=files,
        problems=("a path that git refuses",),
    )


def _added(path: str, mode: str = "100644") -> FileChange:
    return FileChange(
        path=path, kind=ChangeKind.ADDED, old_mode=None, new_mode=mode, old_blob=None, new_blob="a"
    )


def test_plan_survives_its_json_when_names_are_not_text() -> None:
    """Bytes that are no UTF-8 come back as they were."""
    plan = plan_of(_candidate(_added("\udcff"), _added('a\n"b'), _added("b/c")), staging=".s")
    assert [entry.path for entry in plan.entries] == [b'a\n"b', b"b/c", b"\xff"]
    assert plan == Plan.from_json(plan.to_json())
    assert plan == plan.turned_round().turned_round()


@pytest.mark.parametrize("status", [CandidateStatus.INVALID, CandidateStatus.INCOMPLETE])
def test_refuses_when_the_candidate_is_not_complete(status: CandidateStatus) -> None:
    """Half of a change is no change."""
    with pytest.raises(ConflictError, match=f"it is {status}, not complete"):
        plan_of(_candidate(_added("a"), status=status), staging=".s")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "a/./b", ".git/hooks/x", "a/.GiT/config", "", "a//b"],
)
def test_refuses_when_a_path_could_not_have_been_collected(path: str) -> None:
    """A second guard: such a row never comes from a collection."""
    with pytest.raises(InternalError):
        plan_of(_candidate(_added(path)), staging=".s")


def test_refuses_when_a_mode_is_none_of_git_files() -> None:
    """A submodule's link is not written as a file."""
    with pytest.raises(InternalError):
        plan_of(_candidate(_added("sub", mode="160000")), staging=".s")


def test_gives_folders_nearest_first_when_asked_for_parents() -> None:
    """The root is not among them."""
    assert list(parents(b"a/b/c")) == [b"a/b", b"a"]
    assert list(parents(b"a")) == []
