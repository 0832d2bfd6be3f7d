"""One row per route: what it is called, what it takes, what it gives, and who serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from forkyard.errors import ConfigError, Problem
from forkyard.server.services import Services
from forkyard.wire.bodies import RequestModel
from forkyard.wire.errors import problems_of

R = TypeVar("R", bound=RequestModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, with its body read and checked."""

    services: Services
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    body: RequestModel | None
    request: Request

    def asked(self, model: type[R]) -> R:
        """Give the body as the model that the route's row names."""
        if not isinstance(self.body, model):
            raise TypeError(f"the row of {self.request.url.path} takes no {model.__name__}")
        return self.body

    def number(self, name: str, default: int) -> int:
        """Read a non-negative number from the query."""
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 18:  # noqa: PLR2004 - fits 63 bits
            raise bad_query(name, f"must be a non-negative number, not {text!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        """Read a yes or no from the query; absent means no."""
        text = self.query.get(name, "false")
        if text not in {"true", "false", "1", "0"}:
            raise bad_query(name, f"must be true or false, not {text!r}")
        return text in {"true", "1"}


def bad_query(name: str, message: str) -> ConfigError:
    """Make the error of one bad query parameter."""
    return ConfigError(
        f"cannot read the request: {name} {message}",
        problems=(Problem(key=name, message=message),),
    )


Answer = BaseModel | Sequence[BaseModel] | bytes | Response
Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of the API."""

    method: str
    path: str
    summary: str
    handler: Handler
    answers: Any
    """The model of the JSON answer, or a media type for streams of bytes."""
    takes: type[RequestModel] | None = None
    status: int = 200
    query: Mapping[str, str] = field(default_factory=dict)
    """Query parameter -> what it means."""

    @property
    def operation(self) -> str:
        """Give the operation's id: stable, and unique in the table."""
        parts = [part.strip("{}") for part in self.path.split("/") if part not in {"", "v1"}]
        return "_".join([self.method.lower(), *parts]).replace(".", "_")


def read_body(model: type[RequestModel], body: bytes) -> RequestModel:
    """Read a JSON body.

    Raises:
        ConfigError: With every problem of it.
    """
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        problems = problems_of(error)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        shown = "; ".join(str(problem) for problem in problems[:5])
        raise ConfigError(
            f"cannot read the request: {count}: {shown}",
            hint="See /v1/openapi.json for what this route takes.",
            problems=problems,
        ) from error


def to_bytes(answer: BaseModel | Sequence[BaseModel] | bytes) -> bytes:
    """Write a JSON answer; prepared bytes pass through."""
    if isinstance(answer, bytes):
        return answer
    if isinstance(answer, BaseModel):
        return answer.model_dump_json().encode()
    return b"[" + b",".join(one.model_dump_json().encode() for one in answer) + b"]"
