"""Errors survive the wire: class, message, hint and every problem."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from forkyard.errors import (
    ConfigError,
    ForkyardError,
    InternalError,
    Problem,
)
from forkyard.wire.errors import from_wire, printable, problems_of, request_of, to_wire
from forkyard.wire.schema import SnapshotRequest
from forkyard.wire.spaces import ExecRequest


def over_the_wire(error: ForkyardError) -> ForkyardError:
    """Send an error to the other side."""
    return from_wire(to_wire(error).model_dump_json().encode(), status=error.http_status)


@pytest.mark.parametrize("code", sorted(ForkyardError.by_code))
def test_every_class_comes_back_as_itself(code: str) -> None:
    """Code, message, hint, exit code and status are those of the class that was raised."""
    kind = ForkyardError.by_code[code]
    told = over_the_wire(kind("cannot do it: reason 7", hint="Do it again."))

    assert type(told) is kind
    assert (told.message, told.hint) == ("cannot do it: reason 7", "Do it again.")


def test_problems_come_back_with_their_places() -> None:
    """A ConfigError keeps file, line and key of each problem."""
    problems = (
        Problem(message="unknown key", file="t.yaml", line=3, key="a.b"),
        Problem(message="is required"),
    )
    told = over_the_wire(ConfigError("cannot read t.yaml: 2 problems", problems=problems))

    assert isinstance(told, ConfigError)
    assert told.problems == problems


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"error": {"message": 3}}'])
def test_an_unreadable_body_is_our_bug(body: bytes) -> None:
    """Whatever is not an error in our shape is told as an internal error with its status."""
    told = from_wire(body, status=502)

    assert isinstance(told, InternalError)
    assert "502" in told.message


def test_an_unknown_code_is_still_an_error_of_ours() -> None:
    """A newer server's class is told by its message."""
    told = from_wire(b'{"error": {"code": "brand-new", "message": "cannot x: y"}}', status=500)

    assert type(told) is ForkyardError
    assert told.message == "cannot x: y"


def test_text_that_is_no_utf8_can_travel() -> None:
    """Undecodable bytes are shown escaped; all else is untouched."""
    assert printable(b"caf\xe9 \xc3\xa9".decode("utf-8", "surrogateescape")) == "caf\\xe9 é"


def test_every_problem_of_a_body_is_told_at_once() -> None:
    """Unknown keys, wrong types and missing keys each give a problem with a dotted key."""
    with pytest.raises(ValidationError) as caught:
        ExecRequest.model_validate({"argv": [1], "timeout_seconds": "x", "nonsense": True})
    told = {problem.key: problem.message for problem in problems_of(caught.value)}

    assert told["id"] == "is required"
    assert told["nonsense"] == "unknown key"
    assert set(told) == {"id", "nonsense", "argv.0", "timeout_seconds"}


def test_a_request_is_refused_as_configuration_when_a_name_is_none() -> None:
    """Programs and people get our error, in words, before anything is sent."""
    with pytest.raises(ConfigError, match="'bad name' is no name: use letters") as told:
        request_of(SnapshotRequest, name="bad name", workspace="ws_1")

    assert [one.key for one in told.value.problems] == ["name"]
