"""Errors on the wire: one JSON shape, and the way back to the class that was raised.

``{"error": {"code", "message", "hint", "problems": [{"message", "file", "line", "key"}]}}``. The
code is looked up in the closed table of `forkyard.errors`; no class is ever imported by a name
that came over the wire.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from forkyard.errors import ConfigError, ForkyardError, InternalError, Problem

M = TypeVar("M", bound=BaseModel)


class WireProblem(BaseModel):
    """One thing wrong in a configuration or request body."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    message: str
    file: str | None = None
    line: int | None = None
    key: str | None = None


class WireError(BaseModel):
    """What happened, in one clause, and what to do next."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    code: str
    message: str
    hint: str | None = None
    problems: list[WireProblem] = []


class ErrorBody(BaseModel):
    """The body of every response that is not a success."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    error: WireError


def to_wire(error: ForkyardError) -> ErrorBody:
    """Describe an error for the other side."""
    problems = error.problems if isinstance(error, ConfigError) else ()
    return ErrorBody(
        error=WireError(
            code=error.code,
            message=printable(error.message),
            hint=None if error.hint is None else printable(error.hint),
            problems=[
                WireProblem(
                    message=printable(problem.message),
                    file=None if problem.file is None else printable(problem.file),
                    line=problem.line,
                    key=problem.key,
                )
                for problem in problems
            ],
        )
    )


def from_wire(body: bytes, *, status: int) -> ForkyardError:
    """Rebuild the error that the other side raised; an unreadable body is our bug."""
    try:
        error = ErrorBody.model_validate_json(body).error
    except ValidationError:
        return InternalError(f"cannot read the server's answer: status {status} without an error")
    known = ForkyardError.by_code.get(error.code, ForkyardError)
    if known is ConfigError:
        return ConfigError(
            error.message,
            hint=error.hint,
            problems=tuple(
                Problem(message=one.message, file=one.file, line=one.line, key=one.key)
                for one in error.problems
            ),
        )
    return known(error.message, hint=error.hint)


def problems_of(error: ValidationError) -> tuple[Problem, ...]:
    """Turn what pydantic found into problems, all at once, with dotted keys."""
    return tuple(
        Problem(
            message=_sentence(one["type"], one["msg"]),
            key=".".join(str(part) for part in one["loc"]) or None,
        )
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    )


def request_of(model: type[M], **values: object) -> M:
    """Make a request from what a person or a program gave.

    Raises:
        ConfigError: With every problem of the values.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = problems_of(error)
        raise ConfigError(
            "cannot ask for this: "
            + (str(problems[0]) if len(problems) == 1 else f"{len(problems)} problems"),
            hint="Correct what is named and ask again.",
            problems=problems,
        ) from error


def _sentence(kind: str, message: str) -> str:
    match kind:
        case "extra_forbidden":
            return "unknown key"
        case "missing":
            return "is required"
        case "json_invalid":
            return "is not JSON"
        case _:
            return message.removeprefix("Value error, ")


def printable(text: str) -> str:
    r"""Give text that any JSON or UTF-8 reader accepts: undecodable bytes become ``\xNN``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
