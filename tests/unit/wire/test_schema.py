"""Requests refuse what cannot be honoured; answers carry what agents wrote without harm."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from forkyard.model.candidate import ChangeKind, FileChange
from forkyard.wire.results import ApplyRequest, QuickRequest, SubmitRequest
from forkyard.wire.schema import FileChangeInfo, TemplateRequest
from forkyard.wire.spaces import ExecRequest, WorkspaceRequest

EXEC = "exec_0123456789ab"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"id": EXEC}, "exactly one of command and argv"),
        ({"id": EXEC, "command": "x", "argv": ["x"]}, "exactly one of command and argv"),
        ({"id": EXEC, "argv": []}, "must name a program"),
        ({"id": EXEC, "argv": [""]}, "must name a program"),
        ({"id": "exec_../../x", "command": "x"}, "hexadecimal"),
        ({"id": "ws_0123456789ab", "command": "x"}, "hexadecimal"),
        ({"id": EXEC, "command": "a\0b"}, "NUL"),
        ({"id": EXEC, "command": "x", "variables": {"A=B": "c"}}, "name"),
        ({"id": EXEC, "command": "x", "working_directory": "repo"}, "absolute"),
        ({"id": EXEC, "command": "x", "timeout_seconds": 0}, "greater than 0"),
    ],
)
def test_an_exec_that_cannot_be_run_is_refused(body: dict[str, object], reason: str) -> None:
    """Each with the reason in words."""
    with pytest.raises(ValidationError, match=reason):
        ExecRequest.model_validate(body)


@pytest.mark.parametrize("body", [{}, {"snapshot": "a", "template": "b"}])
def test_a_workspace_comes_from_one_place(body: dict[str, object]) -> None:
    """Neither none nor both of snapshot and template."""
    with pytest.raises(ValidationError, match="exactly one"):
        WorkspaceRequest.model_validate(body)


@pytest.mark.parametrize("name", ["", "-x", "../x", "a/b", "a b", "a\n", "x" * 101])
def test_a_name_that_is_unsafe_in_paths_and_shells_is_refused(name: str) -> None:
    """Names are letters, digits, dot, underscore and dash."""
    with pytest.raises(ValidationError):
        TemplateRequest.model_validate({"name": name, "text": "", "file": "/t"})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "x"},
        {"text": "x", "file": "relative.yaml"},
        {"text": "x", "file": "/t", "quick": {"prompt": "p", "agents": [], "cwd": "/"}},
    ],
)
def test_a_submission_has_one_form(body: dict[str, object]) -> None:
    """A file's text with its absolute path, or the quick form."""
    with pytest.raises(ValidationError):
        SubmitRequest.model_validate(body)


def test_the_quick_form_starts_from_one_place() -> None:
    """A snapshot and a template exclude each other."""
    with pytest.raises(ValidationError, match="at most one"):
        QuickRequest(prompt="p", agents=["a=b"], cwd="/", snapshot="s", template="t")


@pytest.mark.parametrize("body", [{}, {"target": "rel"}, {"target": "/a", "workspace": "w"}])
def test_a_candidate_goes_to_one_place(body: dict[str, object]) -> None:
    """One absolute folder, or one workspace."""
    with pytest.raises(ValidationError):
        ApplyRequest.model_validate(body)


def test_a_path_that_is_no_utf8_is_written_escaped() -> None:
    """JSON of it can be read by anybody."""
    change = FileChange(
        path=b"a\xff\n".decode("utf-8", "surrogateescape"),
        kind=ChangeKind.ADDED,
        old_mode=None,
        new_mode="100644",
        old_blob=None,
        new_blob="0" * 40,
    )
    info = FileChangeInfo.model_validate(change)

    assert info.path == "a\\xff\n"
    assert FileChangeInfo.model_validate_json(info.model_dump_json()) == info
